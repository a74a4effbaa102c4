"""The two sides of a job, each built for real and run against one that takes or gives whatever it can.

An actor, or a buffer and a learner: each has its process's place in a plan and its endpoint. Both endpoints
of a side are in this process, on the engine that needs no other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tianji_algos.core import Model
from tianji_cli.config.schema import JobConfig
from tianji_cli.plan.graph import POLICY, slot_name
from tianji_cli.roles.actor.actor import Actor
from tianji_cli.roles.buffer.buffer import Buffer
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.learner.learner import Learner
from tianji_cli.roles.loop import run_in_turns
from tianji_cli.wire import published
from tianji_cli.wire.fragment import job_number
from tianji_cli.wire.published import PublishedPolicy
from tianji_lab.profile.probe.roles import Feeder, Recorded, Recorder, Sink, filled_up
from tianji_lab.profile.probe.protocol import Acted, ActedWindow, Learned, LearnedWindow, Run
from tianji_lab.profile.probe.timed_assembly import ACTOR, GROUP, LEARNER, TimedAssembly, job_of
from tianji_lab.profile.probe.windows import Counts, Stopwatch, Windows

FILL_S: Final = 2.0
"""What a replay holds by then has to do."""


def never_sleep(_seconds: float) -> None:
    """Stand in for sleep in a loop where a role always has something to do."""


class ActorSide:
    """An actor, and the sink that takes its fragments.

    Args:
        config: of the job.
        directory: where it has a place to write.
    """

    def __init__(self, config: JobConfig, directory: Path) -> None:
        self._steps = config.distribution.actor.send_size
        self.assembly = TimedAssembly(job_of(config, directory), ACTOR)
        self._transport, self._other = self.assembly.endpoints()
        (actor,) = self.assembly.roles(self._transport, self.assembly.production)
        assert isinstance(actor, Actor)
        self.actor = actor
        self.sink = Sink(self._other, slot_name(POLICY, GROUP), _initial_policy(self.assembly.role_model))

    @property
    def stepping(self) -> Stopwatch:
        """Vector steps."""
        return self.assembly.stepping

    def run(self, step: Run) -> Acted:
        """Let the actor act."""
        self.sink.windows = windows = Windows(step, self._read)
        run_in_turns([self.actor, self.sink], windows, never_sleep)
        self.sink.windows = None
        return Acted(windows=tuple(self._acted(window) for window in windows.counted()))

    def record(self, fragments: int) -> list[Recorded]:
        """Record so many fragments, or what there is after a second, but one at least."""
        recorder = Recorder(self.sink, self.stepping, fragments)
        run_in_turns([self.actor, self.sink], recorder, never_sleep)
        if recorder.fragments:
            return recorder.fragments[:fragments]
        assert self.actor.unfinished is not None
        return [filled_up(self.actor.unfinished, self.assembly.layout, self.stepping.calls)]

    def close(self) -> None:
        """Close the environments and the endpoints."""
        self.actor.stop()
        self.actor.close()
        self._transport.close()
        self._other.close()

    def _acted(self, window: Counts) -> ActedWindow:
        return ActedWindow(
            wall_s=window["wall_s"],
            fragments=round(window["steps"] / self._steps),
            samples=int(window["samples"]),
            busy_s=window["busy_s"],
            act_s=window["act_s"],
            step_s=window["step_s"],
        )

    def _read(self) -> Counts:
        return {
            "steps": self.stepping.calls,
            "samples": self.assembly.production.read(0).produced,
            "busy_s": self.actor.busy_s,
            "act_s": self.assembly.acting.seconds,
            "step_s": self.stepping.seconds,
        }


class LearnerSide:
    """A learner with its buffer, and the feeder that keeps it supplied.

    Args:
        config: of the job.
        directory: where it has a place to write.
        recorded: fragments of the same layout.
    """

    def __init__(self, config: JobConfig, directory: Path, recorded: Sequence[Recorded]) -> None:
        assembly = self.assembly = TimedAssembly(job_of(config, directory), LEARNER)
        self._transport, self._other = assembly.endpoints()
        buffer, learner = assembly.roles(self._transport, assembly.production)
        assert isinstance(buffer, Buffer)
        assert isinstance(learner, Learner)
        self._buffer, self._learner = buffer, learner
        number = job_number(assembly.job.id)
        slot = slot_name(POLICY, GROUP)
        self._feeder = Feeder(self._other, LEARNER, slot, assembly.layout, number, recorded)
        if isinstance(buffer.store, ReplayStore):
            self._fill(buffer.store)

    def run(self, step: Run) -> Learned:
        """Let buffer and learner work."""
        self._feeder.windows = windows = Windows(step, self._read)
        run_in_turns([self._feeder, self._buffer, self._learner], windows, never_sleep)
        self._feeder.windows = None
        return Learned(windows=tuple(_learned(window) for window in windows.counted()))

    @property
    def rho(self) -> float:
        """Uses of each sample."""
        return float(self._learner.report()["rho"])

    def close(self) -> None:
        """Free what the roles and the endpoints hold."""
        for role in (self._buffer, self._learner):
            role.close()
        self._transport.close()
        self._other.close()

    def _read(self) -> Counts:
        feed, report = self.assembly.timed_feed, self._learner.report()
        return {
            "fragments": self._feeder.received,
            "updates": self.assembly.updating.calls,
            "versions": report["version"],
            "uses": report["consumed"],
            "store_s": self._buffer.busy_s,
            "update_s": self.assembly.updating.seconds,
            "draw_s": feed.draw_s,
            "busy_s": self._learner.busy_s - feed.restoring_s,
        }

    def _fill(self, store: ReplayStore) -> None:
        """Fill the replay as far as time allows; what it holds then was its warm-up."""
        balance = store.balance
        run_in_turns([self._feeder, self._buffer], _Filling(store), never_sleep)
        self._learner.turn()  # It counts everything that came, which is nothing for a window.
        balance.warmup = min(balance.warmup, balance.received)


class _Filling:
    """Attends a loop until a replay is full.

    Args:
        store: the replay's.
    """

    def __init__(self, store: ReplayStore) -> None:
        self._balance = store.balance
        self._until = time.perf_counter() + FILL_S

    def attend(self) -> bool:
        """Go on while there is room and time, but until there is a fragment."""
        in_time = time.perf_counter() < self._until or not self._balance.received
        return in_time and self._balance.received < self._balance.warmup


def _learned(window: Counts) -> LearnedWindow:
    """Tell one window; what the learner did beside updating and drawing is the rest."""
    update_s, draw_s = window["update_s"], window["draw_s"]
    return LearnedWindow(
        wall_s=window["wall_s"],
        fragments=int(window["fragments"]),
        updates=int(window["updates"]),
        versions=int(window["versions"]),
        uses=int(window["uses"]),
        store_s=window["store_s"],
        update_s=update_s,
        draw_s=draw_s,
        rest_s=window["busy_s"] - update_s - draw_s,
    )


def _initial_policy(model: Model) -> memoryview:
    """The policy that a learner publishes first."""
    policy = PublishedPolicy(memoryview(bytearray(published.nbytes(model.parameter_count))))
    model.write_parameters(policy.parameters)
    return policy.memory
