"""Policies that play whole episodes: an agent greedily or as in training, and baselines without training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from tianji_cli.errors import UsageError
from tianji_envs.core import VectorEnvironment, derive_seed
from tianji_envs.team import AVAILABLE

if TYPE_CHECKING:
    from tianji_algos.core import Agent
    from tianji_algos.fields import FieldSpec

Array = npt.NDArray[Any]


class Policy(Protocol):
    """A policy that plays: an agent, or a baseline."""

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """Reset memory where (``[N]``) the next observation is the first of an episode."""

    def act_greedily(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Choose actions ``[N, ...]``."""


class ExploringPolicy:
    """Plays as an agent does in training: by samples of its policy, or with its share of random actions.

    Args:
        fields: fields that the agent records; the evaluation ignores them.
    """

    def __init__(self, agent: Agent, fields: Sequence[FieldSpec], num_envs: int) -> None:
        self._agent = agent
        self._row = {field.name: np.zeros((num_envs, *field.shape), field.dtype) for field in fields}

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """Let the agent forget earlier episodes."""
        self._agent.begin_episodes(where)

    def act_greedily(self, observation: Array) -> Array:
        """Choose actions ``[N, ...]`` as in training, not greedily."""
        return self._agent.act(observation, self._row)


PolicyName = Literal["trained", "sampled", "random", "heuristic"]
POLICIES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)
BASELINES: Final[tuple[PolicyName, ...]] = ("random", "heuristic")
"""Names of the policies without training."""


class RandomPolicy:
    """Draws uniformly from the actions; for a team, from the actions available to each agent.

    Args:
        seed: seed of the environments; the draws are independent of theirs.
    """

    def __init__(self, environment: VectorEnvironment, seed: int) -> None:
        own = derive_seed(seed, environment.num_envs)  # The environments have the numbers below.
        self._random = np.random.default_rng(own)
        self._space = copy.deepcopy(environment.action_space)
        self._space.seed(own)

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """Do nothing, since the policy has no memory."""

    def act_greedily(self, observation: Array) -> Array:
        """Draw actions ``[N, ...]``."""
        if AVAILABLE in (observation.dtype.names or ()):
            available = observation[AVAILABLE]
            drawn: Array = np.where(available, self._random.random(available.shape), -1.0).argmax(axis=-1)
            return drawn
        return np.stack([self._space.sample() for _ in range(len(observation))])


class HeuristicPolicy:
    """Acts as an environment's own heuristic does."""

    def __init__(self, heuristic: Callable[[Array], Array]) -> None:
        self._heuristic = heuristic

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """Do nothing, since the policy has no memory."""

    def act_greedily(self, observation: Array) -> Array:
        """Choose actions ``[N, ...]``."""
        return self._heuristic(observation)


def baseline(name: PolicyName, environment: VectorEnvironment, seed: int) -> RandomPolicy | HeuristicPolicy:
    """Build a baseline for an environment.

    Raises:
        UsageError: the environment has no heuristic.
    """
    if name == "random":
        return RandomPolicy(environment, seed)
    if environment.heuristic is None:
        raise UsageError("this environment has no heuristic to play by; --policy random would be right")
    return HeuristicPolicy(environment.heuristic)
