"""The engine for endpoints of one process: several ranks, several threads, or one rank talking to itself.

A message is never copied: the receiver claims the memory that the sender filled, which then returns
to the sender. Endpoints find one another by the job's id in this module's table.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tianji_transports.core import Capabilities, EngineOptions
from tianji_transports.endpoint import (
    Endpoint,
    HeldClaim,
    HeldLoan,
    Inlet,
    Outlet,
    SlotView,
    page_memory,
    readable,
)
from tianji_transports.wiring import Channel, Slot, Wiring


@dataclass(eq=False)
class Pipe:
    """One (sender, channel, receiver): its messages and the memory that they reuse.

    Memory goes round: free -> loaned -> queue -> claimed -> free. The deques make every step atomic.
    """

    max_bytes: int
    free: deque[memoryview] = field(default_factory=deque)
    queue: deque[tuple[memoryview, int]] = field(default_factory=deque)
    pushed: int = 0
    claimed: int = 0
    receiver_epoch: int = 0
    receiver_open: bool = False


@dataclass(eq=False)
class Cell:
    """A slot's newest value. ``holders`` counts the claims on each buffer; only a free one is written."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    buffers: list[memoryview] = field(default_factory=list)
    holders: list[int] = field(default_factory=list)
    newest: int = -1
    nbytes: int = 0
    version: int = -1


@dataclass(eq=False)
class Doorbell:
    """Wakes one endpoint; rung only while it sleeps."""

    descriptor: int
    asleep: bool = False
    open: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ring(self) -> None:
        """Wake the endpoint if it sleeps."""
        if self.asleep:
            with self.lock:
                if self.open:
                    os.eventfd_write(self.descriptor, 1)

    def close(self) -> None:
        """Close the descriptor; it is not rung again."""
        with self.lock:
            self.open = False
            os.close(self.descriptor)


@dataclass(eq=False)
class Job:
    """State that the endpoints of one job share."""

    pipes: dict[tuple[int, str, int], Pipe] = field(default_factory=dict)
    cells: dict[str, Cell] = field(default_factory=dict)
    bells: dict[int, Doorbell] = field(default_factory=dict)
    endpoints: int = 0


_jobs: dict[str, Job] = {}
_jobs_lock = threading.Lock()


@dataclass(eq=False)
class InprocOutlet(Outlet):
    """The sender's end of a pipe.

    Attributes:
        pipe: where messages go.
        epoch: epoch of the receiver that was seen last.
        base: pushes through the pipe before this sender came.
    """

    pipe: Pipe = field(default_factory=lambda: Pipe(0))
    epoch: int = 0
    base: int = 0

    def take_back(self, handle: memoryview) -> None:
        """Return an unsent message's memory."""
        self.pipe.free.append(handle)


@dataclass(eq=False)
class InprocInlet(Inlet):
    """The receiver's end of a pipe."""

    pipe: Pipe = field(default_factory=lambda: Pipe(0))

    def reclaim(self, handle: memoryview) -> None:
        """Return a message's memory to the sender."""
        super().reclaim(handle)
        self.pipe.free.append(handle)


@dataclass(eq=False)
class InprocSlotView(SlotView):
    """The reading end of a cell."""

    cell: Cell = field(default_factory=Cell)

    def reclaim(self, handle: int) -> None:
        """Release the hold on a buffer."""
        super().reclaim(handle)
        with self.cell.lock:
            self.cell.holders[handle] -= 1


