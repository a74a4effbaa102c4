"""Records of a team: everything it sees after a step, in one element that travels as any observation does.

A record is one element of a structured dtype. numpy gives each of its parts as a view: ``seen["state"]`` of
an array of records ``seen [N]`` is ``[N, S]``. Agents are in the order of ``VectorEnvironment.agents``; an
agent's shorter observation is padded with zeros at its end, and its shorter list of actions with actions that
are never available.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol, runtime_checkable

import gymnasium
import numpy as np
import numpy.typing as npt

OBSERVATION: Final = "observation"
REWARD: Final = "reward"
STATE: Final = "state"
AVAILABLE: Final = "available"
ALIVE: Final = "alive"
TRUNCATED: Final = "truncated"


class TeamSpace(gymnasium.Space[npt.NDArray[Any]]):
    """Records of M agents.

    Parts of a record:

    - ``observation [M, O]`` float32: observation of each agent; zeros where it is not alive.
    - ``reward [M]`` float32: reward of each agent for the step that led here; 0 where an episode begins.
    - ``state [S]`` float32: global state, for training; left out if it is no more than all observations.
    - ``available [M, A]`` bool: actions that each agent may choose, at least one; discrete actions only.
    - ``alive [M]`` bool: whether the agent's actions count.
    - ``truncated [M]`` bool, where agents may be cut off one by one: the step that led here cut the agent
      off, and the episode goes on without it. The agent is not alive, but the record has its observation and
      the actions that it would have, because that observation still has a value. A dead agent's has none.

    The last record of a truncated episode has a value, too, for the agents that are alive in it.

    Args:
        agents: M, number of agents.
        observation: O, numbers in an observation.
        actions: A, the largest number of actions of an agent; None: actions are continuous.
        state: S, numbers in the state; 0: the state is no more than all observations.
        truncates: agents may be cut off one by one.
    """

    def __init__(
        self, agents: int, observation: int, actions: int | None, state: int = 0, *, truncates: bool = False
    ) -> None:
        parts: list[tuple[str, str, tuple[int, ...]]] = [
            (OBSERVATION, "f4", (agents, observation)),
            (REWARD, "f4", (agents,)),
        ]
        if state:
            parts.append((STATE, "f4", (state,)))
        if actions is not None:
            parts.append((AVAILABLE, "?", (agents, actions)))
        parts.append((ALIVE, "?", (agents,)))
        if truncates:
            parts.append((TRUNCATED, "?", (agents,)))
        # Aligned: torch reads views of floats only at multiples of four bytes.
        super().__init__((), np.dtype(parts, align=True))

    @property
    def is_np_flattenable(self) -> bool:
        """False: records are no arrays of numbers."""
        return False

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is one record."""
        return isinstance(x, np.ndarray | np.void) and x.dtype == self.dtype and x.shape == ()

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Raise an error: a team's records cannot be made up.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("what a team sees cannot be drawn at random")

    def __repr__(self) -> str:
        return f"TeamSpace({self.dtype})"


@runtime_checkable
class TeamTranslator(Protocol):
    """Translates between records and a team's own observations and actions, by the agents' names.

    An environment that is a translator still translates after ``close``.
    """

    def record_of(self, seen: Mapping[str, Any]) -> npt.NDArray[Any]:
        """Build a record ``[]`` of the agents' observations; agents that are not named are not alive.

        The record has no state: acting needs none.
        """

    def actions_of(self, action: npt.NDArray[Any], names: Collection[str]) -> dict[str, Any]:
        """Return the actions of the named agents, out of the team's ``[M]`` or ``[M, A]``."""
