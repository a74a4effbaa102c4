"""Actions of an endpoint in a test, in the test's own process or in a peer's.

A message carries its sender and its number, and is filled with a byte derived from them: so a receiver can
tell a wrong, torn or stale one.
"""

from __future__ import annotations

import hashlib
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tianji_transports.core import ANY, Claim, CloseReport, Loan, Transport
from tianji_transports.errors import PeerLostError

PATIENCE_S = 20.0
"""Seconds after which a test fails if something has not happened; nothing ever waits this long."""
LONG_S = 8.0
"""Seconds of a time-out longer than anything takes: an endpoint that sleeps to its end was not woken."""
QUIET_S = 0.3
"""Seconds in which messages under way arrive."""
STAMP = struct.Struct("<iiq")
NUMBER = struct.Struct("<QQ")
PIECE = 1 << 20

T = TypeVar("T")


def until(endpoint: Transport, condition: Callable[[], T | None], timeout_s: float = PATIENCE_S) -> T:
    """Wait at the endpoint until ``condition`` returns something."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {endpoint.rank} waited for {timeout_s} s")
        endpoint.wait(0.2)


def rest(endpoint: Transport) -> None:
    """Wait until nothing comes any more."""
    while endpoint.wait(QUIET_S):
        pass


def fill(memory: memoryview, rank: int, number: int) -> None:
    """Write message ``number`` of ``rank``."""
    memory[:] = bytes([(7 * rank + number) % 251]) * memory.nbytes
    if memory.nbytes >= STAMP.size:
        STAMP.pack_into(memory, 0, rank, number, memory.nbytes)


def check(memory: memoryview, rank: int, number: int) -> None:
    """Assert that the memory holds message ``number`` of ``rank``, as ``fill`` wrote it."""
    expected = bytearray(memory.nbytes)
    fill(memoryview(expected), rank, number)
    assert memory == expected, f"this is not message {number} of rank {rank}: {bytes(memory[:16])!r}..."


def loan(endpoint: Transport, dest: int, channel: str, nbytes: int) -> Loan:
    """Get a loan, waiting for credit if need be."""
    return until(endpoint, lambda: endpoint.loan(dest, channel, nbytes) or None)


def push(endpoint: Transport, dest: int, channel: str, number: int, nbytes: int = 100) -> None:
    """Push one message, waiting for credit if need be."""
    lent = loan(endpoint, dest, channel, nbytes)
    fill(lent.memory, endpoint.rank, number)
    endpoint.push(lent)


def has_credit(endpoint: Transport, dest: int, channel: str) -> bool:
    """Whether the endpoint gives a loan at present."""
    try:
        lent = endpoint.loan(dest, channel, 1)
    except PeerLostError:
        return False
    if lent:
        lent.abandon()
    return bool(lent)


def stream(endpoint: Transport, dest: int, channel: str, count: int, nbytes: int = 100) -> None:
    """Push messages 0 to ``count - 1``, of ``nbytes`` plus their number."""
    for number in range(count):
        push(endpoint, dest, channel, number, nbytes + number)


def stream_polling(endpoint: Transport, dest: int, channel: str, count: int) -> None:
    """Push messages 0 to ``count - 1`` without ever waiting."""
    for number in range(count):
        while not (lent := endpoint.loan(dest, channel, 100)):
            pass
        fill(lent.memory, endpoint.rank, number)
        endpoint.push(lent)


def claim(endpoint: Transport, channel: str, source: int = ANY) -> Claim:
    """Claim one message, waiting for it if need be."""
    return until(endpoint, lambda: endpoint.probe(channel, source))


def receive(endpoint: Transport, channel: str, source: int, number: int) -> int:
    """Claim one message, check that it is ``number`` of ``source``, release it; returns its size."""
    held = claim(endpoint, channel, source)
    assert (held.source, held.version) == (source, 0)
    check(held.view(), source, number)
    held.release()
    return held.nbytes


def receive_stream(endpoint: Transport, channel: str, source: int, first: int, count: int) -> None:
    """Claim ``count`` messages from ``first`` on."""
    for number in range(first, first + count):
        receive(endpoint, channel, source, number)


def receive_streams(
    endpoint: Transport, channel: str, numbers: dict[int, int], count: int, nbytes: int
) -> None:
    """Claim ``count`` messages of several streams; ``numbers`` has the next number of each source."""
    for _ in range(count):
        held = claim(endpoint, channel)
        assert held.nbytes == nbytes + numbers[held.source]
        check(held.view(), held.source, numbers[held.source])
        numbers[held.source] += 1
        held.release()


def receive_rest(endpoint: Transport, channel: str, source: int, first: int) -> int:
    """Claim all messages that still come, ``first`` and later; returns the number after the last."""
    number = first
    while (held := endpoint.probe(channel)) is not None or endpoint.wait(QUIET_S):
        if held is not None:
            check(held.view(), source, number)
            held.release()
            number += 1
    return number


def echo(endpoint: Transport, dest: int, channel: str, count: int) -> int:
    """Answer ``count`` messages of ``dest`` on the same channel; returns the number of sleeps to the end."""
    missed = 0
    for number in range(count):
        missed += await_news(endpoint, lambda: endpoint.probe(channel, dest))
        missed += send_back(endpoint, dest, channel, number)
    return missed


def send_back(endpoint: Transport, dest: int, channel: str, number: int) -> int:
    """Push one message; returns the number of sleeps to the end meanwhile."""
    lent: list[Loan] = []

    def try_loan() -> Loan | None:
        lent[:] = [got] if (got := endpoint.loan(dest, channel, 16)) else []
        return lent[0] if lent else None

    missed = await_news(endpoint, try_loan)
    fill(lent[0].memory, endpoint.rank, number)
    endpoint.push(lent[0])
    return missed


def woken(endpoint: Transport, timeout_s: float = LONG_S, also: Sequence[int] = ()) -> bool:
    """Sleep; returns whether something ended the sleep before its time was over."""
    began = time.monotonic()
    return endpoint.wait(timeout_s, also) and time.monotonic() - began < timeout_s


def await_news(endpoint: Transport, attempt: Callable[[], Claim | Loan | None]) -> int:
    """Repeat ``attempt``, asleep in between, until it succeeds; returns the number of sleeps to the end."""
    missed = 0
    while (got := attempt()) is None:
        missed += not woken(endpoint)
    if isinstance(got, Claim):
        got.release()
    return missed


def hold(endpoint: Transport, channel: str, count: int) -> list[Claim]:
    """Claim ``count`` messages and keep the claims."""
    return [claim(endpoint, channel) for _ in range(count)]


def keep(endpoint: Transport, channel: str, count: int) -> None:
    """Claim ``count`` messages as ``hold`` does, and keep the claims at the endpoint."""
    endpoint.__dict__.setdefault("kept", []).extend(hold(endpoint, channel, count))


def unconfirmed(endpoint: Transport, dest: int, channel: str) -> int:
    """Count the pushes that are not claimed."""
    return endpoint.unconfirmed(dest, channel)


def settle(endpoint: Transport, dest: int, channel: str, count: int) -> None:
    """Wait until ``count`` pushes are unclaimed: credits may take their time."""
    until(endpoint, lambda: endpoint.unconfirmed(dest, channel) == count or None)


def pieces(memory: memoryview, rank: int, number: int) -> Iterator[tuple[memoryview, bytes]]:
    """Divide message ``number`` of ``rank`` into pieces, each with its bytes, no two alike."""
    block = 2 * hashlib.shake_128(f"{rank} {number}".encode()).digest(PIECE)
    for index, begin in enumerate(range(0, memory.nbytes, PIECE)):
        piece = memory[begin : begin + PIECE]
        turn = 4099 * index % PIECE
        yield piece, block[turn : turn + piece.nbytes]


def push_random(endpoint: Transport, dest: int, channel: str, number: int, nbytes: int) -> None:
    """Push a message whose pieces all differ."""
    lent = loan(endpoint, dest, channel, nbytes)
    for piece, right in pieces(lent.memory, endpoint.rank, number):
        piece[:] = right
    endpoint.push(lent)


def receive_random(endpoint: Transport, channel: str, source: int, number: int) -> int:
    """Claim a message of ``push_random``, check every byte of it, release it; returns its size."""
    held = until(endpoint, lambda: endpoint.probe(channel, source), 5 * PATIENCE_S)
    for piece, right in pieces(held.view(), source, number):
        assert bytes(piece) == right, f"message {number} of rank {source} is wrong"
    held.release()
    return held.nbytes


def push_numbers(endpoint: Transport, dest: int, channel: str, count: int) -> int:
    """Push the numbers below ``count``, a message each; returns the checksum of all."""
    checksum = 0
    for number in range(count):
        while not (lent := endpoint.loan(dest, channel, NUMBER.size)):
            endpoint.wait(PATIENCE_S)
        NUMBER.pack_into(lent.memory, 0, number, zlib.crc32(number.to_bytes(8, "little")))
        checksum = zlib.crc32(lent.memory, checksum)
        endpoint.push(lent)
    return checksum


def receive_numbers(endpoint: Transport, channel: str, count: int) -> int:
    """Claim the messages of ``push_numbers``, in order; returns the checksum of all."""
    checksum = 0
    for number in range(count):
        while (held := endpoint.probe(channel)) is None:
            endpoint.wait(PATIENCE_S)
        view = held.view()
        assert NUMBER.unpack(view)[0] == number
        checksum = zlib.crc32(view, checksum)
        held.release()
    return checksum


def half_fill(endpoint: Transport, dest: int, channel: str, nbytes: int) -> None:
    """Get a loan, write half of it, and keep it."""
    lent = loan(endpoint, dest, channel, nbytes)
    fill(lent.memory[: nbytes // 2], endpoint.rank, 0)
    endpoint.__dict__.setdefault("kept", []).append(lent)


def publish(endpoint: Transport, slot: str, version: int, nbytes: int) -> None:
    """Publish a version, filled so that a torn one shows."""
    value = bytearray(nbytes)
    fill(memoryview(value), endpoint.rank, version)
    endpoint.publish(slot, memoryview(value), version)
    value[:] = bytes(nbytes)


def publish_many(endpoint: Transport, slot: str, first: int, count: int, nbytes: int) -> None:
    """Publish ``count`` versions as fast as possible."""
    for version in range(first, first + count):
        publish(endpoint, slot, version, nbytes)


def read(endpoint: Transport, slot: str, writer: int, newer_than: int = -1) -> int:
    """Claim a newer value, waiting for it if need be, check and release it; returns its version."""
    value = until(endpoint, lambda: endpoint.latest(slot, newer_than))
    assert value.version > newer_than
    assert value.source == writer
    check(value.view(), writer, value.version)
    value.release()
    return value.version


def read_to(endpoint: Transport, slot: str, writer: int, last: int, newer_than: int = -1) -> int:
    """Read newer and newer values up to version ``last``, checking every byte; returns their number."""
    version, values = newer_than, 0
    while version != last:
        version = read(endpoint, slot, writer, newer_than=version)
        values += 1
    return values


def close(endpoint: Transport, drain_s: float = 0.0) -> CloseReport:
    """Close the endpoint."""
    return endpoint.close(drain_s)
