"""Sleep and wake-up of an endpoint, alone or together with endpoints of other engines."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Protocol

CLOSE_POLL_S = 0.05  # between two looks at the credits while ``close`` drains


class Sleeper(Protocol):
    """The part of ``endpoint.Endpoint`` that sleeping needs."""

    _moved: bool

    @property
    def spin_s(self) -> float:
        """How long to look again and again before a sleep."""

    def bells(self) -> Sequence[int]:
        """Descriptors that become readable when a peer rings the armed endpoint."""

    def _news(self) -> bool: ...

    def _all_claimed(self) -> bool: ...

    def _arm(self, armed: bool) -> bool: ...

    def _sleep(self, timeout_s: float, also: Sequence[int]) -> bool: ...


def readable(descriptors: Sequence[int], timeout_s: float) -> set[int]:
    """Sleep until one of the descriptors is readable; returns which are."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(timeout_s * 1000)}


def wait_for_news(sleepers: Sequence[Sleeper], timeout_s: float, also: Sequence[int]) -> bool:
    """Sleep until one of the endpoints has news or ``also`` is readable; see ``Transport.wait``.

    Args:
        sleepers: endpoints of one thread; the first sleeps with the bells of the others beside its own.
    """
    moved = any(sleeper._moved for sleeper in sleepers)
    for sleeper in sleepers:
        sleeper._moved = moved  # A claim from one engine may have left messages of another alone.
    if _news(sleepers):
        return True
    now = time.monotonic()
    deadline = now + timeout_s
    if moved:
        spun = now + min(timeout_s, max(sleeper.spin_s for sleeper in sleepers))
        while time.monotonic() < spun:
            if _news(sleepers):
                return True
    while True:
        if _rest(sleepers, deadline, also) or _news(sleepers):
            return True
        if time.monotonic() >= deadline:
            return False


def drain(sleepers: Sequence[Sleeper], drain_s: float) -> None:
    """Sleep until every push of the endpoints is claimed, or the time is over."""
    deadline = time.monotonic() + drain_s
    while not _all_claimed(sleepers):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return
        try:
            _arm(sleepers)
            if not _all_claimed(sleepers):
                _sleep(sleepers, min(remaining, CLOSE_POLL_S), ())
        finally:
            _disarm(sleepers)


def _news(sleepers: Sequence[Sleeper]) -> bool:
    # All are asked: what one has to report must not keep the others from remembering what they reported.
    return True in [sleeper._news() for sleeper in sleepers]


def _all_claimed(sleepers: Sequence[Sleeper]) -> bool:
    return all(sleeper._all_claimed() for sleeper in sleepers)


def _arm(sleepers: Sequence[Sleeper]) -> bool:
    return True in [sleeper._arm(True) for sleeper in sleepers]


def _disarm(sleepers: Sequence[Sleeper]) -> None:
    for sleeper in sleepers:
        sleeper._arm(False)


def _rest(sleepers: Sequence[Sleeper], deadline: float, also: Sequence[int]) -> bool:
    """Sleep once; returns whether there is news, or a descriptor in ``also`` is readable."""
    try:
        # A push before the endpoint was armed did not ring: look again before sleeping.
        if _arm(sleepers) and _news(sleepers):
            return True
        return _sleep(sleepers, max(0.0, deadline - time.monotonic()), also)
    finally:
        _disarm(sleepers)


def _sleep(sleepers: Sequence[Sleeper], timeout_s: float, also: Sequence[int]) -> bool:
    """Sleep at the first endpoint; returns whether a descriptor in ``also`` is readable."""
    first, *others = sleepers
    if not others:
        return first._sleep(timeout_s, also)
    bells = [bell for other in others for bell in other.bells()]
    if not first._sleep(timeout_s, [*also, *bells]):
        return False
    for other in others:
        other._sleep(0.0, ())  # takes in its rings
    return bool(also) and bool(readable(also, 0.0))
