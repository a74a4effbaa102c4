"""The directory of a campaign: several runs of one config, by their seeds or by the trials of a sweep.

It appears whole, under the name that a process was the first to take: ``<out>/<name>/seeds-<n>/``,
``<out>/<name>/sweep-<n>/``, or one that the user names. So any number of processes that begin a sweep with
the same command, on any host that sees the directory, take part in one.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import ClassVar, Self

from tianji_cli.config.trust import check_trusted
from tianji_cli.errors import os_errors_as
from tianji_cli.files.directories import kept_free
from tianji_cli.files.rundir import (
    DEFAULT_OUT,
    RunDirectory,
    RunDirectoryError,
    Within,
    remove_leftovers,
    write_whole,
)


@dataclass(frozen=True)
class CampaignDirectory(ABC):
    """The directory of one campaign."""

    path: Path

    kind: ClassVar[str]
    """First part of its name."""

    summary = Within("summary.json")
    """Results of the campaign."""

    @classmethod
    def _create(
        cls, path: Path | None, name: str, fill: Callable[[Self], None], out: Path = DEFAULT_OUT
    ) -> Self:
        """Make ``path``, or the next free ``out/name/kind-n``, and let ``fill`` write its contents.

        Returns:
            The new directory, or the one that another process has made under ``path`` meanwhile.

        Raises:
            RunDirectoryError: the name is no single path component, or the directory cannot be made.
            UntrustedPlaceError: other users may change its contents.
        """
        parent = path.absolute().parent if path is not None else RunDirectory.next(name, out).path.parent
        check_trusted(parent)
        what, remedy = (
            f"cannot make a directory for {cls.kind} in {parent}",
            "--out DIR chooses another place",
        )
        with os_errors_as(RunDirectoryError, what, remedy):
            parent.mkdir(parents=True, exist_ok=True)
            made = cls(parent / f".{cls.kind}-{secrets.token_hex(4)}")
            made.path.mkdir()
            remove_leftovers(parent, rf"\.{cls.kind}-[0-9a-f]{{8}}", made.path.stat().st_mtime)
            try:
                fill(made)
                return made._appear(path, parent)
            finally:
                shutil.rmtree(made.path, ignore_errors=True)

    def _appear(self, path: Path | None, parent: Path) -> Self:
        """Rename the directory to its final name, in one step."""
        for number in count(1):
            place = path if path is not None else parent / f"{self.kind}-{number}"
            try:
                self.path.rename(place)
            except OSError as cause:
                if cause.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
                if path is None:
                    continue
                if not type(self)(path).is_there:
                    raise RunDirectoryError(
                        f"{path} has files that are no sweep's: --out DIR names a new or an empty directory"
                    ) from cause
            return type(self)(place)
        raise AssertionError("numbers do not end")

    @property
    @abstractmethod
    def is_there(self) -> bool:
        """Whether the directory has a campaign."""


class SeedsDirectory(CampaignDirectory):
    """A run directory ``<seed>/`` for each seed of a config."""

    kind = "seeds"

    config = Within("base.toml")
    """Config that every seed begins from."""

    @classmethod
    def create(cls, name: str, seeds: Iterable[int], toml: str, out: Path = DEFAULT_OUT) -> SeedsDirectory:
        """Make ``out/name/seeds-n`` for the next free n, with a directory for each seed.

        Args:
            toml: the resolved config; its own seed need not be among the seeds.

        Raises:
            RunDirectoryError: the name is no single path component, or the directory cannot be made.
            UntrustedPlaceError: other users may change its contents.
        """

        def fill(made: SeedsDirectory) -> None:
            for seed in seeds:
                RunDirectory.make(made.path / str(seed))
            write_whole(made.config, toml.encode())

        return cls._create(None, name, fill, out)

    @classmethod
    def find(cls, text: str, out: Path = DEFAULT_OUT) -> SeedsDirectory | None:
        """Find the seeds that a user names, by a path or ``name/seeds-n``; None if the name fits no seeds."""
        places = (cls(Path(text)), cls(out / text))
        return next((place for place in places if place.is_there), None)

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

    @property
    def is_there(self) -> bool:
        """Whether the directory has seeds."""
        return self.config.is_file() and bool(self.runs)

    @property
    def runs(self) -> Mapping[int, RunDirectory]:
        """Runs by their seeds, ascending."""
        names = [path.name for path in self.path.iterdir() if path.name.isascii() and path.name.isdecimal()]
        return {seed: RunDirectory(self.path / str(seed)) for seed in sorted(map(int, names))}


class SweepDirectory(CampaignDirectory):
    """A directory ``trials/<number>/`` for each trial, with a run directory ``<seed>/`` for each seed."""

    kind = "sweep"

    config = Within("sweep.toml")
    """Config that all processes share, with ``[sweep]``; values that machines decide are open in it."""

    journal = Within("journal.log")
    """Optuna's record of the trials."""

    workers = Within("workers")
    """Lease files of the processes that take part."""

    trials = Within("trials")
    """Directory with a subdirectory for each trial, by its number."""

    best = Within("best.toml")
    """Config of the best trial."""

    table = Within("trials.csv")
    """All trials as CSV."""

    plots = Within("plots")
    """Figures of the trials."""

    @classmethod
    def create(cls, path: Path | None, name: str, fill: Callable[[SweepDirectory], None]) -> SweepDirectory:
        """Make ``path``, or the next free ``experiments/name/sweep-n``, and let ``fill`` write its contents.

        Returns:
            The new directory, or the one that another process has made under ``path`` meanwhile.

        Raises:
            RunDirectoryError: the name is no single path component, or the directory cannot be made.
            UntrustedPlaceError: other users may change its contents.
        """

        def fill_all(made: SweepDirectory) -> None:
            for directory in (made.workers, made.trials, made.plots):
                directory.mkdir()
            fill(made)

        return cls._create(path, name, fill_all)

    @classmethod
    def next(cls, name: str, out: Path = DEFAULT_OUT) -> Path:
        """Return the directory that ``create`` would make now, without making it.

        Raises:
            RunDirectoryError: the name is no single path component.
        """
        parent = RunDirectory.next(name, out).path.parent
        return parent / f"{cls.kind}-{cls._newest(parent) + 1}"

    @classmethod
    def newest(cls, name: str, out: Path = DEFAULT_OUT) -> SweepDirectory:
        """Find the newest sweep of an experiment.

        Raises:
            RunDirectoryError: there is none.
        """
        found = cls(out / name / f"{cls.kind}-{cls._newest(out / name)}")
        if not found.is_there:
            raise RunDirectoryError(
                f"there is no sweep in {out / name} to go on with; --out DIR names another place"
            )
        return found

    @classmethod
    def _newest(cls, parent: Path) -> int:
        names = (path.name.removeprefix(f"{cls.kind}-") for path in parent.glob(f"{cls.kind}-*"))
        return max((int(name) for name in names if name.isascii() and name.isdecimal()), default=0)

    @property
    def is_there(self) -> bool:
        """Whether the directory has a sweep."""
        return self.config.is_file() and self.journal.is_file()

    def trial_config(self, number: int) -> Path:
        """Return the path of a trial's config: the sweep's config with the trial's parameters."""
        return self.trials / str(number) / "trial.toml"

    def run(self, number: int, seed: int) -> RunDirectory:
        """Return the run of a trial with one of its seeds."""
        return RunDirectory(self.trials / str(number) / str(seed))
