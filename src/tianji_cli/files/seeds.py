"""The directory of several seeds of one config: ``<out>/<name>/seeds-<n>/``, and in it a run for each seed.

It has the config as ``base.toml``, from which every seed begins, a run directory ``<seed>/`` for each seed
from the start, and, once the seeds are over, ``summary.json`` with their results.
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
    """The directory of several seeds, and the places of its files."""

    path: Path

    @classmethod
    def create(cls, name: str, seeds: Iterable[int], toml: str, out: Path = DEFAULT_OUT) -> SeedsDirectory:
        """Make ``out/name/seeds-n`` for the next free n, with a directory for each seed.

        Args:
            toml: the resolved config; its own seed need not be among the seeds.

        Raises:
            RunDirectoryError: the name is no single path component, or the directory cannot be made.
            UntrustedPlaceError: other users may change its contents.
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
            # Written last: a directory without it is incomplete.
            write_whole(found.config, toml.encode())
        return found

    @classmethod
    def find(cls, text: str, out: Path = DEFAULT_OUT) -> SeedsDirectory | None:
        """Find the seeds that a user names, by a path or ``name/seeds-n``; None if the name fits no seeds."""
        places = (cls(Path(text)), cls(out / text))
        return next((place for place in places if place.config.is_file() and place.runs), None)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes of this host from training these seeds within the context.

        Raises:
            RunDirectoryError: another process trains them.
        """
        with kept_free(self.path) as free:
            if not free:
                raise RunDirectoryError(f"another command trains the seeds of {self.path}: wait for its end")
            yield

    config = Within("base.toml")
    """Config that every seed begins from."""

    summary = Within("summary.json")
    """Results of the seeds."""

    @property
    def runs(self) -> Mapping[int, RunDirectory]:
        """Runs by their seeds, ascending."""
        names = [path.name for path in self.path.iterdir() if path.name.isascii() and path.name.isdecimal()]
        return {seed: RunDirectory(self.path / str(seed)) for seed in sorted(map(int, names))}
