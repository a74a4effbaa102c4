"""A raw loop over mpi4py: Isend from a ring of buffers, the oldest tested until it is free; Improbe and Recv.

There is no credit: MPI itself blocks a sender, or stores its messages.
"""

from __future__ import annotations

from collections import deque

from tianji_lab.bench.experiment import Trial
from tianji_lab.bench.raw.loop import RawEnd, fill, wiring
from tianji_transports.core import EngineOptions
from tianji_transports.endpoint import page_memory
from tianji_transports.mpi.ends import Tags, format_address, parse_address
from tianji_transports.mpi.world import MPI, initialise, largest_tag, leave


class IsendEnd(RawEnd):
    """One end, with a tag of the job's own in the communicator of all processes."""

    def __init__(self, trial: Trial, rank: int, options: EngineOptions) -> None:
        del rank, options
        self._world = initialise()
        self._isend, self._improbe = self._world.Isend, self._world.Improbe
        self.address = format_address(self._world.Get_rank())
        self._peer = MPI.PROC_NULL
        self._tag = Tags(wiring(trial), largest_tag()).data[0]
        self._free = [page_memory(trial.nbytes) for _ in range(trial.window)]
        self._flying: deque[tuple[MPI.Request, memoryview]] = deque()
        self._memory = page_memory(trial.nbytes)

    def connect(self, peer: str) -> None:
        """Note the peer's process."""
        self._peer = parse_address(peer, self._world.Get_size())

    def send(self, word: int) -> bool:
        """Fill and send a buffer that MPI no longer uses, the oldest first."""
        if self._free:
            memory = self._free.pop()
        else:
            request, memory = self._flying[0]
            if not request.Test():
                return False
            self._flying.popleft()
        fill(memory, word)
        self._flying.append((self._isend(memory, self._peer, self._tag), memory))
        return True

    def receive(self, into: memoryview | None) -> memoryview | None:
        """Match a message, and have MPI receive it into ``into`` or the end's own memory."""
        message = self._improbe(self._peer, self._tag)
        if message is None:
            return None
        memory = self._memory if into is None else into
        message.Recv(memory)
        return memory

    def flush(self) -> bool:
        """Test the sends in flight."""
        while self._flying and self._flying[0][0].Test():
            self._free.append(self._flying.popleft()[1])
        return not self._flying

    def close(self) -> None:
        """Leave the sends in flight to MPI's own end."""
        while self._flying:
            leave(*self._flying.popleft())
