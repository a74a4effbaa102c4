"""One pass over whole episodes with one policy: their limits, returns, wins and metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_cli.roles.actor.actor import LARGEST, frame_stack
from tianji_cli.roles.policies import Policy
from tianji_cli.wire.reports import Evaluating, EvaluatorReport
from tianji_envs.core import VectorEnvironment
from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.results import bounds_of, first_fault, missing_reset
from tianji_envs.team import REWARD


@dataclass(frozen=True)
class EvaluationLimits:
    """Limits of an evaluation, since an episode of a policy that goes in circles may never end.

    Attributes:
        max_s: seconds from the first step.
        max_steps: env steps of all episodes together; None for any number.
        begins_s: seconds from the first step after which no episode begins. Begun episodes are played to
            their end, since episodes that end in time are the short ones, and their mean would be biased.
    """

    max_s: float = math.inf
    max_steps: int | None = None
    begins_s: float = math.inf


@dataclass
class Moment:
    """State of the first environment's episode.

    Attributes:
        episode: number of the episode, from 1; of the game if an episode is a part of one.
        step: env steps of the episode so far; 0 at its first observation.
        reward: reward of the last step.
        score: return of the episode so far; for a team, the team's.
        over: the last step ended the episode.
    """

    episode: int = 1
    step: int = 0
    reward: float = 0.0
    score: float = 0.0
    over: bool = False

    def advance(self, reward: float, score: float, *, begins: bool, over: bool) -> None:
        """Advance by one step, which ``begins`` an episode if it only shows a first observation."""
        if self.over:
            self.episode, self.step = self.episode + 1, 0
        elif not begins:
            self.step += 1
        self.reward, self.score, self.over = reward, score, over


class EpisodePlayer:
    """Plays whole episodes with one policy, one step of all environments a turn.

    Each environment plays a fixed share of the episodes: counting the first to end, from any environment,
    would favour short ones. If an environment has games, the player plays and counts games instead. At a
    limit, the result consists of the episodes that have ended.

    Args:
        environment: the environments; their owner closes them.
        metrics: names of the environment's metrics.

    Attributes:
        moment: state of the first environment's episode.
        returns: returns of the episodes that have ended.
        cut_off: the limit that was reached, in words; None while none was.
        is_shortened: whether fewer episodes than wanted have begun, as ``begins_s`` had passed.
    """

    def __init__(
        self,
        policy: Policy,
        environment: VectorEnvironment,
        episodes: int,
        seed: int,
        limits: EvaluationLimits = EvaluationLimits(),
        metrics: Sequence[str] = (),
    ) -> None:
        num_envs = environment.num_envs
        self._wanted = episodes
        self._limits = limits
        self._began_s: float | None = None
        self._env_steps = 0
        self._policy = policy
        self.environment = environment
        self.moment = Moment()
        self._left = np.full(num_envs, episodes // num_envs)
        self._left[: episodes % num_envs] += 1
        self._stack = frame_stack(environment)
        self._frames = environment.new_observations()
        self._reward = np.zeros(num_envs, np.float32)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)
        self._ended = np.zeros(num_envs, np.bool_)
        self._steps = np.zeros(num_envs, np.int64)  # In the present episodes.
        bounds = bounds_of(environment.observation_space, num_envs)
        self._played = np.zeros(num_envs, np.int64)  # In the present episodes or games.
        self._all_played = 0
        self._bounds = {name: one for name, one in bounds.items() if one.are_whole}
        self._running = np.zeros(num_envs, np.float64)
        self._of_agents = np.zeros((num_envs, len(environment.agents)), np.float64)
        self._all_of_agents = np.zeros(len(environment.agents), np.float64)
        self._wins = 0
        self._metrics = np.zeros(len(metrics), np.float64)
        self._names = metrics
        self.returns: list[float] = []
        self.cut_off: str | None = None
        self.is_shortened = False
        policy.begin_episodes(np.ones(num_envs, np.bool_))  # The policy may have played before.
        environment.reset(seed, self._frames)
        self._check_result()
        self._stack.push(self._frames)

    @property
    def finished(self) -> str | None:
        """The reason to stop once all episodes are over or a limit is reached."""
        if self._left.any() and self.cut_off is None:
            return None
        return f"{len(self.returns)} episodes"

    @property
    def progress(self) -> Evaluating:
        """Ended episodes, wanted episodes, env steps and seconds."""
        return Evaluating(len(self.returns), self._wanted, self._env_steps, self._seconds)

    @property
    def _seconds(self) -> float:
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    def turn(self) -> bool:
        """Step every environment once."""
        if self.finished is not None:
            return False
        if self._began_s is None:
            self._began_s = time.monotonic()
        # The step after an episode's end only shows the next one's first observation.
        played = ~self._ended
        self._played += played
        self._env_steps += int(np.count_nonzero((self._left > 0) & played))
        actions = self._policy.act_greedily(self._stack.seen)
        begins = bool(self._ended[0])
        self.environment.step(actions, self._frames, self._reward, self._terminated, self._truncated)
        self._steps += 1
        self._steps[self._ended] = 0
        self._check_result()
        # Environments whose episode ended in the last step were only reset in this one.
        self._policy.begin_episodes(self._ended)
        self._stack.forget(self._ended)
        self._stack.push(self._frames)
        np.logical_or(self._terminated, self._truncated, out=self._ended)
        self._running += self._reward
        if self.environment.agents:
            self._of_agents += self._frames[REWARD]
        over, score = self._games()
        self.moment.advance(float(self._reward[0]), float(score[0]), begins=begins, over=bool(over[0]))
        for i in np.flatnonzero(over):
            if self._left[i]:
                self._left[i] -= 1
                self._count(i, float(score[i]))
        self._running[over] = 0.0
        self._played[over] = 0
        self._of_agents[over] = 0.0
        if self._left.any():
            self._check_limits()
        return True

    def _check_result(self) -> None:
        """Reject numbers outside their space, and steps after an episode's end that begin no episode."""
        if fault := first_fault(self._frames[None], self._bounds):
            copy = fault.copy
            words = f"{fault.gave} in step {self._steps[copy]} of its episode: {fault.wanted}"
        elif found := missing_reset(self._ended, self._reward, self._terminated, self._truncated):
            copy, words = found
        else:
            return
        raise BrokenEnvironmentError(f"environment {copy} of an evaluation {words}")

    def _check_limits(self) -> None:
        if self._seconds >= self._limits.begins_s and (self._left > 1).any():
            np.minimum(self._left, 1, out=self._left)
            self._wanted, self.is_shortened = len(self.returns) + int(self._left.sum()), True
        if self._seconds >= self._limits.max_s:
            self.cut_off = f"{self._limits.max_s:g} s"
        elif self._limits.max_steps is not None and self._env_steps >= self._limits.max_steps:
            self.cut_off = f"{self._limits.max_steps:,} env steps"

    def _count(self, i: np.intp, score: float) -> None:
        """Count the episode or game that has ended in environment ``i``.

        Raises:
            BrokenEnvironmentError: the return is not finite.
        """
        if not math.isfinite(score):
            raise BrokenEnvironmentError(
                f"the return of an episode in environment {i} of an evaluation is {score}: a reward was not "
                f"finite, or beyond {LARGEST:.2g}; smaller ones would be right"
            )
        self.returns.append(score)
        self._all_played += int(self._played[i])
        self._all_of_agents += self._of_agents[i]
        if self.environment.won is not None:
            self._wins += bool(self.environment.won[i])
        if self.environment.metrics is not None:
            self._metrics += self.environment.metrics[i]

    def _games(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
        """Return the flags of games or episodes that ended with this step, and their scores, ``[N]`` each."""
        games = self.environment.games
        return (self._ended, self._running) if games is None else (games.over, games.score)

    @property
    def win_rate(self) -> float | None:
        """Share of won episodes so far; None if episodes cannot be won."""
        if self.environment.won is None or not self.returns:
            return None
        return self._wins / len(self.returns)

    @property
    def agents(self) -> dict[str, float] | None:
        """Mean return of each agent of a team so far, by name; None for a single agent."""
        if not self.environment.agents or not self.returns:
            return None
        means = self._all_of_agents / len(self.returns)
        return dict(zip(self.environment.agents, means.tolist(), strict=True))

    @property
    def metrics(self) -> dict[str, float] | None:
        """Mean of each metric so far, by name; None without metrics."""
        if not self._names or not self.returns:
            return None
        return dict(zip(self._names, (self._metrics / len(self.returns)).tolist(), strict=True))

    def report(self) -> EvaluatorReport:
        """Report returns, progress, limit, length, wins, agents and metrics so far."""
        return EvaluatorReport(
            returns=tuple(self.returns),
            progress=self.progress,
            cut_off=self.cut_off,
            win_rate=self.win_rate,
            agents=self.agents,
            metrics=self.metrics,
            length=self._all_played / len(self.returns) if self.returns else None,
        )
