"""The channels and slots of a job: plain data that every endpoint is built from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Channel:
    """A stream from many senders to one receiver, FIFO per sender.

    Attributes:
        name: name of the stream, such as ``"fragments"``; unique per receiver.
        receiver: rank that probes.
        senders: ranks that push.
        max_bytes: size of the largest message.
        window: pushes that one sender may have unclaimed; ``loan`` answers FULL beyond it.
        borrow: claims that the receiver may hold at once, over all senders.
    """

    name: str
    receiver: int
    senders: tuple[int, ...]
    max_bytes: int
    window: int = 2
    borrow: int = 1

    def __post_init__(self) -> None:
        """Reject a channel that no engine could serve."""
        if not self.senders:
            raise ValueError(f"channel {self.name!r} has no sender")
        if self.max_bytes < 0 or self.window < 1 or self.borrow < 1:
            raise ValueError(f"channel {self.name!r}: max_bytes >= 0, window >= 1 and borrow >= 1 are needed")


@dataclass(frozen=True)
class Slot:
    """A latest-value slot: one writer, any number of readers, and only the newest value counts."""

    name: str
    writer: int
    readers: tuple[int, ...]
    max_bytes: int


@dataclass(frozen=True)
class Wiring:
    """All channels and slots of a job.

    Attributes:
        job: id of the job, unique on the host; engines derive their names from it.
        channels: every stream.
        slots: every latest-value slot.
    """

    job: str
    channels: tuple[Channel, ...] = ()
    slots: tuple[Slot, ...] = ()

    @property
    def ranks(self) -> set[int]:
        """The ranks that have a channel or a slot."""
        ranks = {rank for channel in self.channels for rank in (channel.receiver, *channel.senders)}
        return ranks | {rank for slot in self.slots for rank in (slot.writer, *slot.readers)}

    def channel(self, name: str, receiver: int) -> Channel:
        """Find a channel by its name and its receiver."""
        for channel in self.channels:
            if channel.name == name and channel.receiver == receiver:
                return channel
        raise KeyError(f"no channel {name!r} to rank {receiver}")

    def slot(self, name: str) -> Slot:
        """Find a slot by its name."""
        for slot in self.slots:
            if slot.name == name:
                return slot
        raise KeyError(f"no slot {name!r}")


def digest(wiring: Wiring) -> int:
    """64-bit hash of a wiring, the same at all endpoints of a job."""
    return int.from_bytes(hashlib.sha256(repr(wiring).encode()).digest()[:8], "little")
