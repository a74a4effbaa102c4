"""The roles at the other end of a probe's: they take what an actor sends, or send what a learner takes.

What their turns cost is in no other role's ``busy_s``. What roles do is counted and timed in windows of the
time that they run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_cli.plan.graph import FRAGMENTS
from tianji_cli.roles.buffer.replay.replay import PRIORITY
from tianji_cli.roles.role import Role
from tianji_cli.wire.fragment import Fragment, FragmentLayout
from tianji_lab.profile.probe.protocol import Run
from tianji_transports.core import Full, Transport

Counts = dict[str, float]

SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
"""Nanoseconds that this thread ran, and that it was ready to run and had no core; not in every kernel."""


@dataclass
class Stopwatch:
    """Times the calls of one method of one object: what a role spends in the parts it is made of."""

    calls: int = 0
    seconds: float = 0.0

    def time(self, owner: object, method: str) -> None:
        """Time the calls of a method from now on; they cost a tenth of a microsecond more.

        Args:
            owner: whose method. A role knows it as an attribute only, so no role is changed for it.
        """
        call = getattr(owner, method)
        now = time.perf_counter

        def timed(*args: Any) -> Any:
            began = now()
            result = call(*args)
            self.seconds += now() - began
            self.calls += 1
            return result

        setattr(owner, method, timed)


@dataclass(frozen=True)
class Reading:
    """Counters at the end of one window, which is the beginning of the next.

    Attributes:
        on_core_s: this thread ran, so far.
        waited_s: and was ready to run and had no core, so far, sleeps left out.
        slept_s: and slept because it was told to, until it had a core again, so far.
    """

    began: float
    ended: float
    on_core_s: float
    waited_s: float
    slept_s: float
    counts: Counts


class Windows:
    """Reads counters when something is finished and it is time, and ends the loop that it is the handler of.

    Args:
        step: says how many windows there are to be, and how long, and when to sleep.
        read: gives the counters, none of which ever falls; those of seconds have names that end with ``_s``.
    """

    def __init__(self, step: Run, read: Callable[[], Counts]) -> None:
        self._step = step
        self._read = read
        self._finished = 0
        self._slept_s = self._waited_asleep_s = 0.0
        self._readings: list[Reading] = []
        self._over = False
        began = time.perf_counter()
        self._due = began + step.warm_s
        self._enough = began + step.enough_s
        self._limit = began + step.limit_s

    def look(self, *, finished: bool) -> None:
        """Sleep when it is time to; end a window when it is, and all that is counted has risen in it.

        Args:
            finished: what the role makes has just been finished.
        """
        if not finished:
            return
        self._pause()
        if self._over or (now := time.perf_counter()) < self._due:
            return
        counts = self._read()
        if self._readings:
            before = self._readings[-1].counts
            if any(count <= before[name] for name, count in counts.items()):
                return
        ended = time.perf_counter()
        waiting_s = waited_s() - self._waited_asleep_s
        self._readings.append(Reading(now, ended, time.thread_time(), waiting_s, self._slept_s, counts))
        self._due = ended + self._step.window_s
        if len(self._readings) > self._step.windows:
            self._end(ended)

    def handle(self) -> bool:
        """Go on until the last window and what follows it are over, or it has taken too long."""
        now = time.perf_counter()
        if not self._over and now >= self._enough and len(self._readings) > 1:
            self._end(now)
        return now < self._limit and not (self._over and now >= self._due)

    def counted(self) -> list[Counts]:
        """How far each counter rose in each window; ``wall_s`` is the window's length.

        Of the seconds those are left out in which this thread, which works all the time but for its sleep,
        waited for a core that another process had.
        """
        counted = []
        for before, after in zip(self._readings, self._readings[1:], strict=False):
            wall_s = after.began - before.ended
            waited_s = after.waited_s - before.waited_s
            # The kernel brings this account up to date now and then: it may tell of more than this window.
            awake_s = wall_s - (after.slept_s - before.slept_s)
            ran = 1 - waited_s / max(awake_s, after.on_core_s - before.on_core_s + waited_s)
            rose = {name: count - before.counts[name] for name, count in after.counts.items()}
            scaled = {name: rise * ran if name.endswith("_s") else rise for name, rise in rose.items()}
            counted.append({"wall_s": wall_s, **scaled})
        return counted

    def _pause(self) -> None:
        """Sleep as a role does that waits for others.

        After a sleep caches are cold and cores slow: a role that never sleeps is too fast a model of one that
        waits.
        """
        self._finished += 1
        if self._step.pause_s and self._finished % self._step.pause_every == 0:
            began, waiting_s = time.perf_counter(), waited_s()
            time.sleep(self._step.pause_s)
            self._slept_s += time.perf_counter() - began
            self._waited_asleep_s += waited_s() - waiting_s

    def _end(self, now: float) -> None:
        self._over = True
        self._due = now + self._step.tail_s


def waited_s() -> float:
    """Say for how many seconds this thread has been ready to run and had no core; 0 if nothing tells it."""
    try:
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


Recorded = npt.NDArray[np.uint8]
"""Bytes of a fragment, with its header."""

RECORD_S: Final = 1.0
"""What an actor has made by then has to do to feed a learner."""


class Sink(Role):
    """Claims and releases an actor's fragments as they come, and publishes a policy after each.

    Attributes:
        windows: looked at after every turn of the actor.
        taken: copies of fragments; None where they are not wanted.
    """

    name = "sink"

    def __init__(self, transport: Transport, slot: str, policy: memoryview) -> None:
        self.windows: Windows | None = None
        self.taken: list[Recorded] | None = None
        self._transport = transport
        self._slot = slot
        self._policy = policy
        self._version = 0
        transport.publish(slot, policy, 0)

    def turn(self) -> bool:
        """Take a fragment if there is one."""
        claim = self._transport.probe(FRAGMENTS)
        if claim is not None:
            if self.taken is not None:
                self.taken.append(np.frombuffer(claim.view(), np.uint8).copy())
            claim.release()
            self._version += 1
            self._transport.publish(self._slot, self._policy, self._version)
        if self.windows is not None:
            self.windows.look(finished=claim is not None)
        return claim is not None


class Feeder(Role):
    """Keeps an actor's window full of recorded fragments.

    Args:
        recorded: what to send, in turns.

    Attributes:
        windows: looked at in every turn.
    """

    name = "feeder"

    def __init__(
        self,
        transport: Transport,
        buffer: int,
        slot: str,
        layout: FragmentLayout,
        job: int,
        recorded: Sequence[Recorded],
    ) -> None:
        self.windows: Windows | None = None
        self._version = -1
        self._transport = transport
        self._buffer = buffer
        self._slot = slot
        self._layout = layout
        self._job = job
        self._recorded = recorded
        self._sequence = 0
        self._sent = 0

    def turn(self) -> bool:
        """Send as many fragments as the buffer has claimed since, made with the newest policy."""
        policy = self._transport.latest(self._slot, newer_than=self._version)
        if policy is not None:
            self._version = policy.version
            policy.release()
        pushed = False
        while not isinstance(
            loan := self._transport.loan(self._buffer, FRAGMENTS, self._layout.nbytes), Full
        ):
            self._fill(loan.memory)
            self._transport.push(loan)
            pushed = True
        if self.windows is not None:
            self.windows.look(finished=policy is not None)
        return pushed

    @property
    def received(self) -> int:
        """Fragments that the buffer has claimed."""
        return self._sequence - self._transport.unconfirmed(self._buffer, FRAGMENTS)

    def _fill(self, memory: memoryview) -> None:
        recorded = self._recorded[self._sequence % len(self._recorded)]
        np.frombuffer(memory, np.uint8)[:] = recorded
        fragment = Fragment(self._layout, memory)
        header = fragment.header
        samples = int(header["samples"])
        fragment.begin(
            job=self._job,
            actor=0,
            incarnation=0,
            sequence=self._sequence,
            before=self._sent,
            version=self._version,
        )
        header["samples"] = samples
        self._sequence += 1
        self._sent += samples


class Recorder:
    """Attends a loop of an actor and its sink until enough fragments are recorded."""

    def __init__(self, sink: Sink, stepping: Stopwatch, wanted: int) -> None:
        self.fragments: list[Recorded] = []
        sink.taken = self.fragments
        self._stepping = stepping
        self._wanted = wanted
        self._until = time.perf_counter() + RECORD_S

    def handle(self) -> bool:
        """Go on while more is wanted and there is time for it, but until a vector step was made."""
        in_time = time.perf_counter() < self._until or self._stepping.calls == 0
        return in_time and len(self.fragments) < self._wanted


def filled_up(unfinished: Fragment, layout: FragmentLayout, rows: int) -> Recorded:
    """Fill up the fragment that slow environments have not finished by repeating its rows."""
    recorded = np.zeros(layout.nbytes, np.uint8)
    fragment = Fragment(layout, recorded.data)
    fragment.header[...] = unfinished.header
    for spec in layout.fields:
        array, made = fragment.fields[spec.name], unfinished.fields[spec.name]
        first = spec.history  # What was before the first step is there already.
        array[:first] = made[:first]
        array[first:] = made[first:][np.arange(len(array) - first) % rows]
    mask = fragment.fields["mask"]
    if PRIORITY in fragment.fields:
        fragment.fields[PRIORITY][...] = mask
    fragment.header["samples"] = np.count_nonzero(mask)
    return recorded
