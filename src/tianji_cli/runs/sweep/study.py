"""The trials of a sweep in Optuna's journal: which are to be run, who runs them, how each ended.

All trials are there from the beginning, and wait. To run one is to take it, to give it up is to have it
wait again: so none is run by two processes, or counted twice, and the one whose process has been killed is
taken up again as the trial that it was. What is done under the lock is done in a moment, with signals held
back.
"""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from tianji_cli.config.sweep import Sweep, holds
from tianji_cli.runs.sweep.locks import SharedLock
from tianji_cli.runs.sweep.space import Dimension, Space, Values
from tianji_cli.signals import held_back

NAME: Final = "sweep"
"""Name of the one study in a journal."""
WORKER: Final = "worker"
"""Attribute of a trial: the process that runs it."""
REASON: Final = "reason"
"""Attribute of a trial: why it has failed, in words."""


class Journal(JournalFileBackend):
    """Optuna's journal, which one that was killed in the middle of a line does not spoil."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), cast("Any", _JournalLock(path)))  # It has what a lock of Optuna's has.


class _JournalLock(SharedLock):
    """Lets one process write, behind the last line that is whole: none that lives is writing then."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path

    def acquire(self) -> bool:
        """Wait for it, and cut off the line in the middle of which its last owner was killed, if it was."""
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
        journal: the file; the lock of those who take trials lies beside it.
        points: of a trial at most, at which it may be pruned; None if that is not known.
    """

    def __init__(self, journal: Path, sweep: Sweep, space: Space, points: int | None = None) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._sweep = sweep
        self._space = space
        self._lock = SharedLock(journal.with_name("taking"))
        self._storage = JournalStorage(Journal(journal))
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
        """See to it that there are so many trials in all, or as many as the grid has points."""
        grid = self._grid() if self._sweep.sampler == "grid" else None
        with self._alone():
            there = len(self.trials)
            for place in range(there, number if grid is None else min(number, len(grid))):
                self._study.enqueue_trial({} if grid is None else grid[place])

    def _grid(self) -> list[Values]:
        """List all points, as Optuna writes them, in an order that leaves none of the ends for the last."""
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
        """The trial with the best value among those that have ended in order; the first of equal ones.

        None if there is none, or none that has the metric: the value of such is infinite.
        """
        sign = 1.0 if self._sweep.minimizes else -1.0
        over = [
            trial
            for trial in self.trials
            if trial.state == TrialState.COMPLETE and math.isfinite(trial.value or 0.0)
        ]
        return min(over, key=lambda trial: sign * (trial.value or 0.0), default=None)

    def take(self, worker: str, is_given_up: Callable[[FrozenTrial], bool]) -> optuna.Trial | None:
        """Take the first trial that waits; None if there is none.

        Args:
            worker: who takes it.
            is_given_up: whether nobody works on a running trial any more: such trials wait again.
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
            # Before it runs: one that runs has an owner, whenever its owner may be killed.
            self._storage.set_trial_user_attr(self._id_of(first.number), WORKER, worker)
            # A study of its own, which does not remember the trials of the last time.
            study = optuna.load_study(
                study_name=NAME,
                storage=self._storage,
                sampler=self._sampler(first.number),
                pruner=self._pruner,
            )
            return study.ask()

    def values(self, trial: optuna.Trial) -> Values:
        """Draw the parameters of a trial, or those that it has not got yet."""
        found: Values = {}
        with held_back(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of labels of choices, none of which is other than it was.
            for dimension in self._space.dimensions:
                if holds(dimension.parameter, found):
                    found[dimension.key] = _drawn(trial, dimension)
        return found

    def values_of(self, trial: FrozenTrial) -> Values:
        """Return the parameters that a trial has."""
        return {
            one.key: one.choice(trial.params[one.key]) if one.parameter.choices else trial.params[one.key]
            for one in self._space.dimensions
            if one.key in trial.params
        }

    def is_owner(self, number: int, worker: str) -> bool:
        """Whether a trial is still this worker's: one that was asleep for long may have lost it."""
        trial = self.trials[number]
        return trial.state == TrialState.RUNNING and trial.user_attrs.get(WORKER) == worker

    def report(self, trial: optuna.Trial, values: Mapping[int, float]) -> bool:
        """Note what a trial came to at some points; returns whether it is to be pruned."""
        with held_back():
            known = self.trials[trial.number].intermediate_values
            worse = False
            for point in sorted(set(values) - set(known)):
                trial.report(values[point], point)
                worse = worse or trial.should_prune()
        return worse

    def finish(self, trial: optuna.Trial, value: float) -> None:
        """Note the value of a trial."""
        with held_back():
            self._study.tell(trial, value)

    def prune(self, trial: optuna.Trial) -> None:
        """Note that a trial was ended as one of the worse; its value is the last that it has reported."""
        with held_back():
            self._study.tell(trial, state=TrialState.PRUNED)

    def fail(self, trial: optuna.Trial, reason: str) -> None:
        """Note that a trial has failed."""
        with held_back():
            trial.set_user_attr(REASON, reason)
            self._study.tell(trial, state=TrialState.FAIL)

    def give_up(self, number: int) -> None:
        """Have a trial wait for another process, or another time."""
        with self._alone():
            self._storage.set_trial_state_values(self._id_of(number), TrialState.WAITING)

    def _id_of(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)

    def _sampler(self, number: int) -> BaseSampler:
        """Make the sampler of one trial: draws follow from its number, in whichever process."""
        seed = int(np.random.SeedSequence([self._sweep.seed, number]).generate_state(1)[0])
        if self._sweep.sampler == "tpe":
            return TPESampler(seed=seed)
        return RandomSampler(seed=seed)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others from taking trials meanwhile.

        A process that was asleep for long may have lost the lock. A trial changes hands in one line of the
        journal all the same, and its owner is looked up before it is judged.
        """
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
    """How many trials are in one of some states."""
    return sum(trial.state in states for trial in trials)
