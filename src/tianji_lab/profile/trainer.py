"""Runs short trainings of one config with different splits, all from one warm fork server.

A training goes on until it has learnt for some seconds; the config's stop rules do not count. Its root runs
in this process, so nothing is imported twice, and learning begins after about a second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Self

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import RunFailed
from tianji_cli.files.directories import temporary_directory
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.files.traces import TracePlace, asked_for
from tianji_cli.launch.node import LocalNode
from tianji_cli.plan.plan import make_plan
from tianji_cli.root.session import RunRequest, job_to_build, run_session
from tianji_cli.runs.timeline.timeline import Timeline, read_timeline
from tianji_cli.signals import Interruption
from tianji_cli.telemetry.progress import say
from tianji_cli.telemetry.snapshot import Snapshot
from tianji_cli.wire.reports import LearnerReport
from tianji_lab.training import TRAINS_ONLY

SETTLES_S: Final = 0.6
"""Seconds after the first update that do not count: queues fill."""
LEAST_CYCLES: Final = 3
"""Minimum rollouts, or fragments of a replay, of a measurement, unless they take ``ENOUGH_S``."""
ENOUGH_S: Final = 30.0
PATIENCE_S: Final = 120.0
"""Maximum seconds of a training to its first update, and from there to its end."""
SLOW: Final = "training.warmup_steps, training.rollout_steps or distribution.actor.send_size may be smaller"
TO_MEASURE: Final = (
    "distribution.hosts=1",
    "distribution.group_hosts=[]",
    *(f"distribution.{role}.hosts=[]" for role in ("actor", "learner", "buffer")),
    "experiment.stop={ wall_s = 1e6 }",
    "experiment.thresholds=[]",
    "experiment.track=[]",
    *TRAINS_ONLY,
    "experiment.checkpoint_every_s=1e9",
)


@dataclass(frozen=True)
class Trained:
    """Figures of a short training.

    Attributes:
        steps_per_s: env steps received a second, over all groups.
        uses_per_s: sample uses a second for which steps were received.
        learner: counters of the learners at the end.
        timeline: trace of the roles; None if the training was not traced.
    """

    steps_per_s: float
    uses_per_s: float
    learner: LearnerReport
    timeline: Timeline | None = None


class Trainer:
    """Runs short trainings; owns the fork server, and a temporary directory for the runs.

    Args:
        overrides: the user's ``SECTION.KEY=VALUE`` settings.

    Attributes:
        job: the config with them.
        fragment_bytes: size of a fragment.

    Raises:
        UsageError: environment or model cannot be built.
    """

    def __init__(self, config: str, overrides: Sequence[str]) -> None:
        self.config, self.overrides = config, tuple(overrides)
        self.job = load_config(config, overrides)
        with ExitStack() as stack:
            self._place = stack.enter_context(temporary_directory())
            self._node = stack.enter_context(LocalNode())
            short = self._load(())
            self._node.build_once(job_to_build(short, make_plan(short), self._place), say)
            self.fragment_bytes = self._node.built.fragment_bytes
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def train(self, settings: Sequence[str], seconds: float, *, traced: bool = False) -> Trained:
        """Train with a split until it has learnt for some seconds.

        Args:
            settings: that give the config the split.
            seconds: that count.
            traced: trace the roles in these seconds, which costs a few per cent of their speed.

        Raises:
            RunFailed: the training failed, or was too slow to be measured.
            Interruption: the user has stopped the training.
        """
        job = self._load(settings)
        run = RunDirectory.create(job.experiment.name, self._place)
        with ExitStack() as stack:
            window = _Window(run, seconds, stack if traced else None)
            request = RunRequest(job, run, quiet=True, node=self._node, enough=window.note)
            summary = run_session(request).summary
            if summary.status == "stopped":
                raise Interruption
            if summary.status == "failed":
                raise RunFailed(f"a short training failed, so there are no figures: {summary.reason}")
            if summary.lost or summary.unaccounted:
                raise RunFailed("a short training lost samples, so there are no figures")
            steps_per_s, uses_per_s = window.rates()
            of_steps = steps_per_s * summary.learner.rho
            # Steps are counted together with the time; uses depend on the moment of the report. Where no
            # limiter holds them together, uses beyond those of the received samples do not count.
            uses_per_s = of_steps if is_held(job) else min(uses_per_s, of_steps)
            return Trained(steps_per_s, uses_per_s, summary.learner, window.read_timeline())

    def _load(self, settings: Sequence[str]) -> JobConfig:
        """Load the config with a split and without ``init_from``, which does not change the speed.

        Only mpiexec can start the ranks of mpi, so shm replaces it.
        """
        in_place_of_mpi = ["distribution.transport=shm"] * (self.job.distribution.transport.local == "mpi")
        job = load_config(self.config, [*self.overrides, *TO_MEASURE, *in_place_of_mpi, *settings])
        begun = job.experiment.model_copy(update={"init_from": None})
        return job.model_copy(update={"experiment": begun})


def is_held(job: JobConfig) -> bool:
    """Whether sample uses stay at ``rho`` for each env step."""
    return not job.learns_from_replay or job.distribution.balance == "held"


class _Window:
    """The part of a training that counts.

    Args:
        trace: closes the trace; None traces nothing.
    """

    def __init__(self, run: RunDirectory, seconds: float, trace: ExitStack | None) -> None:
        self._run, self._seconds, self._trace = run, seconds, trace
        self._place: TracePlace | None = None
        self._began_s = time.monotonic()
        self._learnt_s: float | None = None
        self._points: list[tuple[float, int, int]] = []

    def note(self, snapshot: Snapshot) -> str | None:
        """Note the newest counters; returns a reason to end the training once there are enough."""
        now, learner = time.monotonic(), snapshot.learner
        if now > (self._learnt_s or self._began_s) + PATIENCE_S:
            return "too slow"
        if not learner.updates:
            return None
        self._learnt_s = self._learnt_s or now
        if now < self._learnt_s + SETTLES_S:
            return None
        # The learner notes the time together with the steps, so both are exact.
        if not self._points or learner.env_steps > self._points[-1][1]:
            self._points.append((learner.train_s, learner.env_steps, learner.consumed))
        if len(self._points) < 2:
            return None
        if self._trace is not None and self._place is None:
            cycle_s = self._points[1][0] - self._points[0][0]
            seconds = min(max(self._seconds, LEAST_CYCLES * cycle_s), ENOUGH_S)
            self._place = self._trace.enter_context(asked_for(self._run, seconds))
        if self._place is not None:
            return None if self._place.is_there and self._place.read_result() is None else "traced"
        is_whole = len(self._points) > LEAST_CYCLES or now > self._learnt_s + ENOUGH_S
        return "measured" if is_whole and self._lasted_s >= self._seconds else None

    @property
    def _lasted_s(self) -> float:
        return self._points[-1][0] - self._points[0][0]

    def rates(self) -> tuple[float, float]:
        """Env steps received and sample uses made, a second.

        Raises:
            RunFailed: there are too few counts.
        """
        if len(self._points) < 2:
            raise RunFailed(f"a short training was too slow to be measured: {SLOW}")
        (_, steps_before, uses_before), (_, steps, uses) = self._points[0], self._points[-1]
        return (steps - steps_before) / self._lasted_s, (uses - uses_before) / self._lasted_s

    def read_timeline(self) -> Timeline | None:
        """Read the trace; None if the training was not traced.

        Raises:
            RunFailed: the trace has failed.
        """
        if self._trace is None:
            return None
        result = None if self._place is None else self._place.read_result()
        if self._place is None or result is None:
            raise RunFailed("nothing came of the trace of a short training, so there are no figures")
        return read_timeline(str(self._run.path), self._place, result)
