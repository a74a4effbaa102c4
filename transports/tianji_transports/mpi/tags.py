"""How the ``mpi`` engine tells streams apart, and the small frames that prepare them.

Data has no header: a message's tag says which job and which stream it belongs to, MPI says who sent it.

    channel   DATA     sender -> receiver   a payload, synchronously: over when it was claimed
              BACK     receiver -> sender   WELCOME: I take messages; BYE: I closed after ``number`` claims
    slot      VALUE    writer -> reader     a line with the version, and the payload
              BACK     reader -> writer     WELCOME: I read; BYE: I closed
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from tianji_transports.errors import TransportError
from tianji_transports.wiring import Wiring, digest

LINE = 64
"""Bytes before a slot's payload."""
_FRAME = struct.Struct("<QBxxxiQ")
_VERSION = struct.Struct("<Qq")
FRAME_BYTES = _FRAME.size
SCHEME = "mpi:"


class Kind(enum.IntEnum):
    """What a frame says."""

    WELCOME = 1
    BYE = 2


class Frame(NamedTuple):
    """A small message that prepares or ends a stream.

    Attributes:
        digest: of the job and its wiring.
        kind: a ``Kind``.
        rank: who sends it.
        number: claims so far.
    """

    digest: int
    kind: int
    rank: int
    number: int


class Tags:
    """The tags of one job: a block of MPI's tags, chosen by the job's digest.

    Attributes:
        digest: of the job and its wiring.
        data: by channel index, the tag of its messages.
        back: by (channel index, sender), the tag of what its receiver answers.
        value: by (slot index, reader), the tag of its values.
        join: by slot index, the tag of what its readers tell the writer.
    """

    def __init__(self, wiring: Wiring, largest: int) -> None:
        self.digest = digest(wiring)
        self.data: dict[int, int] = {}
        self.back: dict[tuple[int, int], int] = {}
        self.value: dict[tuple[int, int], int] = {}
        self.join: dict[int, int] = {}
        count = sum(1 + len(channel.senders) for channel in wiring.channels)
        count += sum(1 + len(slot.readers) for slot in wiring.slots)
        if count > largest:
            raise TransportError(f"the job needs {count} tags; this MPI has {largest}")
        tag = count * (self.digest % ((largest + 1) // max(1, count)))
        for index, channel in enumerate(wiring.channels):
            self.data[index] = tag
            for offset, sender in enumerate(channel.senders, 1):
                self.back[index, sender] = tag + offset
            tag += 1 + len(channel.senders)
        for index, slot in enumerate(wiring.slots):
            self.join[index] = tag
            for offset, reader in enumerate(slot.readers, 1):
                self.value[index, reader] = tag + offset
            tag += 1 + len(slot.readers)

    def frame(self, kind: Kind, rank: int, number: int = 0) -> bytes:
        """Make a frame of this job."""
        return _FRAME.pack(self.digest, kind, rank, number)

    def read_frame(self, memory: bytearray, nbytes: int) -> Frame | None:
        """Read a frame; None if it is malformed or of another job."""
        if nbytes != FRAME_BYTES:
            return None
        frame = Frame._make(_FRAME.unpack_from(memory))
        return frame if frame.digest == self.digest else None

    def write_version(self, into: memoryview, version: int) -> None:
        """Write the line before a slot's payload."""
        _VERSION.pack_into(into, 0, self.digest, version)

    def read_version(self, memory: memoryview) -> int | None:
        """Read the line before a slot's payload; None if it is of another job."""
        found, version = _VERSION.unpack_from(memory)
        return int(version) if found == self.digest else None


def format_address(process: int) -> str:
    """Return where an endpoint is: its process's rank in the MPI job."""
    return f"{SCHEME}{process}"


def parse_address(address: str, processes: int) -> int:
    """Read what ``format_address`` wrote, in a job of so many processes."""
    number = address.removeprefix(SCHEME)
    if not address.startswith(SCHEME) or not number.isdecimal() or int(number) >= processes:
        raise TransportError(f"{address!r} is no address in an MPI job of {processes} processes")
    return int(number)
