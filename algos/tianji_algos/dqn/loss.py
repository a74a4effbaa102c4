"""DQN's loss, as the derivative that the update needs.

Everything works on transposed Q, ``[A, B]``: that is how the built-in network lays it out in memory, and
numpy is fast on rows of B numbers.
"""

from __future__ import annotations

import math
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

DIAGNOSTICS: Final = ("loss", "mean_q", "td_error")


def pick(q: Floats, action: npt.NDArray[Any]) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Take ``q[i, action[i]]`` of each row i of ``q [B, A]``.

    Returns:
        What was taken, ``[B]``, and where it is in the flat ``q.T``.
    """
    where = action.astype(np.intp)
    where *= len(q)
    where += np.arange(len(q))
    return q.T.reshape(-1).take(where, mode="clip"), where


def bootstrap(next_q: Floats, chooser: Floats) -> Floats:
    """Value the states that ``next_q [B, A]`` belongs to at the action that is best by ``chooser [B, A]``.

    With the online network as chooser this is double Q-learning (van Hasselt et al., 2016, equation 4);
    with ``next_q`` itself it is the maximum (Mnih et al., 2015).
    """
    if chooser is next_q:
        return cast("Floats", np.maximum.reduce(next_q.T))
    return pick(next_q, chooser.T.argmax(axis=0))[0]


class DQNLoss:
    """Mean, over a batch, of the weighted Huber or half squared TD error.

    Args:
        delta: TD error from which the loss is linear; None for half the squared error everywhere.

    Attributes:
        td_error: of each sample of the last batch, ``[B]``.
    """

    def __init__(self, delta: float | None) -> None:
        self._delta = np.float32(math.inf if delta is None else delta)
        self._d_q = np.empty((0, 0), np.float32)
        self.td_error: Floats = np.empty(0, np.float32)

    def gradient(
        self, q: Floats, action: npt.NDArray[Any], target: Floats, weight: Floats
    ) -> tuple[Floats, tuple[float, float, float]]:
        """Differentiate by ``q [B, A]``.

        Args:
            q: values of all actions.
            action: those taken, ``[B]``.
            target: what their values should have been, ``[B]``.
            weight: importance of each sample, ``[B]``.

        Returns:
            The derivative ``[B, A]``, reused by the next call, and the ``DIAGNOSTICS`` in order.
        """
        size = len(q)
        taken, where = pick(q, action)
        self.td_error = taken - target
        slope = np.clip(self.td_error, -self._delta, self._delta)
        chord = self.td_error - np.float32(0.5) * slope  # both losses are slope * (error - slope / 2)
        slope *= weight
        diagnostics = (
            float(np.dot(slope, chord)) / size,
            float(taken.mean()),
            float(np.abs(self.td_error).mean()),
        )
        slope /= np.float32(size)
        if self._d_q.shape != q.T.shape:
            self._d_q = np.empty(q.T.shape, np.float32)
        self._d_q.fill(0.0)
        self._d_q.reshape(-1)[where] = slope
        return self._d_q.T, diagnostics
