"""Frames of the ``zmq`` engine: one for each message, a header of one line and then the payload.

Sender and receiver talk through DEALER (sender) and ROUTER (receiver):

    HELLO    sender -> receiver    this life of the sender begins after push ``number``
    WELCOME  receiver -> sender    the receiver is there; ``session`` tells its lives apart
    DATA     sender -> receiver    push ``number`` and its payload
    CREDIT   receiver -> sender    every push up to ``number`` was claimed
    BYE      receiver -> sender    the receiver closes
    JOIN     reader -> writer      the reader has version ``number - 1`` of a slot at most

and a slot's VALUE goes from PUB (writer) to SUB (reader), both of which keep only the newest.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from typing import NamedTuple

from tianji_transports.wiring import Wiring

LINE = 64
_HEADER = struct.Struct("<QBxHIQQQ24x")  # one line


class Kind(enum.IntEnum):
    """Kinds of frames."""

    HELLO = 1
    WELCOME = 2
    DATA = 3
    CREDIT = 4
    BYE = 5
    JOIN = 6
    VALUE = 7


class Header(NamedTuple):
    """A frame's header.

    Attributes:
        digest: hash of the job and its wiring; endpoints reject a frame of another job.
        kind: a ``Kind``.
        stream: index of the channel or slot in the wiring.
        rank: rank of the sender.
        session: random number of the life that sends it.
        number: see ``Kind``; versions are counted from 1 here.
        nbytes: size of the payload after the header.
    """

    digest: int
    kind: int
    stream: int
    rank: int
    session: int
    number: int
    nbytes: int


Fields = tuple[int, int, int, int, int, int, int]
"""A header's fields in their order, as a plain tuple: to name them costs more than to read them."""


def password(wiring: Wiring, address: str) -> str:
    """Password of the endpoint at an address, for members inside a host.

    An endpoint whose peer has died connects again to its address, where a stranger may listen by then.
    """
    return hashlib.sha256(f"{address} {wiring!r}".encode()).hexdigest()


def write_header(into: memoryview | bytearray, header: Fields) -> None:
    """Write a header at the start of a frame's memory; a plain tuple of its fields costs least."""
    _HEADER.pack_into(into, 0, *header)


def control_frame(header: Header) -> bytes:
    """Make a frame without payload."""
    return _HEADER.pack(*header)


def read_fields(frame: memoryview | bytes, expected_digest: int) -> Fields | None:
    """Read a frame's header.

    Returns:
        None if the frame is malformed or of another job.
    """
    size = len(frame)
    if size < LINE:
        return None
    fields: Fields = _HEADER.unpack_from(frame)
    if fields[0] != expected_digest or fields[6] != size - LINE:
        return None
    return fields


def read_header(frame: memoryview | bytes, expected_digest: int) -> Header | None:
    """Read a frame's header with names."""
    fields = read_fields(frame, expected_digest)
    return None if fields is None else Header._make(fields)
