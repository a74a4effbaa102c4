"""The loss of DQN, differentiated by hand on the outputs of a network on a CPU.

``dqn/dqn.py`` says what is computed, and why. This code works on transposed Q, ``[A, B]``: the built-in
network lays Q out that way in memory, and numpy is fast on rows of B numbers.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tianji_algos.action_mask import MaskReader
from tianji_algos.batch import Batch
from tianji_algos.dqn.dqn import pick
from tianji_algos.dqn.settings import DQNSettings
from tianji_algos.models.q_network import QNetwork

Floats = npt.NDArray[np.float32]


def bootstrap(next_q: Floats, chooser: Floats) -> Floats:
    """Take from ``next_q [B, A]`` the values ``[B]`` of the actions that are best by ``chooser [B, A]``."""
    if chooser is next_q:
        return cast("Floats", np.maximum.reduce(next_q.T))
    return pick(next_q, chooser.T.argmax(axis=0))[0]


class TDLossByHand:
    """Mean, over a batch, of the weighted Huber or half squared TD error.

    Args:
        delta: TD error from which the loss is linear; None for half the squared error everywhere.

    Attributes:
        errors: absolute TD error of each sample of the last batch, ``[B]``.
    """

    def __init__(self, delta: float | None) -> None:
        self._delta = np.float32(math.inf if delta is None else delta)
        self._d_q = np.empty((0, 0), np.float32)
        self.errors: Floats = np.empty(0, np.float32)

    def gradient(
        self, q: Floats, action: npt.NDArray[Any], target: Floats, weight: Floats
    ) -> tuple[Floats, tuple[float, float, float]]:
        """Differentiate by ``q [B, A]``.

        Args:
            action: actions taken, ``[B]``.
            target: target values of these actions, ``[B]``.
            weight: importance of each sample, ``[B]``.

        Returns:
            The derivative ``[B, A]``, reused by the next call, and the ``DIAGNOSTICS`` in order.
        """
        size = len(q)
        taken, where = pick(q, action)
        td_error = taken - target
        slope = np.clip(td_error, -self._delta, self._delta)
        chord = td_error - np.float32(0.5) * slope  # both losses are slope * (error - slope / 2)
        slope *= weight
        self.errors = np.abs(td_error)
        diagnostics = (
            float(np.dot(slope, chord)) / size,
            float(taken.mean()),
            float(self.errors.mean()),
        )
        slope /= np.float32(size)
        if self._d_q.shape != q.T.shape:
            self._d_q = np.empty(q.T.shape, np.float32)
        self._d_q.fill(0.0)
        self._d_q.reshape(-1)[where] = slope
        return self._d_q.T, diagnostics


class DQNByHand:
    """Differentiates DQN's loss.

    Args:
        model: in its final memory, with the memory of its gradients.
        target: target network.
        mask: reader of action masks; None if observations have none.
    """

    def __init__(
        self, model: QNetwork, target: QNetwork, settings: DQNSettings, mask: MaskReader | None
    ) -> None:
        self._mask = mask
        self._settings = settings
        self._backprop = model.backprop()
        self._online = model.evaluation()
        self._bootstrapped = target.evaluation()
        self._loss = TDLossByHand(settings.linear_from)
        self._latest = (0.0, 0.0, 0.0)

    def __call__(self, batch: Batch) -> tuple[tuple[float, float, float], Floats]:
        """Write the gradient; returns the diagnostics and the absolute TD errors ``[B]``."""
        target = self._targets(batch)

        def loss_gradient(q: Floats) -> tuple[Floats]:
            d_q, self._latest = self._loss.gradient(q, batch.fields["action"], target, batch.weight)
            return (d_q,)

        self._backprop(batch.observation, loss_gradient)
        return self._latest, self._loss.errors

    def _targets(self, batch: Batch) -> Floats:
        """Compute ``reward + discount * Q(next observation)``, ``[B]``."""
        (next_q,) = self._bootstrapped(batch.next_observation)
        chooser = self._online(batch.next_observation)[0] if self._settings.double else next_q
        if self._mask is not None:
            self._mask.forbid(chooser, batch.next_observation)
        target = bootstrap(next_q, chooser)
        target *= batch.discount
        target += batch.reward * np.float32(self._settings.reward_scale)
        return target
