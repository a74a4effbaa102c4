"""Messages of the ``ucx`` engine: each has a tag that names it, and a payload.

    HELLO    sender -> receiver    this life of the sender begins after push ``number``; where to answer it
    WELCOME  receiver -> sender    the receiver is there; where to send to
    DATA     sender -> receiver    a payload and nothing else
    CREDIT   receiver -> sender    every push up to ``number`` was claimed
    BYE      receiver -> sender    the receiver closes
    JOIN     reader -> writer      the reader has version ``number - 1`` of a slot at most; where to answer it
    VALUE    writer -> reader      a line with ``number``, which is the version + 1, and the value
    ACK      reader -> writer      VALUE ``number`` is there: send a newer one

UCX matches tags of 64 bits: job, kind, session and rank of the sender, index of the stream.
"""

from __future__ import annotations

import enum
import hashlib
import secrets
import struct
from typing import Final

from tianji_transports.errors import TransportError
from tianji_transports.wiring import Wiring

LINE: Final = 64
NUMBER: Final = struct.Struct("<Q")
STREAM_BITS: Final = 12
RANK_BITS: Final = 14
SESSION_BITS: Final = 12
KIND_BITS: Final = 3
JOB_BITS: Final = 23
RANK_AT: Final = STREAM_BITS
SESSION_AT: Final = RANK_AT + RANK_BITS
KIND_AT: Final = SESSION_AT + SESSION_BITS
JOB_AT: Final = KIND_AT + KIND_BITS
JOB_MASK: Final = ((1 << JOB_BITS) - 1) << JOB_AT


class Kind(enum.IntEnum):
    """Kinds of messages."""

    HELLO = 0
    WELCOME = 1
    DATA = 2
    CREDIT = 3
    BYE = 4
    JOIN = 5
    VALUE = 6
    ACK = 7


def job_bits(wiring: Wiring) -> int:
    """Job part of the tags, the same at all endpoints of a job.

    Raises:
        TransportError: the wiring has more streams or higher ranks than a tag can name.
    """
    streams = max(len(wiring.channels), len(wiring.slots))
    ranks = wiring.ranks
    if streams > 1 << STREAM_BITS or max(ranks, default=0) >= 1 << RANK_BITS:
        raise TransportError(
            f"transport 'ucx' names {1 << STREAM_BITS} streams and {1 << RANK_BITS} ranks;"
            f" job {wiring.job!r} has {streams} streams and rank {max(ranks, default=0)}"
        )
    digest = hashlib.sha256(repr(wiring).encode()).digest()
    return int.from_bytes(digest[:8], "little") % (1 << JOB_BITS) << JOB_AT


def new_session(incarnation: int) -> int:
    """Number one life of a rank: its incarnation, and random bits, since one may open two endpoints."""
    return (incarnation % 16) << 8 | secrets.randbits(8)


def tag_of(job: int, kind: Kind, session: int, rank: int, stream: int) -> int:
    """Make a tag."""
    return job | kind << KIND_AT | session << SESSION_AT | rank << RANK_AT | stream


def tag_parts(tag: int) -> tuple[int, int, int, int]:
    """Take a tag apart: kind, session, rank, stream."""
    return (
        tag >> KIND_AT & (1 << KIND_BITS) - 1,
        tag >> SESSION_AT & (1 << SESSION_BITS) - 1,
        tag >> RANK_AT & (1 << RANK_BITS) - 1,
        tag & (1 << STREAM_BITS) - 1,
    )
