"""The trials of a sweep in Optuna's journal, with their states, owners and results.

All trials exist from the beginning, and wait. A process takes a trial to run it, and gives it up to let it
wait again: so no trial runs in two processes or counts twice, and a trial whose process was killed is taken
again as the same trial. The lock is held for a moment only, with signals held back.
"""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from tianji_cli.config.sweep import Sweep, holds
from tianji_cli.runs.sweep.space import Dimension, Space, Values
from tianji_cli.signals import held_back

NAME: Final = "sweep"
"""Name of the one study in a journal."""
WORKER: Final = "worker"
"""Attribute of a trial: the process that runs it."""
REASON: Final = "reason"
"""Attribute of a trial: reason of its failure, in words."""
GRACE_S: Final = 5
"""Seconds after which the lock of a killed process is free."""


class _Lock(JournalFileOpenLock):
    """Optuna's lock between processes of any host, as far as they may be killed or suspended.

    A killed process leaves its file, which others remove after ``GRACE_S``. A process that was suspended for
    longer may write at the same time as the next; both write whole lines, and a trial's owner is looked up
    before it is judged.

    Args:
        path: path of the thing to be locked; the lock's file lies beside it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), GRACE_S)

    def release(self) -> None:
        """Release the lock, if this process still has one."""
        with contextlib.suppress(RuntimeError):
            super().release()


class _JournalLock(_Lock):
    """Lets one process write, behind the last complete line."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path

    def acquire(self) -> bool:
        """Wait for the lock, and cut off an incomplete line of an owner that was killed."""
        super().acquire()
        try:
            if self._is_torn():
                os.truncate(self._path, self._path.read_bytes().rfind(b"\n") + 1)
        except BaseException:
            self.release()
            raise
        return True

    def _is_torn(self) -> bool:
        with self._path.open("rb") as file:
            return file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"


