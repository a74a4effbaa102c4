"""iceoryx2's publish-subscribe, both sides polling, and an acknowledgement for every half window.

Letting iceoryx2 block the sender instead is slower: it sleeps once a buffer is full.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import iceoryx2

from tianji_lab.bench.experiment import LEAD, Trial
from tianji_lab.bench.raw.loop import RawEnd, fill, wiring
from tianji_transports.core import EngineOptions
from tianji_transports.errors import TransportError
from tianji_transports.shm.page import LINE, Page
from tianji_transports.shm.transport import Ports


class IceoryxEnd(RawEnd):
    """One end over two services: messages one way, counts of received messages the other way.

    The services' names are under the job's page of the ``shm`` engine, so that all of them are removed.
    """

    def __init__(self, trial: Trial, rank: int, options: EngineOptions) -> None:
        del options
        self._nbytes = trial.nbytes
        self._window = trial.window
        self._batch = max(1, trial.window // 2)
        self._credit = trial.window
        self._received = 0
        self._held: Any = None
        self._page = Page(wiring(trial))
        self._ports: list[Any] = []
        try:
            with _translated():
                self._node: Ports | None = Ports(self._page.stem)
                self._open(rank)
        except BaseException:
            self._page.close()
            raise

    def _open(self, rank: int) -> None:
        messages = self._service("messages", iceoryx2.Slice[ctypes.c_uint8], LINE)
        acks = self._service("acks", ctypes.c_uint64, ctypes.sizeof(ctypes.c_uint64))
        if rank == LEAD:
            self._subscriber = messages.subscriber_builder().create()
            self._acking = acks.publisher_builder().create()
            self._take = self._subscriber.receive
            self._ports = [self._subscriber, self._acking]
        else:
            self._publisher = messages.publisher_builder().initial_max_slice_len(self._nbytes).create()
            self._acked = acks.subscriber_builder().create()
            self._loan = self._publisher.loan_slice_uninit
            self._ports = [self._publisher, self._acked]

    def _service(self, name: str, payload: Any, alignment: int) -> Any:
        assert self._node is not None
        return (
            self._node.node.service_builder(iceoryx2.ServiceName.new(name))
            .publish_subscribe(payload)
            .payload_alignment(iceoryx2.Alignment.new(alignment))
            .enable_safe_overflow(False)
            .history_size(0)
            .subscriber_max_buffer_size(self._window)
            .subscriber_max_borrowed_samples(1)
            .max_publishers(1)
            .max_subscribers(1)
            .open_or_create()
        )

    def connect(self, peer: str) -> None:
        """Do nothing: both ends know the services' names."""

    def send(self, word: int) -> bool:
        """Loan a sample, fill it in place and send it; acknowledgements bring credit."""
        if self._credit == 0:
            while (ack := self._acked.receive()) is not None:
                ack.delete()
                self._credit += self._batch
            if self._credit == 0:
                return False
        self._credit -= 1
        sample = self._loan(self._nbytes)
        fill(sample.payload().as_memory_view().cast("B"), word)
        sample.assume_init().send()
        return True

    def receive(self, into: memoryview | None) -> memoryview | None:
        """Lend the sample itself, or copy it once."""
        if self._held is not None:
            self._held.delete()
            self._held = None
        sample = self._take()
        if sample is None:
            return None
        memory: memoryview = sample.payload().as_memory_view().cast("B")
        if into is None:
            self._held = sample
        else:
            into[:] = memory
            sample.delete()
            memory = into
        self._received += 1
        if self._received % self._batch == 0:
            self._acking.send_copy(ctypes.c_uint64(self._batch))
        return memory

    def flush(self) -> bool:
        """Do nothing: a sent sample has arrived."""
        return True

    def close(self) -> None:
        """Close ports and node; the last end to close removes all names."""
        if self._held is not None:
            self._held.delete()
        for port in self._ports:
            port.delete()
        if self._node is not None:
            self._node.close()
            self._node = None
        self._page.close()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Raise ``TransportError`` in place of iceoryx2's exceptions, which have no base class of their own."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("iceoryx2"):
            raise
        raise TransportError(f"iceoryx2 cannot open the raw loop: {error}") from error
