"""The evaluator: plays greedy episodes with a saved policy, one step of all its environments a turn.

Untrained policies are played in the same way, to compare a trained one with.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from tianji_cli.errors import UsageError
from tianji_cli.roles.actor.actor import LARGEST, frame_stack
from tianji_cli.roles.role import Role
from tianji_cli.wire.reports import Evaluating, EvaluatorReport
from tianji_envs.core import VectorEnvironment, derive_seed
from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.results import bounds_of, first_fault, missing_reset
from tianji_envs.team import AVAILABLE, REWARD

if TYPE_CHECKING:
    from tianji_algos.core import Agent
    from tianji_algos.fields import FieldSpec
    from tianji_envs.core import VectorEnvironment


SAMPLED: Final = 10
"""Episodes that are played on as in training, where ten times as many are played greedily."""
MAX_PARALLEL: Final = 32
"""Environments stepped side by side at most; more gain little and cost memory."""


class Policy(Protocol):
    """Plays: an agent, or a baseline to compare it with."""

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """Reset memory where (``[N]``) the next observation is the first of an episode."""

    def act_greedily(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Choose actions ``[N, ...]``."""


@dataclass(frozen=True)
class EvaluationLimits:
    """How long an evaluation may take: an episode of a policy that goes in circles may never end.

    Attributes:
        max_s: seconds from the first step.
        max_steps: env steps of all episodes together; None for any number.
        begins_s: seconds from the first step after which no episode is begun: those that were are played to
            their end, since the mean of those that end in time would be that of short ones.
    """

    max_s: float = math.inf
    max_steps: int | None = None
    begins_s: float = math.inf


@dataclass
class Moment:
    """Where the first environment is.

    Attributes:
        episode: counted from 1; a game where an episode is less.
        step: env steps of it so far; 0 where its first observation is shown.
        reward: of the last step.
        score: return of the episode so far; a team's, of a team.
        over: the step ended the episode.
    """

    episode: int = 1
    step: int = 0
    reward: float = 0.0
    score: float = 0.0
    over: bool = False

    def advance(self, reward: float, score: float, *, begins: bool, over: bool) -> None:
        """Go on by one step; it ``begins`` if it only shows a first observation."""
        if self.over:
            self.episode, self.step = self.episode + 1, 0
        elif not begins:
            self.step += 1
        self.reward, self.score, self.over = reward, score, over