class SweepStudy:
    """Owns this process's view of the journal.

    Args:
        journal: the file; the lock for taking trials lies beside it.
        points: most points of a trial at which it may be pruned; None if unknown.
    """

    def __init__(self, journal: Path, sweep: Sweep, space: Space, points: int | None = None) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._sweep = sweep
        self._space = space
        self._lock = _Lock(journal.with_name("taking"))
        self._storage = JournalStorage(JournalFileBackend(str(journal), _JournalLock(journal)))
        self._pruner = _pruner(sweep, points)
        with held_back():
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=NAME,
                direction="minimize" if sweep.minimizes else "maximize",
                load_if_exists=True,
                pruner=self._pruner,
            )
            self._id = self._storage.get_study_id_from_name(NAME)

    def ask_for(self, number: int) -> None:
        """Add trials until there are ``number`` in all, or as many as the grid has points."""
        grid = self._grid() if self._sweep.sampler == "grid" else None
        with self._alone():
            there = len(self.trials)
            for place in range(there, number if grid is None else min(number, len(grid))):
                self._study.enqueue_trial({} if grid is None else grid[place])

    def _grid(self) -> list[Values]:
        """List all points of the grid, as Optuna writes them, in a shuffled order that spreads them."""
        points = self._space.grid()
        order = np.random.default_rng(self._sweep.seed).permutation(len(points))
        dimensions = {one.key: one for one in self._space.dimensions}
        return [
            {
                key: dimensions[key].label(value) if dimensions[key].parameter.choices else value
                for key, value in points[place].items()
            }
            for place in order
        ]

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials, by number."""
        with held_back():
            return self._study.get_trials(deepcopy=False)

    @property
    def best(self) -> FrozenTrial | None:
        """The trial with the best value among the completed ones; the first of equal ones.

        None if there is none, or if none has the metric: their values are infinite.
        """
        sign = 1.0 if self._sweep.minimizes else -1.0
        over = [
            trial
            for trial in self.trials
            if trial.state == TrialState.COMPLETE and math.isfinite(trial.value or 0.0)
        ]
        return min(over, key=lambda trial: sign * (trial.value or 0.0), default=None)

    def take(self, worker: str, is_given_up: Callable[[FrozenTrial], bool]) -> optuna.Trial | None:
        """Take the first waiting trial; None if there is none.

        Args:
            worker: name of the process that takes it.
            is_given_up: whether no process works on a running trial any more: such trials wait again.
        """
        trials = self.trials
        given_up = [one.number for one in trials if one.state == TrialState.RUNNING and is_given_up(one)]
        if not given_up and not counted(trials, TrialState.WAITING):
            return None
        with self._alone():
            for trial in self.trials:
                if trial.state == TrialState.RUNNING and trial.number in given_up and is_given_up(trial):
                    self._storage.set_trial_state_values(self._id_of(trial.number), TrialState.WAITING)
            first = next((trial for trial in self.trials if trial.state == TrialState.WAITING), None)
            if first is None:
                return None
            # Set before the trial runs, so that a running trial has an owner whenever a process is killed.
            self._storage.set_trial_user_attr(self._id_of(first.number), WORKER, worker)
            # A new study object, because the old one caches the trials of the last call.
            study = optuna.load_study(
                study_name=NAME,
                storage=self._storage,
                sampler=self._sampler(first.number),
                pruner=self._pruner,
            )
            return study.ask()

    def values(self, trial: optuna.Trial) -> Values:
        """Draw the parameters of a trial that it does not have yet; returns all of them."""
        found: Values = {}
        with held_back(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Labels of choices, none of which has changed.
            for dimension in self._space.dimensions:
                if holds(dimension.parameter, found):
                    found[dimension.key] = _drawn(trial, dimension)
        return found

    def values_of(self, trial: FrozenTrial) -> Values:
        """Return the parameters of a trial."""
        return {
            one.key: one.choice(trial.params[one.key]) if one.parameter.choices else trial.params[one.key]
            for one in self._space.dimensions
            if one.key in trial.params
        }

    def is_owner(self, number: int, worker: str) -> bool:
        """Whether a trial still belongs to this worker; a process suspended for long may have lost it."""
        trial = self.trials[number]
        return trial.state == TrialState.RUNNING and trial.user_attrs.get(WORKER) == worker

    def report(self, trial: optuna.Trial, values: Mapping[int, float]) -> bool:
        """Report the values of a trial at some points; returns whether it is to be pruned."""
        with held_back():
            known = self.trials[trial.number].intermediate_values
            worse = False
            for point in sorted(set(values) - set(known)):
                trial.report(values[point], point)
                worse = worse or trial.should_prune()
        return worse

    def finish(self, trial: optuna.Trial, value: float) -> None:
        """Record the value of a trial."""
        with held_back():
            self._study.tell(trial, value)

    def prune(self, trial: optuna.Trial) -> None:
        """Record that a trial was pruned; its value is the last that it has reported."""
        with held_back():
            self._study.tell(trial, state=TrialState.PRUNED)

    def fail(self, trial: optuna.Trial, reason: str) -> None:
        """Record that a trial has failed."""
        with held_back():
            trial.set_user_attr(REASON, reason)
            self._study.tell(trial, state=TrialState.FAIL)

    def give_up(self, number: int) -> None:
        """Let a trial wait for another process, or another time."""
        with self._alone():
            self._storage.set_trial_state_values(self._id_of(number), TrialState.WAITING)

    def _id_of(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)

    def _sampler(self, number: int) -> BaseSampler:
        """Return the sampler of one trial: its draws follow from the trial's number, in any process."""
        seed = int(np.random.SeedSequence([self._sweep.seed, number]).generate_state(1)[0])
        if self._sweep.sampler == "tpe":
            return TPESampler(seed=seed)
        return RandomSampler(seed=seed)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from taking trials within the context."""
        with held_back():
            self._lock.acquire()
            try:
                yield
            finally:
                self._lock.release()


def _drawn(trial: optuna.Trial, dimension: Dimension) -> Any:
    """Draw the value of a parameter in a trial."""
    key, parameter = dimension.key, dimension.parameter
    if parameter.choices is not None:
        labels = [dimension.label(choice) for choice in parameter.choices]
        return dimension.choice(trial.suggest_categorical(key, labels))
    low, high, step = parameter.low, parameter.high, parameter.step
    assert low is not None
    assert high is not None
    if dimension.whole:
        return trial.suggest_int(key, int(low), int(high), step=int(step or 1), log=parameter.log)
    return trial.suggest_float(key, low, high, step=step, log=parameter.log)


def _pruner(sweep: Sweep, points: int | None) -> BasePruner:
    if sweep.pruner == "hyperband":
        return HyperbandPruner(max_resource="auto" if points is None else points)
    return MedianPruner() if sweep.pruner == "median" else NopPruner()


def counted(trials: Sequence[FrozenTrial], *states: TrialState) -> int:
    """Return the number of trials in any of some states."""
    return sum(trial.state in states for trial in trials)
