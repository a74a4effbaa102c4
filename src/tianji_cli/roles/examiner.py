"""The examiner: evaluates the newest policy while others train, one step of its environments a turn.

The examiner reads policies from the slots that actors read, so no process waits for it. It keeps the best
policy so far, and ends the run when a mean return satisfies a stop rule. If the config asks for films, the
examiner then plays a few more episodes with the same policy, in a rendered environment.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from tianji_cli.config.schema import PeriodicEvaluation, Stop
from tianji_cli.files.rundir import steps_name
from tianji_cli.roles.evaluator import Evaluator
from tianji_cli.roles.filming import Films
from tianji_cli.roles.role import Role, rejected_by
from tianji_cli.wire.parameters import PublishedPolicy
from tianji_cli.wire.reports import Evaluating, Evaluation, EvaluatorReport, Examined, ExaminerReport
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


class Examiner(Role):
    """Evaluates the groups' policies in turn.

    Args:
        slots: slots of the groups' policies.
        agent: the agent that plays; it gets new parameters for each evaluation.
        evaluator: begins an evaluation, always in the same environments.
        environment: these environments; closed with the role.
        best: keeps the best policy.
        parameters: parameter count of the network.
        films: films the evaluated policies; None if the config asks for no films.
    """

    name = "examiner"

    def __init__(  # noqa: PLR0913 - what plays, when, and where the best of it goes
        self,
        transport: Transport,
        slots: Sequence[str],
        *,
        agent: Agent,
        evaluator: Callable[[], Evaluator],
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
        self._begin_evaluation = evaluator
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
        self._evaluator: Evaluator | None = None
        self._number = 0
        self._newest: deque[Examined] = deque(maxlen=REPORTED)
        self._finished: str | None = None
        self._is_over = False

    @property
    def finished(self) -> str | None:
        """The stop rule that holds, once it does."""
        return self._finished

    def turn(self) -> bool:
        """Step the environments once, or begin an evaluation if it is time for one."""
        if self._is_over or self._finished is not None:
            return False
        if self._films is not None and self._films.is_filming:
            self._films.turn()
            return True
        if self._evaluator is None:
            return self._begin()
        self._evaluator.turn()
        if self._evaluator.finished is not None:
            self._note(self._evaluator.report())
            self._evaluator = None
            if self._films is not None and self._finished is None:
                name = steps_name(self._env_steps) + (f"-group-{self._group}" if self._group else "")
                self._films.begin(name, self._parameters, self._env_steps)
        return True

    def wind_down(self) -> None:
        """Give up the present evaluation or film: training is over."""
        self._is_over = True
        self._evaluator = None
        if self._films is not None:
            self._films.discard()

    def report(self) -> ExaminerReport:
        """Report the newest evaluations, the best mean, and the progress of the present evaluation."""
        return ExaminerReport(
            rejected={"endpoint": rejected_by(self._transport)},
            newest=tuple(self._newest),
            best_mean=self._best.mean,
            progress=self._progress,
            film_failure=None if self._films is None else self._films.failure,
        )

    def close(self) -> None:
        """Close the environments."""
        self._environment.close()
        if self._films is not None:
            self._films.close()

    @property
    def _progress(self) -> Evaluating | None:
        return None if self._evaluator is None else self._evaluator.progress

    def _begin(self) -> bool:
        """Begin an evaluation, if one is due, with the next group in turn that has a new policy."""
        now = time.monotonic()
        if now - self._began_s < LEAST_S:
            return False
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
        if is_due:
            self._agent.adopt(self._parameters)
            self._agent.schedule(self._env_steps)
            self._evaluator = self._begin_evaluation()
        return is_due

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
