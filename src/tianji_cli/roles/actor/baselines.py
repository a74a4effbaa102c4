"""Policies that nobody trained, to compare a trained one with under the same evaluation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from tianji_cli.errors import UsageError
from tianji_envs.core import VectorEnvironment, derive_seed
from tianji_envs.team import AVAILABLE

Array = npt.NDArray[Any]

Baseline = Literal["random", "heuristic"]
BASELINES: Final[tuple[Baseline, ...]] = get_args(Baseline)


class RandomPolicy:
    """Draws uniformly from the actions that there are: of a team, that each agent may choose.

    Args:
        environment: N environments.
        seed: of those; what is drawn is independent of them.
    """

    def __init__(self, environment: VectorEnvironment, seed: int) -> None:
        own = derive_seed(seed, environment.num_envs)  # The environments have the numbers below.
        self._random = np.random.default_rng(own)
        self._space = copy.deepcopy(environment.action_space)
        self._space.seed(own)

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """It remembers nothing."""

    def act_greedily(self, observation: Array) -> Array:
        """Draw actions ``[N, ...]``."""
        if AVAILABLE in (observation.dtype.names or ()):
            available = observation[AVAILABLE]
            drawn: Array = np.where(available, self._random.random(available.shape), -1.0).argmax(axis=-1)
            return drawn
        return np.stack([self._space.sample() for _ in range(len(observation))])


class HeuristicPolicy:
    """Acts as an environment's own heuristic does.

    Args:
        heuristic: from observations ``[N, ...]`` to actions.
    """

    def __init__(self, heuristic: Callable[[Array], Array]) -> None:
        self._heuristic = heuristic

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """It remembers nothing."""

    def act_greedily(self, observation: Array) -> Array:
        """Choose actions ``[N, ...]``."""
        return self._heuristic(observation)


def baseline(name: Baseline, environment: VectorEnvironment, seed: int) -> RandomPolicy | HeuristicPolicy:
    """Find a baseline for an environment.

    Args:
        name: of the baseline.
        environment: to act in.
        seed: of the environment.

    Raises:
        UsageError: the environment has no heuristic.
    """
    if name == "random":
        return RandomPolicy(environment, seed)
    if environment.heuristic is None:
        raise UsageError("this environment has no heuristic to play by; --policy random would be right")
    return HeuristicPolicy(environment.heuristic)
