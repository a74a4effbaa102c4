"""What a learner wants to know of every fragment that was received, whether or not it learns from it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_cli.wire.fragment import Fragment

_HEADER: Final = np.dtype([("samples", "<u8"), ("age_ns", "<i8"), ("returns", "<u8"), ("wins", "<u8")])
_RETURN: Final = np.dtype(np.float32)
_WIN: Final = np.dtype(np.bool_)


@dataclass(frozen=True)
class FragmentStats:
    """A fragment was received.

    Attributes:
        samples: steps in it that are experience.
        started_ns: when its first step began, ``time.monotonic_ns`` of this host.
        returns: of the episodes that ended in it, in that order.
        wins: which of these were won; empty where nothing is won.
    """

    samples: int
    started_ns: int
    returns: Sequence[float]
    wins: Sequence[bool] = ()

    @classmethod
    def of(cls, fragment: Fragment, started_ns: int | None = None) -> FragmentStats:
        """Say what is to be counted of a fragment, which has just been received if no time is given."""
        if started_ns is None:
            started_ns = time.monotonic_ns() - int(fragment.header["age_ns"])
        returns, wins = ended(fragment.fields["episode_return"], fragment.fields.get("won"))
        return cls(int(fragment.header["samples"]), started_ns, returns, wins)

    @staticmethod
    def nbytes(fragment_steps: int) -> int:
        """Size of an arrival's message, in bytes: every step of a fragment may end an episode."""
        return _HEADER.itemsize + fragment_steps * (_RETURN.itemsize + _WIN.itemsize)

    def write(self, memory: memoryview) -> None:
        """Write it as a message; hosts share no clock, so the time becomes an age."""
        header = np.ndarray((), _HEADER, memory)
        count, age_ns = len(self.returns), time.monotonic_ns() - self.started_ns
        header[...] = (self.samples, age_ns, count, len(self.wins))
        np.ndarray(count, _RETURN, memory, _HEADER.itemsize)[...] = self.returns
        np.ndarray(len(self.wins), _WIN, memory, _after(count))[...] = self.wins

    @classmethod
    def read(cls, memory: memoryview) -> FragmentStats | None:
        """Read what ``write`` wrote; None if it is no such message."""
        if memory.nbytes < _HEADER.itemsize:
            return None
        header = np.ndarray((), _HEADER, memory)
        samples, age_ns, count, wins = (int(header[name]) for name in _HEADER.names or ())
        if cls.nbytes(max(samples, count)) > memory.nbytes or age_ns < 0 or wins not in {0, count}:
            return None
        returns = np.ndarray(count, _RETURN, memory, _HEADER.itemsize).tolist()
        # Whatever a byte holds: it is no bool before it was compared.
        won = np.ndarray(wins, np.uint8, memory, _after(count)) != 0
        return cls(samples, time.monotonic_ns() - age_ns, returns, won.tolist())


def _after(returns: int) -> int:
    """First byte behind so many returns."""
    return _HEADER.itemsize + returns * _RETURN.itemsize


def ended(
    episode_return: npt.NDArray[np.float32], won: npt.NDArray[np.bool_] | None = None
) -> tuple[list[float], list[bool]]:
    """Returns of the episodes that ended in a fragment, in the order they ended, and which were won.

    Args:
        episode_return: ``[T, N]``; NaN where no episode ended.
        won: ``[T, N]``; None where nothing is won, and nothing is said of it then.
    """
    where = ~np.isnan(episode_return)
    return episode_return[where].tolist(), [] if won is None else won[where].tolist()
