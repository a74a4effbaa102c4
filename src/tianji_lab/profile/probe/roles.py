"""The roles at the other end: they take what an actor sends, or send what a learner takes, at once.

What their turns cost is nobody's: it is in no other role's ``busy_s``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_cli.plan.graph import FRAGMENTS
from tianji_cli.roles.buffer.replay.replay import PRIORITY
from tianji_cli.roles.role import Role
from tianji_cli.wire.fragment import Fragment, FragmentLayout
from tianji_lab.profile.probe.windows import Stopwatch, Windows
from tianji_transports.core import Full, Transport

Recorded = npt.NDArray[np.uint8]
"""Bytes of a fragment, with its header."""

RECORD_S: Final = 1.0
"""What an actor has made by then has to do to feed a learner."""


class Sink(Role):
    """Claims and releases an actor's fragments as they come, and publishes a policy after each.

    Args:
        transport: the endpoint of the learner's process.
        slot: the policy's.
        policy: what is published, over and over.

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
        transport: the endpoint of the actor's process.
        buffer: rank of the buffer.
        slot: the policy's.
        layout: of a fragment.
        job: the job's number.
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
        fragment.stamp(
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
    """Attends a loop of an actor and its sink until enough fragments are recorded.

    Args:
        sink: takes them.
        stepping: the actor's vector steps.
        wanted: how many fragments.

    Attributes:
        fragments: that were recorded.
    """

    def __init__(self, sink: Sink, stepping: Stopwatch, wanted: int) -> None:
        self.fragments: list[Recorded] = []
        sink.taken = self.fragments
        self._stepping = stepping
        self._wanted = wanted
        self._until = time.perf_counter() + RECORD_S

    def attend(self) -> bool:
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
