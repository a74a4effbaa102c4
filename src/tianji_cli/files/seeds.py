"""The directory of several seeds of one config: ``<out>/<name>/seeds-<n>/``, and in it a run for each seed.

It has the config as ``base.toml``, from which every seed begins, a run directory ``<seed>/`` each, made when
the seeds were named, and once the seeds are over ``summary.json``, which says what they came to together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from tianji_cli.config.trust import check_trusted
from tianji_cli.errors import os_errors_as
from tianji_cli.files.directories import kept_free
from tianji_cli.files.rundir import DEFAULT_OUT, RunDirectory, RunDirectoryError, Within, write_whole

PREFIX: Final = "seeds-"


@dataclass(frozen=True)
class SeedsDirectory:
    """Where the runs of several seeds are."""

    path: Path

    @classmethod
    def create(cls, name: str, seeds: Iterable[int], toml: str, out: Path = DEFAULT_OUT) -> SeedsDirectory:
        """Make ``out/name/seeds-n`` for the next free n, with a directory for each seed.

        Args:
            toml: the resolved config, whose own seed none of them has to have.

        Raises:
            RunDirectoryError: the name is no single path component, or it cannot be made.
            UntrustedPlaceError: others may change what is there.
        """
        parent = RunDirectory.next(name, out).path.parent
        check_trusted(parent)
        what, remedy = f"cannot make a directory for seeds in {parent}", "--out DIR chooses another place"
        with os_errors_as(RunDirectoryError, what, remedy):
            parent.mkdir(parents=True, exist_ok=True)
            for number in count(1):
                with contextlib.suppress(FileExistsError):
                    (parent / f"{PREFIX}{number}").mkdir()
                    break
            found = cls(parent / f"{PREFIX}{number}")
            for seed in seeds:
                RunDirectory.make(found.path / str(seed))
            # The last: what lacks it was not made to its end.
            write_whole(found.config, toml.encode())
        return found

    @classmethod
    def find(cls, text: str, out: Path = DEFAULT_OUT) -> SeedsDirectory | None:
        """Find what a user means: a path, or ``name/seeds-n``; None if it is no directory of seeds."""
        places = (cls(Path(text)), cls(out / text))
        return next((place for place in places if place.config.is_file() and place.runs), None)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes of this host from training these seeds meanwhile.

        Raises:
            RunDirectoryError: another one does.
        """
        with kept_free(self.path) as free:
            if not free:
                raise RunDirectoryError(f"another command trains the seeds of {self.path}: wait for its end")
            yield

    config = Within("base.toml")
    """The config that every seed begins from."""

    summary = Within("summary.json")
    """What the seeds came to."""

    @property
    def runs(self) -> Mapping[int, RunDirectory]:
        """The runs by their seeds, ascending."""
        names = [path.name for path in self.path.iterdir() if path.name.isascii() and path.name.isdecimal()]
        return {seed: RunDirectory(self.path / str(seed)) for seed in sorted(map(int, names))}