class Evaluator(Role):
    """Plays whole episodes without exploration.

    Each environment plays a fixed share of the episodes: taking the first to end, whichever environment plays
    them, would favour short ones. Where an environment has games, these are played and counted.
    At a limit the episodes that have ended are the result, and the others are left out.

    Args:
        metrics: names of those that the environment has.
        follow: builds what plays on once all episodes are played, within the seconds that are left: the same
            policy as it acts in training.

    Attributes:
        environment: the environments.
        moment: where the first of them is.
        returns: of the episodes that have ended.
        sampled: likewise, of the policy as it acts in training.
        cut_off: the limit that was reached, in words; None as long as none was.
    """

    name = "evaluator"

    def __init__(
        self,
        policy: Policy,
        environment: VectorEnvironment,
        episodes: int,
        seed: int,
        limits: EvaluationLimits = EvaluationLimits(),
        metrics: Sequence[str] = (),
        follow: Callable[[EvaluationLimits], Evaluator] | None = None,
    ) -> None:
        num_envs = environment.num_envs
        self._follow = follow
        self._follower: Evaluator | None = None
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
        self._steps = np.zeros(num_envs, np.int64)  # Of their episodes.
        bounds = bounds_of(environment.observation_space, num_envs)
        self._played = np.zeros(num_envs, np.int64)  # Of their episodes, or games.
        self._all_played = 0
        self._bounds = {name: one for name, one in bounds.items() if one.are_whole}
        self._running = np.zeros(num_envs, np.float64)
        self._of_agents = np.zeros((num_envs, len(environment.agents)), np.float64)
        self._all_of_agents = np.zeros(len(environment.agents), np.float64)
        self._wins = 0
        self._metrics = np.zeros(len(metrics), np.float64)
        self._names = metrics
        self.returns: list[float] = []
        self.sampled: list[float] = []
        self.cut_off: str | None = None
        policy.begin_episodes(np.ones(num_envs, np.bool_))  # It may have played before.
        environment.reset(seed, self._frames)
        self._check_result()
        self._stack.push(self._frames)

    @property
    def finished(self) -> str | None:
        """All episodes were played, or a limit was reached."""
        if self._plays or self._plays_on:
            return None
        return f"{len(self.returns)} episodes"

    @property
    def _plays(self) -> bool:
        return bool(self._left.any()) and self.cut_off is None

    @property
    def _plays_on(self) -> bool:
        """Whether all episodes were played, and those of the policy as it acts in training were not."""
        if self._follow is None or self.cut_off is not None:
            return False
        return self._follower is None or self._follower.finished is None

    @property
    def progress(self) -> Evaluating:
        """Episodes that have ended, of how many, env steps of all, seconds."""
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
        if not self._plays:
            return self._play_on()
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
        # What ended an episode in the last step was only reset in this one.
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
        """Refuse numbers that no space has, and steps that begin no episode where they are to."""
        if fault := first_fault(self._frames[None], self._bounds):
            copy = fault.copy
            words = f"{fault.gave} in step {self._steps[copy]} of its episode: {fault.wanted}"
        elif found := missing_reset(self._ended, self._reward, self._terminated, self._truncated):
            copy, words = found
        else:
            return
        raise BrokenEnvironmentError(f"environment {copy} of an evaluation {words}")

    def _play_on(self) -> bool:
        """Step every environment of what plays on, which is built first."""
        if self._follower is None:
            assert self._follow is not None
            steps = self._limits.max_steps
            left = None if steps is None else max(1, steps - self._env_steps)
            self._follower = self._follow(EvaluationLimits(self._limits.max_s - self._seconds, left))
            self.sampled = self._follower.returns
        return self._follower.turn()

    def _check_limits(self) -> None:
        if self._seconds >= self._limits.begins_s and (self._left > 1).any():
            np.minimum(self._left, 1, out=self._left)
            self._wanted, self._follow = len(self.returns) + int(self._left.sum()), None
        if self._seconds >= self._limits.max_s:
            self.cut_off = f"{self._limits.max_s:g} s"
        elif self._limits.max_steps is not None and self._env_steps >= self._limits.max_steps:
            self.cut_off = f"{self._limits.max_steps:,} env steps"

    def _count(self, i: np.intp, score: float) -> None:
        """Count the episode that environment ``i`` has ended.

        Raises:
            BrokenEnvironmentError: its return is not finite.
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
        """Environments whose game or episode ended with this step, and its score, ``[N]`` each."""
        games = self.environment.games
        return (self._ended, self._running) if games is None else (games.over, games.score)

    @property
    def win_rate(self) -> float | None:
        """Share of the episodes so far that were won; None where nothing is won."""
        if self.environment.won is None or not self.returns:
            return None
        return self._wins / len(self.returns)

    @property
    def agents(self) -> dict[str, float] | None:
        """Mean return so far of each agent of a team, by name; None of a single agent."""
        if not self.environment.agents or not self.returns:
            return None
        means = self._all_of_agents / len(self.returns)
        return dict(zip(self.environment.agents, means.tolist(), strict=True))

    @property
    def metrics(self) -> dict[str, float] | None:
        """Mean so far of each metric, by name; None where there are none."""
        if not self._names or not self.returns:
            return None
        return dict(zip(self._names, (self._metrics / len(self.returns)).tolist(), strict=True))

    def report(self) -> EvaluatorReport:
        """The returns so far, the progress, and what is known of limit, length, wins, agents and metrics."""
        return EvaluatorReport(
            returns=tuple(self.returns),
            progress=self.progress,
            cut_off=self.cut_off,
            win_rate=self.win_rate,
            agents=self.agents,
            metrics=self.metrics,
            sampled=tuple(self.sampled),
            length=self._all_played / len(self.returns) if self.returns else None,
        )

    def close(self) -> None:
        """Close the environments."""
        self.environment.close()
        if self._follower is not None:
            self._follower.close()


Array = npt.NDArray[Any]


class ExploringPolicy:
    """Plays as an agent does in training: by samples of its policy, or with its share of random actions.

    Args:
        fields: that the agent records; nobody reads them here.
    """

    def __init__(self, agent: Agent, fields: Sequence[FieldSpec], num_envs: int) -> None:
        self._agent = agent
        self._row = {field.name: np.zeros((num_envs, *field.shape), field.dtype) for field in fields}

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """Let the agent forget earlier episodes."""
        self._agent.begin_episodes(where)

    def act_greedily(self, observation: Array) -> Array:
        """Choose actions ``[N, ...]`` as in training, which is not greedily."""
        return self._agent.act(observation, self._row)


PolicyName = Literal["trained", "sampled", "random", "heuristic"]
POLICIES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)
BASELINES: Final[tuple[PolicyName, ...]] = ("random", "heuristic")
"""Those of them without training."""


class RandomPolicy:
    """Draws uniformly from the actions; those of a team, from the ones that each agent may choose.

    Args:
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
    """Acts as an environment's own heuristic does."""

    def __init__(self, heuristic: Callable[[Array], Array]) -> None:
        self._heuristic = heuristic

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """It remembers nothing."""

    def act_greedily(self, observation: Array) -> Array:
        """Choose actions ``[N, ...]``."""
        return self._heuristic(observation)


def baseline(name: PolicyName, environment: VectorEnvironment, seed: int) -> RandomPolicy | HeuristicPolicy:
    """Find a baseline for an environment.

    Raises:
        UsageError: the environment has no heuristic.
    """
    if name == "random":
        return RandomPolicy(environment, seed)
    if environment.heuristic is None:
        raise UsageError("this environment has no heuristic to play by; --policy random would be right")
    return HeuristicPolicy(environment.heuristic)
