"""What a learner wants to know of every fragment that was received, whether or not it learns from it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tianji_cli.data.episodes import ended_returns
from tianji_cli.data.fragment import Fragment

_HEADER: Final = np.dtype([("samples", "<u8"), ("age_ns", "<i8"), ("returns", "<u8")])


@dataclass(frozen=True)
class Arrival:
    """A fragment was received.

    Attributes:
        samples: steps in it that are experience.
        started_ns: when its first step began, ``time.monotonic_ns`` of this host.
        returns: of the episodes that ended in it, in that order.
    """

    samples: int
    started_ns: int
    returns: Sequence[float]

    @classmethod
    def of(cls, fragment: Fragment, started_ns: int | None = None) -> Arrival:
        """Say what is to be counted of a fragment, which has just been received if no time is given."""
        if started_ns is None:
            started_ns = time.monotonic_ns() - int(fragment.header["age_ns"])
        returns = ended_returns(fragment.fields["episode_return"])
        return cls(int(fragment.header["samples"]), started_ns, returns)

    @staticmethod
    def nbytes(fragment_steps: int) -> int:
        """Size of an arrival's message, in bytes: every step of a fragment may end an episode."""
        return _HEADER.itemsize + fragment_steps * np.dtype(np.float32).itemsize

    def write(self, memory: memoryview) -> None:
        """Write it as a message; hosts share no clock, so the time becomes an age."""
        header = np.ndarray((), _HEADER, memory)
        header[...] = (self.samples, time.monotonic_ns() - self.started_ns, len(self.returns))
        np.ndarray(len(self.returns), np.float32, memory, _HEADER.itemsize)[...] = self.returns

    @classmethod
    def read(cls, memory: memoryview) -> Arrival | None:
        """Read what ``write`` wrote; None if it is no such message."""
        if memory.nbytes < _HEADER.itemsize:
            return None
        header = np.ndarray((), _HEADER, memory)
        samples, age_ns, count = (int(header[name]) for name in ("samples", "age_ns", "returns"))
        if cls.nbytes(max(samples, count)) > memory.nbytes or age_ns < 0:
            return None
        returns = np.ndarray(count, np.float32, memory, _HEADER.itemsize).tolist()
        return cls(samples, time.monotonic_ns() - age_ns, returns)
