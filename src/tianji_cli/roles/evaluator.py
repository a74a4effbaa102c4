"""The evaluator: plays greedy episodes with a saved policy, one step of all its environments a turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from tianji_cli.roles.frame_stack import frame_stack
from tianji_cli.roles.role import Role
from tianji_envs.team import REWARD

if TYPE_CHECKING:
    from tianji_envs.core import VectorEnvironment

MAX_PARALLEL: Final = 32
"""Environments stepped side by side at most; more gain little and cost memory."""


class Policy(Protocol):
    """What an evaluator asks of whoever acts, an agent or something to compare it with."""

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """Take note that the next observation of those environments, ``[N]``, is the first of an episode."""

    def act_greedily(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Choose actions ``[N, ...]``."""


class Evaluator(Role):
    """Plays whole episodes without exploration.

    Each environment plays a fixed share of the episodes: taking the first to end, whoever plays them,
    would favour short ones. Where an environment tells of games, these are what is played and counted.

    Args:
        policy: acts; it is to be judged.
        environment: N environments.
        episodes: how many to play.
        seed: of the environments.
        on_step: called after each step, to render for instance.
    """

    name = "evaluator"

    def __init__(
        self,
        policy: Policy,
        environment: VectorEnvironment,
        episodes: int,
        seed: int,
        on_step: Callable[[VectorEnvironment], None] | None = None,
    ) -> None:
        num_envs = environment.num_envs
        self._policy = policy
        self._environment = environment
        self._on_step = on_step
        self._left = np.full(num_envs, episodes // num_envs)
        self._left[: episodes % num_envs] += 1
        self._stack = frame_stack(environment)
        space = environment.observation_space
        self._frames = np.zeros((num_envs, *(space.shape or ())), space.dtype)
        self._reward = np.zeros(num_envs, np.float32)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)
        self._ended = np.zeros(num_envs, np.bool_)
        self._running = np.zeros(num_envs, np.float64)
        self._of_agents = np.zeros((num_envs, len(environment.agents)), np.float64)
        self._all_of_agents = np.zeros(len(environment.agents), np.float64)
        self._wins = 0
        self.returns: list[float] = []
        policy.begin_episodes(np.ones(num_envs, np.bool_))  # Whatever it has played before.
        environment.reset(seed, self._frames)
        self._stack.push(self._frames)

    @property
    def finished(self) -> str | None:
        """All episodes were played."""
        return None if self._left.any() else f"{len(self.returns)} episodes"

    def turn(self) -> bool:
        """Step every environment once."""
        if not self._left.any():
            return False
        actions = self._policy.act_greedily(self._stack.seen)
        self._environment.step(actions, self._frames, self._reward, self._terminated, self._truncated)
        # What ended an episode in the last step was only reset in this one.
        self._policy.begin_episodes(self._ended)
        self._stack.forget(self._ended)
        self._stack.push(self._frames)
        np.logical_or(self._terminated, self._truncated, out=self._ended)
        self._running += self._reward
        if self._environment.agents:
            self._of_agents += self._frames[REWARD]
        over, score = self._games()
        for i in np.flatnonzero(over):
            if self._left[i]:
                self._left[i] -= 1
                self._count(i, float(score[i]))
        self._running[over] = 0.0
        self._of_agents[over] = 0.0
        if self._on_step is not None:
            self._on_step(self._environment)
        return True

    def _count(self, i: np.intp, score: float) -> None:
        """Take in what environment ``i`` has played to its end."""
        self.returns.append(score)
        self._all_of_agents += self._of_agents[i]
        if self._environment.won is not None:
            self._wins += bool(self._environment.won[i])

    def _games(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
        """Where what is played has ended with this step, and how it went, ``[N]`` each."""
        games = self._environment.games
        return (self._ended, self._running) if games is None else (games.over, games.score)

    @property
    def win_rate(self) -> float | None:
        """Share of the episodes so far that were won; None where nothing is won."""
        if self._environment.won is None or not self.returns:
            return None
        return self._wins / len(self.returns)

    @property
    def agents(self) -> dict[str, float] | None:
        """Mean return so far of each agent of a team, by name; None of a single agent."""
        if not self._environment.agents or not self.returns:
            return None
        means = self._all_of_agents / len(self.returns)
        return dict(zip(self._environment.agents, means.tolist(), strict=True))

    def report(self) -> dict[str, Any]:
        """The returns so far, and what is known of wins and of each agent."""
        known = {"win_rate": self.win_rate, "agents": self.agents}
        return {"returns": self.returns} | {name: value for name, value in known.items() if value is not None}

    def close(self) -> None:
        """Close the environments."""
        self._environment.close()
