"""Traces at the root: begins a requested trace, stores the workers' spans, and answers the request.

One trace runs at a time. It begins once every learner has made an update, since the time before is the start
of a run and not its training.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tianji_cli.errors import describe
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.files.traces import TracedProcess, TracePlace, TraceResult, take_request
from tianji_cli.launch.pool import WorkerProcess
from tianji_cli.plan.plan import PlannedProcess
from tianji_cli.root.observers.observer import Observer
from tianji_cli.root.running_job import Phase, RunningJob
from tianji_cli.telemetry.snapshot import Snapshot
from tianji_cli.wire.messages import MOST_SPANS, AskClock, Clock, SpansOf, ToRoot, Trace, Traced

LEAD_S: Final = 0.2
"""Seconds from the message to the workers until the window begins.

A busy worker receives it within 20 ms, and a worker on another host has to compare clocks first.
"""

ANSWER_S: Final = 30.0
"""Seconds after the window that a worker may take to answer: it may be in the middle of a long update."""

MOST_SPANS_IN_ALL: Final = 1 << 21
"""Most spans of all processes together: 40 MB, and about as many as a viewer can show."""


@dataclass
class _Trace:
    """The running trace.

    Attributes:
        waiting: ranks that have not sent all their spans yet.
        processes: descriptions of the processes that have, and of those that never will, by rank.
    """

    number: int
    place: TracePlace
    began_s: float
    ended_s: float
    waiting: set[int]
    processes: dict[int, TracedProcess] = field(default_factory=dict)


class Tracing(Observer):
    """Owns the running trace of a run, if there is one.

    Args:
        run: directory with the requests.
    """

    def __init__(self, job: RunningJob, run: RunDirectory) -> None:
        self._job = job
        self._run = run
        self._begun = 0
        self._trace: _Trace | None = None

    def on_tick(self, _snapshot: Snapshot) -> None:
        """Begin a requested trace once all learners train; end a trace whose answers are late."""
        if self._job.phase is not Phase.TRAINING:
            return
        if self._trace is not None and not self._trace.place.is_there:
            self._trace = None  # The user took the request back.
        if self._trace is not None:
            if time.monotonic() > self._trace.ended_s + ANSWER_S:
                self._finish(f"it has not answered within {ANSWER_S:g} s")
        elif self._learners_train():
            try:
                request = take_request(self._run)
            except (OSError, ValueError) as cause:
                self._job.event(f"a trace cannot be begun: {describe(cause)}")
                return
            if request is not None:
                ranks = self._job.pool.ranks & self._job.members.registered
                self._begin(request[0], request[1].seconds, ranks)

    def _learners_train(self) -> bool:
        learners = self._job.overview.learners()
        return bool(learners) and all(learner.session_consumed for learner in learners.values())

    def _begin(self, place: TracePlace, seconds: float, ranks: set[int]) -> None:
        self._begun += 1
        began_s = time.monotonic() + LEAD_S
        self._trace = _Trace(self._begun, place, began_s, began_s + seconds, ranks)
        most = min(MOST_SPANS, MOST_SPANS_IN_ALL // max(1, len(ranks)))
        self._job.event(f"tracing {len(ranks)} processes for {seconds:g} s")
        for rank in sorted(ranks):
            asked = Trace(trace=self._begun, until_s=self._trace.ended_s, most_spans=most)
            self._job.control.send(rank, asked)

    def on_message(self, message: ToRoot) -> None:
        """Send a worker the time, or store the spans that it measured for the running trace."""
        if not isinstance(message, AskClock | SpansOf | Traced):
            return
        trace, rank = self._trace, message.rank
        if isinstance(message, AskClock):
            self._job.control.send(rank, Clock(asked_s=message.asked_s, root_s=time.monotonic()))
            return
        if trace is None or message.trace != trace.number or rank not in trace.waiting:
            return
        if isinstance(message, Traced):
            own = {"began_s", "ended_s", "dropped", "offset_s", "uncertainty_s"}
            self._note(trace, self._described(rank).model_copy(update=message.model_dump(include=own)))
            return
        try:
            trace.place.append_spans(rank, message.spans)
        except OSError as cause:
            self._give_up(trace.place, cause)

    def on_exit(self, worker: WorkerProcess) -> None:
        """Go on without a worker that has died."""
        rank = worker.rank
        if self._trace is not None and rank in self._trace.waiting:
            self._note(self._trace, self._described(rank).model_copy(update={"missing": _how(worker)}))

    def on_wind_down(self) -> None:
        """End the window now: training is over, and workers send their spans before they stop."""
        now = time.monotonic()
        if self._trace is not None and self._trace.began_s >= now:
            self._trace = None  # The window had not begun.
        elif self._trace is not None:
            self._trace.ended_s = min(self._trace.ended_s, now)

    def on_end(self) -> None:
        """Answer with the spans so far: all workers have ended."""
        if self._trace is not None:
            self._finish("it has ended without an answer")

    def _described(self, rank: int) -> TracedProcess:
        plan = self._job.plan
        process = plan.processes[rank]
        return TracedProcess(
            rank=rank,
            title=process.title,
            roles=tuple(_names(process, several_groups=len(plan.groups) > 1)),
            host=process.host,
            cores=process.cores,
        )

    def _note(self, trace: _Trace, process: TracedProcess) -> None:
        trace.waiting.discard(process.rank)
        trace.processes[process.rank] = process
        if not trace.waiting:
            self._finish("")

    def _finish(self, missing: str) -> None:
        """Answer the request; ``missing`` is the reason for processes that have not sent all their spans."""
        trace, self._trace = self._trace, None
        assert trace is not None
        for rank in trace.waiting:
            trace.processes[rank] = self._described(rank).model_copy(update={"missing": missing})
        processes = tuple(process for _, process in sorted(trace.processes.items()))
        try:
            trace.place.answer(TraceResult(began_s=trace.began_s, ended_s=trace.ended_s, processes=processes))
        except OSError as cause:
            self._give_up(trace.place, cause)

    def _give_up(self, place: TracePlace, cause: OSError) -> None:
        place.give_up()
        self._trace = None
        self._job.event(f"a trace was given up: {describe(cause)}")


def _how(worker: WorkerProcess) -> str:
    """Return the way in which a worker has ended."""
    assert worker.exit is not None
    return worker.exit.error or str(worker.exit)


def _names(process: PlannedProcess, *, several_groups: bool) -> Iterable[str]:
    """Name the roles of a process, so that no two of the job have the same name."""
    actors = iter(process.actors)
    for role in process.roles:
        number = next(actors) if role == "actor" else process.number
        group = f" (group {process.group})" if several_groups and role != "actor" else ""
        yield role + ("" if number is None else f" {number}") + group
