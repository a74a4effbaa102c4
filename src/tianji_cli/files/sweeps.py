"""The directory of a sweep: ``<out>/<name>/sweep-<n>/``, or one that the user names, which processes share.

It appears whole, with its config and its journal, under the name that a process was the first to take: so any
number of processes that begin with the same command, on any host that sees the directory, take part in one
sweep.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from tianji_cli.config.trust import check_trusted
from tianji_cli.errors import os_errors_as
from tianji_cli.files.rundir import DEFAULT_OUT, RunDirectory, RunDirectoryError, Within, remove_leftovers

PREFIX: Final = "sweep-"


@dataclass(frozen=True)
class SweepDirectory:
    """The directory of one sweep, and the places of its files."""

    path: Path

    @classmethod
    def create(cls, path: Path | None, name: str, fill: Callable[[SweepDirectory], None]) -> SweepDirectory:
        """Make ``path``, or the next free ``experiments/name/sweep-n``, and let ``fill`` write its contents.

        Returns:
            The new directory, or the one that another process has made under ``path`` meanwhile.

        Raises:
            RunDirectoryError: the name is no single path component, or the directory cannot be made.
            UntrustedPlaceError: other users may change its contents.
        """
        parent = path.absolute().parent if path is not None else RunDirectory.next(name).path.parent
        check_trusted(parent)
        what, remedy = f"cannot make a directory for a sweep in {parent}", "--out DIR chooses another place"
        with os_errors_as(RunDirectoryError, what, remedy):
            parent.mkdir(parents=True, exist_ok=True)
            made = cls(parent / f".{PREFIX}{secrets.token_hex(4)}")
            made.path.mkdir()
            remove_leftovers(parent, rf"\.{PREFIX}[0-9a-f]{{8}}", made.path.stat().st_mtime)
            try:
                made.workers.mkdir()
                made.trials.mkdir()
                made.plots.mkdir()
                fill(made)
                return made._appear(path, parent)
            finally:
                shutil.rmtree(made.path, ignore_errors=True)

    def _appear(self, path: Path | None, parent: Path) -> SweepDirectory:
        """Rename the directory to its final name, in one step."""
        for number in count(1):
            place = path if path is not None else parent / f"{PREFIX}{number}"
            try:
                self.path.rename(place)
            except OSError as cause:
                if cause.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
                if path is None:
                    continue
                if not SweepDirectory(path).is_there:
                    raise RunDirectoryError(
                        f"{path} has files that are no sweep's: --out DIR names a new or an empty directory"
                    ) from cause
            return SweepDirectory(place)
        raise AssertionError("numbers do not end")

    @classmethod
    def next(cls, name: str, out: Path = DEFAULT_OUT) -> Path:
        """Return the directory that ``create`` would make now, without making it.

        Raises:
            RunDirectoryError: the name is no single path component.
        """
        parent = RunDirectory.next(name, out).path.parent
        return parent / f"{PREFIX}{max(cls._numbers(parent), default=0) + 1}"

    @staticmethod
    def _numbers(parent: Path) -> list[int]:
        found = []
        for place in parent.glob(f"{PREFIX}*"):
            with contextlib.suppress(ValueError):
                found.append(int(place.name.removeprefix(PREFIX)))
        return found

    @classmethod
    def newest(cls, name: str, out: Path = DEFAULT_OUT) -> SweepDirectory:
        """Find the newest sweep of an experiment.

        Raises:
            RunDirectoryError: there is none.
        """
        place = out / name / f"{PREFIX}{max(cls._numbers(out / name), default=0)}"
        if not cls(place).is_there:
            raise RunDirectoryError(
                f"there is no sweep in {out / name} to go on with; --out DIR names another place"
            )
        return cls(place)

    @property
    def is_there(self) -> bool:
        """Whether the directory has a sweep."""
        return self.config.is_file() and self.journal.is_file()

    config = Within("sweep.toml")
    """Config that all processes share, with ``[sweep]``; values that machines decide are open in it."""

    journal = Within("journal.log")
    """Optuna's record of the trials."""

    workers = Within("workers")
    """Lease files of the processes that take part."""

    trials = Within("trials")
    """Directory with a subdirectory for each trial, by its number."""

    def trial_config(self, number: int) -> Path:
        """Return the path of a trial's config: the sweep's config with the trial's parameters."""
        return self.trials / str(number) / "trial.toml"

    def run(self, number: int, seed: int) -> RunDirectory:
        """Return the run of a trial with one of its seeds."""
        return RunDirectory(self.trials / str(number) / str(seed))

    best = Within("best.toml")
    """Config of the best trial."""

    table = Within("trials.csv")
    """All trials as CSV."""

    plots = Within("plots")
    """Figures of the trials."""

    summary = Within("summary.json")
    """Results of the sweep."""
