"""The plainest loop over ucxx's synchronous core that is fast: tags, polling, reused memory, and no contract.

Messages are eager, as the engine's are: here that is two to four times as fast as ucxx's own setting, a
rendezvous from 8 KiB on. ``raw_loops`` runs it.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

MESSAGE, ACK = 1, 2


@contextmanager
def raw_ucxx(
    role: str, nbytes: int, window: int, peer: Connection, write: Callable[[memoryview, int], None]
) -> Iterator[Any]:
    """``tag_send`` in a window, ``tag_probe``, ``tag_recv_with_handle``; an acknowledgement a half window."""
    os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
    os.environ.setdefault("UCX_RNDV_THRESH", "inf")
    from ucxx._lib import libucxx as ucx  # noqa: PLC0415 - after the environment is set
    from ucxx._lib.arr import Array  # noqa: PLC0415

    context = ucx.UCXContext({}, (ucx.Feature.TAG, ucx.Feature.WAKEUP))
    worker = ucx.UCXWorker(context)
    peer.send(bytes(worker.address))
    address = ucx.UCXAddress.create_from_buffer(peer.recv())
    endpoint = ucx.UCXEndpoint.create_from_worker_address(worker, address, False)
    message, ack, exact = ucx.UCXXTag(MESSAGE), ucx.UCXXTag(ACK), ucx.UCXXTagMask((1 << 64) - 1)
    acknowledgement = Array(memoryview(bytearray(8)))
    batch = max(1, window // 2)
    flying: deque[Any] = deque()
    progress, probe = worker.progress_once, worker.tag_probe

    def claim(tag: Any, into: Any) -> bool:
        found = probe(tag, exact, True)
        if not found.matched:
            return False
        request = worker.tag_recv_with_handle(into, found)
        while not request.completed:
            progress()
        return True

    if role == "send":
        ring = [memoryview(mmap.mmap(-1, nbytes)) for _ in range(2 * window)]
        arrays = [Array(memory) for memory in ring]
        credit = [window]

        def send(number: int) -> None:
            while credit[0] == 0:
                progress()
                if claim(ack, acknowledgement):
                    credit[0] += batch
            while flying and (flying[0].completed or len(flying) == len(ring)):
                if flying[0].completed:
                    flying.popleft()
                else:
                    progress()
            credit[0] -= 1
            index = number % len(ring)
            write(ring[index], number)
            flying.append(endpoint.tag_send(arrays[index], message))

        send.rest = progress  # type: ignore[attr-defined]
        yield send
    else:
        memory = memoryview(mmap.mmap(-1, nbytes))
        array = Array(memory)
        claimed = [0]

        def receive() -> memoryview:
            while not claim(message, array):
                progress()
            claimed[0] += 1
            if claimed[0] % batch == 0:
                flying.append(endpoint.tag_send(acknowledgement, ack))
                while flying[0].completed and len(flying) > 1:
                    flying.popleft()
            return memory

        yield receive
    while flying and not flying[-1].completed:
        progress()