class InprocTransport(Endpoint[InprocOutlet, InprocInlet, InprocSlotView]):
    """An endpoint of the in-process engine."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        cross_host=False,
        lends=True,
        max_borrowed=0,
        peer_restart=True,
        max_bytes=1 << 40,
        cross_process=False,
        rings=True,
    )

    def __init__(
        self, wiring: Wiring, rank: int, incarnation: int = 0, options: EngineOptions | None = None
    ) -> None:
        super().__init__(wiring, rank, incarnation, options)
        self._bell = Doorbell(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        with _jobs_lock:
            self._job = _jobs.setdefault(wiring.job, Job())
            self._job.endpoints += 1
            self._job.bells[rank] = self._bell
            self._open()

    def _pipe(self, source: int, channel: Channel) -> Pipe:
        key = (source, channel.name, channel.receiver)
        return self._job.pipes.setdefault(key, Pipe(channel.max_bytes))

    def _make_outlet(self, channel: Channel) -> InprocOutlet:
        pipe = self._pipe(self.rank, channel)
        return InprocOutlet(channel.receiver, channel, pipe=pipe, base=pipe.pushed)

    def _make_inlet(self, channel: Channel, source: int) -> InprocInlet:
        pipe = self._pipe(source, channel)
        pipe.free.extend(buffer for buffer, _ in pipe.queue)
        pipe.queue.clear()
        pipe.claimed = pipe.pushed
        pipe.receiver_epoch += 1
        pipe.receiver_open = True
        return InprocInlet(
            source, channel, arrived=pipe.pushed, claimed=pipe.pushed, reported=pipe.pushed, pipe=pipe
        )

    def _make_slot_view(self, slot: Slot) -> InprocSlotView:
        return InprocSlotView(slot, cell=self._job.cells.setdefault(slot.name, Cell()))

    def _refresh(self, outlet: InprocOutlet) -> None:
        pipe = outlet.pipe
        outlet.present = pipe.receiver_open
        if pipe.receiver_epoch != outlet.epoch:
            outlet.epoch = pipe.receiver_epoch
            outlet.lost = False
            outlet.write_off()
        outlet.confirmed = max(outlet.confirmed, pipe.claimed - outlet.base)

    def _allocate(self, outlet: InprocOutlet, nbytes: int) -> HeldLoan[InprocOutlet]:
        pipe = outlet.pipe
        buffer = pipe.free.pop() if pipe.free else page_memory(pipe.max_bytes)
        return HeldLoan(outlet, buffer[:nbytes], buffer)

    def _send(self, loan: HeldLoan[InprocOutlet]) -> None:
        pipe = loan.outlet.pipe
        pipe.queue.append((loan.handle, loan.memory.nbytes))
        pipe.pushed += 1
        self._ring(loan.outlet.dest)

    def _claim(self, inlet: InprocInlet) -> HeldClaim | None:
        pipe = inlet.pipe
        if not pipe.queue:
            return None
        buffer, nbytes = pipe.queue.popleft()
        inlet.claimed += 1
        pipe.claimed += 1
        self._ring(inlet.source)
        return HeldClaim(inlet, buffer, buffer[:nbytes], inlet.source)

    def _publish(self, slot: Slot, payload: memoryview, version: int) -> None:
        cell = self._job.cells.setdefault(slot.name, Cell())
        with cell.lock:
            free = [i for i, holders in enumerate(cell.holders) if not holders and i != cell.newest]
        if free:
            index = free[0]
        else:
            with cell.lock:
                index = len(cell.buffers)
                cell.buffers.append(page_memory(slot.max_bytes))
                cell.holders.append(0)
        cell.buffers[index][: payload.nbytes] = payload
        with cell.lock:
            cell.newest, cell.nbytes, cell.version = index, payload.nbytes, version
        for reader in slot.readers:
            self._ring(reader)

    def _newest(self, view: InprocSlotView, newer_than: int) -> HeldClaim | None:
        cell = view.cell
        if cell.version <= newer_than:
            return None
        with cell.lock:
            index, nbytes, version = cell.newest, cell.nbytes, cell.version
            cell.holders[index] += 1
        return HeldClaim(view, index, cell.buffers[index][:nbytes], view.slot.writer, version)

    def _look(self) -> None:
        for outlet in self._outlets.values():
            self._refresh(outlet)
        for inbox in self._inboxes.values():
            for inlet in inbox.inlets:
                inlet.arrived = inlet.claimed + len(inlet.pipe.queue)
        for view in self._read.values():
            view.version = view.cell.version

    def _ring(self, rank: int) -> None:
        bell = self._job.bells.get(rank)
        if bell is not None:
            bell.ring()

    def bells(self) -> Sequence[int]:
        """The descriptor of this endpoint's doorbell."""
        return (self._bell.descriptor,)

    def _arm(self, armed: bool) -> bool:
        self._bell.asleep = armed
        return True

    def _sleep(self, timeout_s: float, also: Sequence[int]) -> bool:
        ready = readable((self._bell.descriptor, *also), timeout_s)
        if self._bell.descriptor in ready:
            os.eventfd_read(self._bell.descriptor)
        return bool(ready - {self._bell.descriptor})

    def _free(self) -> None:
        for inbox in self._inboxes.values():
            for inlet in inbox.inlets:
                inlet.pipe.receiver_open = False
        with _jobs_lock:
            job = self._job
            if job.bells.get(self.rank) is self._bell:
                del job.bells[self.rank]
            job.endpoints -= 1
            if job.endpoints == 0 and _jobs.get(self.wiring.job) is job:
                del _jobs[self.wiring.job]
        self._bell.close()
