"""Records of a team's environment, as algorithms read them (see ``Team.of``).

A record is one element of a structured dtype; numpy gives each part of records ``seen [...]`` as a view,
``seen["observation"]`` as ``[..., M, O]``. Its parts are ``observation [M, O]``, ``reward [M]`` (of the step
that led here), ``alive [M]``, with discrete actions ``available [M, A]``, ``state [S]`` where it is more than
all observations, and ``truncated [M]`` where agents may be cut off one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from tianji_algos.core import Spaces
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.fields import FieldSpec

Records = npt.NDArray[np.void]

UNAVAILABLE: Final = float("-inf")
"""Value, or logit, of an unavailable action: the least of all."""
IMPOSSIBLE: Final = -1e9
"""Logit of an unavailable action in learning: its probability is 0, and no gradient flows.

It is finite, since an entropy has products of probabilities with their logarithms.
"""


def cut_off(seen: Records) -> npt.NDArray[np.bool_]:
    """Mark the agents that the step to ``seen [...]`` cut off, while others go on: ``[..., M]``.

    Such an agent acts no more, but its last observation still has a value.
    """
    alive: npt.NDArray[np.bool_] = seen["alive"]
    return seen["truncated"] if "truncated" in (seen.dtype.names or ()) else np.zeros_like(alive)


@dataclass(frozen=True)
class Team:
    """Sizes of a team's observations and actions.

    Attributes:
        agents: M, number of agents.
        observation: O, numbers in one agent's observation.
        actions: A_m, number of each agent's actions, or of numbers in its action.
        discrete: an agent chooses one of A_m actions; else its action is A_m numbers within bounds.
        state: S, numbers in the state that ``state_of`` returns.
        has_state: records have a ``state`` of their own.
    """

    agents: int
    observation: int
    actions: tuple[int, ...]
    discrete: bool
    state: int
    has_state: bool

    @property
    def most_actions(self) -> int:
        """A, the largest of ``actions``."""
        return max(self.actions)

    @classmethod
    def of(cls, spaces: Spaces) -> Team:
        """Read the sizes from an environment's spaces.

        Actions are ``MultiDiscrete [M]``, or a ``Box [M, A]`` in which the numbers that an agent does not
        have are bounded by 0 and 0.

        Raises:
            UnsupportedSpaceError: the environment shows no team, or actions are not those of its agents.
        """
        dtype, action = spaces.observation.dtype, spaces.action
        if dtype is None or dtype.names is None:
            raise UnsupportedSpaceError(
                f"{spaces.observation} is what a single agent sees; an environment with a team would be "
                'right, such as type = "mpe", id = "simple_spread"'
            )
        agents, observation = dtype["observation"].shape
        has_state = "state" in dtype.names
        state = dtype["state"].shape[0] if has_state else agents * observation
        if isinstance(action, gym.spaces.MultiDiscrete) and action.shape == (agents,):
            sizes, discrete = tuple(action.nvec.tolist()), True
        elif isinstance(action, gym.spaces.Box) and action.shape[:-1] == (agents,):
            sizes, discrete = tuple(np.count_nonzero(action.high > action.low, axis=1).tolist()), False
        else:
            raise UnsupportedSpaceError(
                f"actions of {agents} agents are MultiDiscrete with a number, or a Box with a row, for each, "
                f"not {action}"
            )
        return cls(agents, observation, sizes, discrete, state, has_state)

    def action_field(self) -> FieldSpec:
        """Describe the field ``action``: numbers from 0, ``[M]``, or the action itself, ``[M, A]``."""
        if self.discrete:
            return FieldSpec("action", np.min_scalar_type(self.most_actions - 1), (self.agents,))
        return FieldSpec("action", np.dtype(np.float32), (self.agents, self.most_actions))

    def state_of(self, seen: Records) -> npt.NDArray[np.float32]:
        """Return the state ``[..., S]`` of records ``[...]``: their own, or all observations in a row."""
        if self.has_state:
            state: npt.NDArray[Any] = seen["state"]
            return state
        return seen["observation"].reshape(*seen.shape, self.state)
