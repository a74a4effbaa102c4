"""Sums of priorities, from which samples are drawn in proportion: a wide, shallow tree of numpy arrays.

Every operation takes many leaves at once, as a numpy call costs as much as dozens of additions. So a node
has many children, and a search looks at all children of a node together.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

FANOUT: Final = 16
"""Children of a node: with fewer there are more levels, with more there is more to look at in each."""

TOP: Final = 4096
"""Nodes of the uppermost level at most, which is searched as a whole."""

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


class SumTree:
    """Non-negative numbers and the sums of groups of them.

    A node is always the sum of its children, computed anew when one of them changes, so that nothing drifts.
    Leaves are float32: a priority needs no more, and the memory and its traffic are halved.

    Args:
        size: leaves, all 0 at first.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a sum tree needs leaves, not {size}")
        self._levels: list[npt.NDArray[np.float32 | np.float64]] = [
            np.zeros((nodes, FANOUT), np.float64 if level else np.float32)
            for level, nodes in enumerate(_groups(size))
        ]
        self._flat = [level.reshape(-1) for level in self._levels]
        self._top = self._flat[-1]

    @staticmethod
    def bytes_for(size: int) -> int:
        """Size of a tree with so many leaves."""
        return sum(nodes * FANOUT * (8 if level else 4) for level, nodes in enumerate(_groups(size)))

    @property
    def nbytes(self) -> int:
        """Size of all levels."""
        return sum(level.nbytes for level in self._levels)

    @property
    def leaves(self) -> npt.NDArray[np.float32]:
        """All leaves, and zeros up to the end of the last group."""
        return self._flat[0].view(np.float32)

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._top.sum(dtype=np.float64))

    def set(self, indices: Indices, values: npt.ArrayLike) -> None:
        """Give leaves new values; of several for one leaf, the last counts."""
        self._flat[0][indices] = values
        self._add_up(indices // FANOUT)

    def set_range(self, first: int, values: Floats) -> None:
        """Give leaves from ``first`` on new values."""
        past = first + values.size
        self._flat[0][first:past] = values
        self._add_up(np.arange(first // FANOUT, -(-past // FANOUT)))

    def add_up(self) -> None:
        """Compute all sums from leaves that were written directly."""
        self._add_up(np.arange(len(self._levels[0])))

    def find(self, prefixes: Floats) -> tuple[Indices, Floats]:
        """Find the leaf in which each prefix of the total ends: the first with a larger sum up to its end.

        Args:
            prefixes: ``[B]``, from 0 to less than ``total``; overwritten.

        Returns:
            The leaves, none of which is 0, and their values. Only for a tree whose total is not 0.
        """
        sums = np.cumsum(self._top, dtype=np.float64)
        np.minimum(prefixes, np.nextafter(sums[-1], 0.0), out=prefixes)
        nodes = np.searchsorted(sums, prefixes, side="right")
        prefixes -= sums[nodes] - self._top[nodes]
        rows = np.arange(prefixes.size)
        for level in reversed(self._levels[:-1]):
            sums = np.cumsum(level.take(nodes, axis=0), axis=1, dtype=np.float64)
            # Rounding may leave a prefix outside its node by a little.
            np.minimum(prefixes, np.nextafter(sums[:, -1], 0.0), out=prefixes)
            np.maximum(prefixes, 0.0, out=prefixes)
            child = np.count_nonzero(sums <= prefixes[:, None], axis=1)
            before = np.where(child > 0, sums[rows, child - 1], 0.0)
            prefixes -= before
            nodes = nodes * FANOUT + child
        return nodes, self._flat[0][nodes].astype(np.float64)

    def _add_up(self, nodes: Indices) -> None:
        """Compute nodes of the level above the leaves, and all above them, anew."""
        for children, sums in zip(self._levels, self._flat[1:], strict=False):
            sums[nodes] = children.take(nodes, axis=0).sum(axis=1, dtype=np.float64)
            nodes = nodes // FANOUT


def _groups(size: int) -> list[int]:
    """Groups of ``FANOUT`` nodes in each level, from the leaves up."""
    groups = [-(-size // FANOUT)]
    while groups[-1] * FANOUT > TOP:
        groups.append(-(-groups[-1] // FANOUT))
    return groups
