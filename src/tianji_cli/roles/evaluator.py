"""The evaluator: plays whole episodes with saved or published policies, and one schedule says when.

``AtTheEnd`` plays once with one policy: the last evaluation of a run, and `tianji eval`. ``WhileTraining``
evaluates the newest policy while others train. It reads policies from the slots that actors read, so no
process waits for it. It keeps the best policy so far, and ends the run when a mean return satisfies a stop
rule. If the config asks for films, it then plays a few more episodes with the same policy, in a rendered
environment.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from tianji_cli.config.schema import PeriodicEvaluation, Stop
from tianji_cli.files.rundir import steps_name
from tianji_cli.plan.graph import EXAMINER
from tianji_cli.roles.episodes import EpisodePlayer, EvaluationLimits
from tianji_cli.roles.filming import Films
from tianji_cli.roles.role import Role, rejected_by
from tianji_cli.wire.parameters import PublishedPolicy
from tianji_cli.wire.reports import (
    Evaluation,
    EvaluatorReport,
    Examined,
    ExaminerReport,
    RoleReport,
)
from tianji_envs.core import VectorEnvironment
from tianji_transports.core import Transport

if TYPE_CHECKING:  # These import torch, which the root does without.
    from tianji_algos.core import Agent
    from tianji_cli.files.checkpoint import BestWriter

Floats = npt.NDArray[np.float32]

LEAST_S: Final = 0.25
"""Least seconds between the starts of two evaluations, so that each is in a report of its own."""
REPORTED: Final = 8
"""Most evaluations in a report: so many may end before the next report."""


class Schedule(ABC):
    """Decides when an evaluator plays, and with which policy.

    Attributes:
        role: name of the role that it makes of an evaluator.
    """

    role: str

    @property
    @abstractmethod
    def finished(self) -> str | None:
        """The reason once the evaluator ends its process or the run; None before."""

    @abstractmethod
    def next(self) -> EpisodePlayer | Films | None:
        """Begin an evaluation or a film; returns None if it is not time for one."""

    def ended(self) -> None:  # noqa: B027 - one evaluation needs no record
        """Record the evaluation that has ended."""

    def wind_down(self) -> None:  # noqa: B027 - only evaluations beside a training are given up
        """Give up the present evaluation."""

    @abstractmethod
    def report(self) -> RoleReport:
        """Report results and progress."""

    @abstractmethod
    def close(self) -> None:
        """Close the environments."""


class Evaluator(Role):
    """Plays when its schedule says, one step of its environments a turn."""

    def __init__(self, schedule: Schedule) -> None:
        self.name = schedule.role
        self._schedule = schedule
        self._playing: EpisodePlayer | Films | None = None
        self._is_over = False

    @property
    def finished(self) -> str | None:
        """The reason to stop, by the schedule."""
        return self._schedule.finished

    def turn(self) -> bool:
        """Step the environments once; first begin to play if it is time for it."""
        if self._is_over or self.finished is not None:
            return False
        if self._playing is None:
            self._playing = self._schedule.next()
        if self._playing is None:
            return False
        self._playing.turn()
        if self._playing.finished is not None:
            self._playing = None
            self._schedule.ended()
        return True

    def wind_down(self) -> None:
        """Give up the present evaluation or film: training is over."""
        self._is_over = True
        self._playing = None
        self._schedule.wind_down()

    def report(self) -> RoleReport:
        """Report as the schedule does."""
        return self._schedule.report()

    def close(self) -> None:
        """Close the environments."""
        self._schedule.close()


class AtTheEnd(Schedule):
    """Plays the episodes of one policy, then some of the policy as it acts in training.

    Args:
        player: plays the policy's episodes.
        limits: limits of both together.
        follow: builds a player of the same policy as it acts in training, within the remaining limits.

    Attributes:
        player: plays the policy's episodes.
    """

    role = "evaluator"

    def __init__(
        self,
        player: EpisodePlayer,
        limits: EvaluationLimits,
        follow: Callable[[EvaluationLimits], EpisodePlayer] | None = None,
    ) -> None:
        self.player = player
        self._limits = limits
        self._follow = follow
        self._follower: EpisodePlayer | None = None

    @property
    def finished(self) -> str | None:
        """The reason to stop once all episodes are over or a limit is reached."""
        return None if self._follows else self.player.finished

    @property
    def _follows(self) -> bool:
        """Whether the episodes of the policy as it acts in training are still to be played."""
        if self._follow is None or self.player.cut_off is not None or self.player.is_shortened:
            return False
        return self._follower is None or self._follower.finished is None

    def next(self) -> EpisodePlayer | Films | None:
        """Return the player, or a new one of the policy as it acts in training."""
        if self.player.finished is None:
            return self.player
        assert self._follow is not None
        progress, steps = self.player.progress, self._limits.max_steps
        left = None if steps is None else max(1, steps - progress.env_steps)
        self._follower = self._follow(EvaluationLimits(self._limits.max_s - progress.seconds, left))
        return self._follower

    def report(self) -> EvaluatorReport:
        """Report the player's results, and the returns of the policy as it acts in training."""
        sampled = () if self._follower is None else tuple(self._follower.returns)
        return replace(self.player.report(), sampled=sampled)

    def close(self) -> None:
        """Close the environments of both players."""
        self.player.environment.close()
        if self._follower is not None:
            self._follower.environment.close()


