"""Environment type ``"matrix_game"``: games of two agents, small enough to know their optimum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import MultiDiscrete

from tianji_envs.core import Array, EnvironmentFactory, VectorEnvironment
from tianji_envs.errors import BrokenEnvironmentError, UnknownEnvironmentError, WrongOptionError
from tianji_envs.options import nearest_or_all, read_typed
from tianji_envs.team import ALIVE, AVAILABLE, OBSERVATION, REWARD, STATE, TeamSpace

IDS: Final = ("climbing", "penalty", "prisoners_dilemma", "two_step")

AGENTS: Final = ("agent_0", "agent_1")


@dataclass(frozen=True)
class MatrixGameOptions:
    """The keys of ``environment.options``.

    Attributes:
        penalty: k of the penalty game, for meeting in opposite corners; at most 0.
    """

    penalty: float = -10.0


@dataclass(frozen=True)
class Game:
    """States of two agents; the first is where an episode begins.

    Attributes:
        payoffs: payoffs of both agents, by state and the actions of both: ``[S, A, A, 2]`` float32.
        follows: next state, ``[S, A, A]``; S: the episode ends.
        is_common: both agents get the same payoff, and the team's reward is that payoff once.
    """

    payoffs: npt.NDArray[np.float32]
    follows: npt.NDArray[np.int64]
    is_common: bool


def _common(*payoffs: list[list[float]], follows: Array | None = None) -> Game:
    each = np.array(payoffs, np.float32)
    then = np.full(each.shape, len(each)) if follows is None else follows
    return Game(np.repeat(each[..., None], 2, axis=-1), then, is_common=True)


def find_game(id: str, options: MatrixGameOptions | None = None) -> Game:  # noqa: A002 - the config's word for it
    """Make the tables of a game.

    - ``two_step`` (Rashid et al. 2018, section 5): agent 0 chooses which game both play next: one that
      always gives 7, or one whose optimum of 8 they miss if either errs. Optimum: 8.
    - ``climbing`` and ``penalty`` (Claus and Boutilier 1998): the optimum lies beside costly mistakes.
      Optimum: 11 and 10.
    - ``prisoners_dilemma``: each has a reward of its own, and gets more by betraying.
      Both betray in equilibrium, for 1 each; best for the team is 3 each.

    Raises:
        UnknownEnvironmentError: no such game; names the nearest.
    """
    match id:
        case "two_step":
            follows = np.full((3, 2, 2), 3)
            follows[0] = [[1, 1], [2, 2]]
            return _common([[0, 0], [0, 0]], [[7, 7], [7, 7]], [[0, 1], [1, 8]], follows=follows)
        case "climbing":
            return _common([[11, -30, 0], [-30, 7, 6], [0, 0, 5]])
        case "penalty":
            k = (options or MatrixGameOptions()).penalty
            return _common([[10, 0, k], [0, 2, 0], [k, 0, 10]])
        case "prisoners_dilemma":
            first = np.array([[3, 0], [5, 1]], np.float32)
            return Game(
                np.stack([first, first.T], axis=-1)[None], np.ones((1, 2, 2), np.int64), is_common=False
            )
    raise UnknownEnvironmentError(f"no matrix game {id!r}{nearest_or_all(id, IDS)}")


class MatrixGameFactory(EnvironmentFactory):
    """Makes matrix games."""

    makes_teams: ClassVar[bool | None] = True

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Look for the game."""
        find_game(id)

    def check_options(self, id: str, options: Mapping[str, Any]) -> None:  # noqa: A002 - the config's word for it
        """Check names and values, and whether the game has options."""
        _read_options(id, options)

    def make(
        self,
        id: str,  # noqa: A002 - the config's word for it
        num_envs: int,
        max_episode_steps: int | None = None,
        options: Mapping[str, Any] | None = None,
        render: bool = False,  # noqa: ARG002 - there is nothing to draw
        *,
        evaluation: bool = False,  # noqa: ARG002 - episodes are whole, and rewards the game's own
        threads: int = 1,  # noqa: ARG002 - all are stepped by the caller's thread
    ) -> VectorEnvironment:
        """Build N games; ``MatrixGameOptions`` lists the options."""
        self.check_id(id)
        return MatrixGameVectorEnvironment(
            find_game(id, _read_options(id, options)), num_envs, max_episode_steps
        )


def _read_options(id: str, options: Mapping[str, Any] | None) -> MatrixGameOptions:  # noqa: A002
    if options and id != "penalty":
        name = next(iter(options))
        raise WrongOptionError(
            name, f"the game {id!r} has no option {name!r}; only the game 'penalty' has one, 'penalty'"
        )
    return read_typed(
        MatrixGameOptions, options, "a matrix game", lambda _, penalty: "" if penalty <= 0 else "at most 0"
    )


class MatrixGameVectorEnvironment(VectorEnvironment):
    """N copies of one game; agents see the state, one-hot, and zeros after the end.

    Args:
        max_episode_steps: truncate episodes after so many steps; None: they end as the game says.
    """

    def __init__(self, game: Game, num_envs: int, max_episode_steps: int | None = None) -> None:
        states, choices, *_ = game.payoffs.shape
        self.num_envs = num_envs
        self.agents = AGENTS
        self.observation_space = TeamSpace(len(AGENTS), states, choices, state=states)
        self.action_space = MultiDiscrete([choices] * len(AGENTS))
        self._game = game
        self._one_hot = np.eye(states + 1, states, dtype=np.float32)
        self._limit = np.inf if max_episode_steps is None else max_episode_steps
        self._state = np.zeros(num_envs, np.int64)
        self._steps = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(self, seed: int, observation: Array) -> None:  # noqa: ARG002 - nothing is left to chance
        """Begin an episode in every environment."""
        self._state[...] = self._steps[...] = self._ended[...] = 0
        self._show(observation)
        observation[REWARD] = 0

    def step(
        self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array
    ) -> None:
        """Act in, or begin anew, every environment."""
        game, fresh = self._game, self._ended
        # An environment that begins anew may be in the state past the last; its payoffs count nothing.
        played = (np.where(fresh, 0, self._state), *actions.T)
        paid = np.where(fresh[:, None], np.float32(0), game.payoffs[played])
        self._state[...] = np.where(fresh, 0, game.follows[played])
        self._steps[...] = np.where(fresh, 0, self._steps + 1)
        self._show(observation)
        observation[REWARD] = paid
        reward[...] = paid[:, 0] if game.is_common else paid.sum(axis=1)
        terminated[...] = self._state == len(game.payoffs)
        truncated[...] = self._steps >= self._limit
        np.logical_or(terminated, truncated, out=self._ended)

    def _show(self, observation: Array) -> None:
        seen = self._one_hot[self._state]
        observation[STATE] = seen
        observation[OBSERVATION] = seen[:, None]
        observation[AVAILABLE] = True
        observation[ALIVE] = True

    def render(self) -> npt.NDArray[np.uint8]:
        """Raise an error: a matrix game has no picture."""
        raise BrokenEnvironmentError("a matrix game draws nothing")

    def close(self) -> None:
        """Do nothing: there is nothing to free."""
