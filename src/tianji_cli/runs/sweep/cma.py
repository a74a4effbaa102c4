"""CMA-ES that keeps no state but the trials.

Optuna's own sampler pickles its optimiser into the journal, and what unpickles it runs what others may have
written there. Here a trial says in JSON which generation it is of, and that of its first one which trials of
the generation before the optimiser was told: telling draws no random numbers, so any process rebuilds the
optimiser from these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from cmaes import CMA
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

GENERATION: Final = "cma:generation"
TOLD: Final = "cma:told"
"""Attributes of a trial: its generation, and the numbers of those trials that the ones before it were."""

SIGMA: Final = 1 / 6
"""First standard deviation, of ranges of 1."""

Numeric = FloatDistribution | IntDistribution
Floats = npt.NDArray[np.float64]


class CmaEsSampler(BaseSampler):
    """Draws the numbers that matter in every trial by CMA-ES, and everything else at random.

    Args:
        space: those numbers' distributions, by name.
        seed: of the draws of one trial: the next one has a sampler of its own.
    """

    def __init__(self, space: Mapping[str, BaseDistribution], seed: int) -> None:
        self._space = {name: one for name, one in space.items() if isinstance(one, Numeric)}
        self._seed = seed
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(
        self,
        study: Study,  # noqa: ARG002 - the interface is Optuna's
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """Return the distributions of what is drawn together."""
        return {name: one for name, one in self._space.items() if not one.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw from the newest generation, and note in the trial which it is of."""
        space = {name: one for name, one in search_space.items() if isinstance(one, Numeric)}
        if not space:
            return {}
        others = [one for one in study.get_trials(deepcopy=False) if one.number != trial.number]
        optimizer, told = rebuilt(space, others, minimizes=study.direction == StudyDirection.MINIMIZE)
        optimizer.reseed_rng(self._seed)
        drawn = optimizer.ask()
        # By the storage: a trial's system attributes are Optuna's own, and the user's are shown.
        study._storage.set_trial_system_attr(trial._trial_id, TOLD, told)
        study._storage.set_trial_system_attr(trial._trial_id, GENERATION, optimizer.generation)
        return {name: _value(one, drawn[place]) for place, (name, one) in enumerate(space.items())}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw anything else."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)


def rebuilt(
    space: Mapping[str, Numeric], trials: Sequence[FrozenTrial], *, minimizes: bool
) -> tuple[CMA, list[int]]:
    """Tell a new optimiser all generations that are over.

    Returns:
        It, and the numbers of the trials of the last generation that it was told.
    """
    dimensions = len(space)
    optimizer = CMA(np.full(dimensions, 0.5), SIGMA, bounds=np.tile([0.0, 1.0], (dimensions, 1)))
    by_number = {trial.number: trial for trial in trials}
    told: list[int] = []
    while True:
        generation = optimizer.generation
        of_next = [one for one in trials if one.system_attrs.get(GENERATION) == generation + 1]
        if of_next:  # What its first trial was drawn from holds for all.
            told = min(of_next, key=lambda one: one.number).system_attrs[TOLD]
        else:
            over = [one for one in trials if one.system_attrs.get(GENERATION) == generation and _is_over(one)]
            if len(over) < optimizer.population_size:
                return optimizer, told
            told = sorted(one.number for one in over)[: optimizer.population_size]
        sign = 1.0 if minimizes else -1.0
        optimizer.tell([(_place(space, by_number[one]), sign * _judged(by_number[one])) for one in told])


def _is_over(trial: FrozenTrial) -> bool:
    return trial.state in {TrialState.COMPLETE, TrialState.PRUNED} and trial.value is not None


def _judged(trial: FrozenTrial) -> float:
    assert trial.value is not None
    return trial.value


def _place(space: Mapping[str, Numeric], trial: FrozenTrial) -> Floats:
    """Return where a trial is in a cube of side 1."""
    return np.array([_share(one, trial.params[name]) for name, one in space.items()], np.float64)


def _share(of: Numeric, value: float) -> float:
    low, high = _bounds(of)
    return (_scaled(of, value) - low) / (high - low)


def _value(of: Numeric, share: float) -> float | int:
    low, high = _bounds(of)
    value = low + share * (high - low)
    value = math.exp(value) if of.log else value
    if isinstance(of, IntDistribution):
        whole = of.low + round((value - of.low) / of.step) * of.step
        return int(min(max(whole, of.low), of.high))
    if of.step is not None:
        value = of.low + round((value - of.low) / of.step) * of.step
    return float(min(max(value, of.low), of.high))


def _bounds(of: Numeric) -> tuple[float, float]:
    """Both ends on the scale on which values are drawn; each whole number has as much room as any other."""
    if isinstance(of, IntDistribution):
        half = of.step / 2
        return _scaled(of, of.low - half), _scaled(of, of.high + half)
    return _scaled(of, of.low), _scaled(of, of.high)


def _scaled(of: Numeric, value: float) -> float:
    return math.log(value) if of.log else float(value)