class WhileTraining(Schedule):
    """Evaluates the groups' policies in turn, while they train.

    Args:
        slots: slots of the groups' policies.
        agent: the agent that plays; it gets new parameters for each evaluation.
        player: begins an evaluation, always in the same environments.
        environment: these environments; closed with the schedule.
        best: keeps the best policy.
        parameters: parameter count of the network.
        films: films the evaluated policies; None if the config asks for no films.
    """

    role = EXAMINER

    def __init__(  # noqa: PLR0913 - what plays, when, and where the best of it goes
        self,
        transport: Transport,
        slots: Sequence[str],
        *,
        agent: Agent,
        player: Callable[[], EpisodePlayer],
        environment: VectorEnvironment,
        pace: PeriodicEvaluation,
        stop: Stop,
        best: BestWriter,
        parameters: int,
        films: Films | None = None,
    ) -> None:
        self._transport = transport
        self._slots = slots
        self._agent = agent
        self._environment = environment
        self._begin_evaluation = player
        self._pace = pace
        self._stop = stop
        self._best = best
        self._films = films
        self._parameters = np.zeros(parameters, np.float32)
        self._versions = [-1] * len(slots)
        self._group = len(slots) - 1
        self._env_steps = 0
        self._next_steps: int | None = None
        self._next_s: float | None = None
        self._began_s = -math.inf
        self._player: EpisodePlayer | None = None
        self._number = 0
        self._newest: deque[Examined] = deque(maxlen=REPORTED)
        self._finished: str | None = None

    @property
    def finished(self) -> str | None:
        """The stop rule that holds, once it does."""
        return self._finished

    def next(self) -> EpisodePlayer | Films | None:
        """Return a film that was begun, or begin an evaluation if it is time for one."""
        if self._films is not None and self._films.finished is None:
            return self._films
        self._player = self._begin()
        return self._player

    def ended(self) -> None:
        """Record the evaluation that has ended, and film its policy."""
        if self._player is None:
            return  # A film has ended.
        self._note(self._player.report())
        self._player = None
        if self._films is not None and self._finished is None:
            name = steps_name(self._env_steps) + (f"-group-{self._group}" if self._group else "")
            self._films.begin(name, self._parameters, self._env_steps)

    def wind_down(self) -> None:
        """Give up the present evaluation or film: training is over."""
        self._player = None
        if self._films is not None:
            self._films.discard()

    def report(self) -> ExaminerReport:
        """Report the newest evaluations, the best mean, and the progress of the present evaluation."""
        return ExaminerReport(
            rejected={"endpoint": rejected_by(self._transport)},
            newest=tuple(self._newest),
            best_mean=self._best.mean,
            progress=None if self._player is None else self._player.progress,
            film_failure=None if self._films is None else self._films.failure,
        )

    def close(self) -> None:
        """Close the environments."""
        self._environment.close()
        if self._films is not None:
            self._films.close()

    def _begin(self) -> EpisodePlayer | None:
        """Begin an evaluation, if one is due, with the next group in turn that has a new policy."""
        now = time.monotonic()
        if now - self._began_s < LEAST_S:
            return None
        groups = len(self._slots)
        claims = []
        for group in ((self._group + 1 + i) % groups for i in range(groups)):
            claim = self._transport.latest(self._slots[group], newer_than=self._versions[group])
            if claim is not None:
                claims.append((group, claim, PublishedPolicy(claim.view())))
        # The group that is furthest shows the job's progress; a slow group still has its turns.
        furthest = max((policy.env_steps for _, _, policy in claims), default=0)
        is_due = bool(claims) and self._is_due(now, furthest)
        if is_due:
            self._set_next(now, furthest)
            self._began_s = now
            self._group, claim, policy = claims[0]
            self._versions[self._group], self._env_steps = claim.version, policy.env_steps
            self._parameters[:] = policy.parameters
        for _, claim, _ in claims:
            claim.release()
        if not is_due:
            return None
        self._agent.adopt(self._parameters)
        self._agent.schedule(self._env_steps)
        return self._begin_evaluation()

    def _is_due(self, now: float, env_steps: int) -> bool:
        if self._next_steps is None:  # The first policy: time and steps count from it.
            self._set_next(now, env_steps)
        steps, seconds = self._pace.every_env_steps, self._pace.every_s
        assert self._next_steps is not None
        assert self._next_s is not None
        by_steps = steps is not None and env_steps >= self._next_steps
        return by_steps or (seconds is not None and now >= self._next_s)

    def _set_next(self, now: float, env_steps: int) -> None:
        self._next_steps = env_steps + (self._pace.every_env_steps or 0)
        self._next_s = now + (self._pace.every_s or 0.0)

    def _note(self, report: EvaluatorReport) -> None:
        """Record an evaluation; one that a limit has cut off is neither the best nor ends the run."""
        evaluation = Evaluation.of(report, self._pace.episodes)
        mean, is_whole = evaluation.mean, evaluation.cut_off is None
        is_best = is_whole and math.isfinite(mean) and (self._best.mean is None or mean > self._best.mean)
        version = self._versions[self._group]
        if is_best:
            with self._transport.undisturbed():
                self._best.write(self._parameters, mean, self._env_steps, version)
        self._number += 1
        self._newest.append(
            Examined(self._number, self._group, version, self._env_steps, evaluation, is_best)
        )
        reason = self._stop.reached({"evaluation": mean}).get("evaluation") if is_whole else None
        if reason is not None:
            self._finished = f"{reason} in group {self._group}" if len(self._slots) > 1 else reason
