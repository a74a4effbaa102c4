"""The built-in fully connected networks of one agent in numpy, and their derivatives.

``models/mlp.py`` says what is computed, and why: ``forward`` of each network, in torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_algos.fast_cpu.layers import (
    NumpyExecutor,
    dense_network,
    gradient_views,
    select_layers,
    value_views,
)
from tianji_algos.models import q_network
from tianji_algos.models.actor_critic import LossGradient
from tianji_algos.models.mlp import MLPQ, MLPActorCritic

Floats = npt.NDArray[np.float32]


class NumpyActorCritic:
    """Both networks' forward pass over named arrays, with the outputs side by side in one array."""

    def __init__(self, model: MLPActorCritic, arrays: Mapping[str, Floats]) -> None:
        activation = model.settings.activation
        self.encode = model.encoder
        self.mean_outputs = model.policy_outputs
        self.prefixes = ("policy",) if model.value is None else ("policy", "value")
        self.networks = [dense_network(arrays, prefix, activation) for prefix in self.prefixes]
        self.log_std = arrays.get("log_std")
        self._gaussian = np.empty((0, 0), np.float32)

    def __call__(self, observation: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        """Compute policy ``[N, outputs]`` and value ``[N]``; reused by the next call."""
        rows = self.encode(observation)
        policy = self.networks[0].forward(rows)
        value = policy[-1] if len(self.networks) == 1 else self.networks[1].forward(rows)[0]
        policy = policy[: self.mean_outputs]
        if self.log_std is not None:
            if self._gaussian.shape[1] != len(rows):
                self._gaussian = np.empty((2 * self.mean_outputs, len(rows)), np.float32)
            self._gaussian[: self.mean_outputs] = policy
            self._gaussian[self.mean_outputs :] = self.log_std[:, None]
            policy = self._gaussian
        return policy.T, value


def actor_critic_executor(model: MLPActorCritic) -> NumpyExecutor:
    """Build the executor, with a copy of the parameters."""
    return NumpyExecutor(model, partial(NumpyActorCritic, model))


class MLPBackprop:
    """Differentiates an ``MLPActorCritic`` by hand.

    Args:
        model: network whose parameters are read, and whose ``grad`` is written, in place.
    """

    def __init__(self, model: MLPActorCritic) -> None:
        gradients = gradient_views(model)
        self._networks = NumpyActorCritic(model, value_views(model))
        self._gradients = [select_layers(gradients, prefix) for prefix in self._networks.prefixes]
        self._d_log_std = gradients.get("log_std")

    def __call__(self, observation: npt.NDArray[Any], loss_gradient: LossGradient) -> None:
        """Write the gradient of a loss on ``observation [B, ...]``."""
        policy, value = self._networks(observation)
        d_policy, d_value = loss_gradient(policy, value)
        means = self._networks.mean_outputs
        if self._d_log_std is not None:
            np.add.reduce(d_policy.T[means:], axis=1, out=self._d_log_std)
        d_outputs = [d_policy.T[:means], d_value[None]]
        if len(self._networks.networks) == 1:
            d_outputs = [np.concatenate(d_outputs)]
        for network, d_output, (d_weights, d_biases) in zip(
            self._networks.networks, d_outputs, self._gradients, strict=True
        ):
            network.backward(d_output, d_weights, d_biases)


class _NumpyQ:
    """The forward and backward pass over named arrays; ``q [A, N]`` is feature-major."""

    prefixes: tuple[str, ...] = ("trunk",)

    def __init__(self, model: MLPQ, arrays: Mapping[str, Floats]) -> None:
        self.encode = model.encoder
        self.trunk = dense_network(
            arrays, "trunk", model.settings.activation, activate_output=bool(model.settings.stream_hidden)
        )

    def __call__(self, observation: npt.NDArray[Any]) -> tuple[Floats]:
        return (self.forward(self.encode(observation)).T,)

    def forward(self, rows: Floats) -> Floats:
        """Compute ``q [A, N]`` for encoded observations ``rows [N, features]``; reused by the next call."""
        return self.trunk.forward(rows)

    def backward(self, d_q: Floats, gradients: list[tuple[list[Floats], list[Floats]]]) -> None:
        """Write the gradients of the last ``forward``, given ``d_q [A, N]``.

        Args:
            gradients: weights and biases of the layers under each of ``prefixes``, written.
        """
        self.trunk.backward(d_q, *gradients[0])


class _NumpyDuelingQ(_NumpyQ):
    """Q = V + A - mean(A) (Wang et al., 2016, equation 9), where V and A are outputs of one layer."""

    def __init__(self, model: MLPQ, arrays: Mapping[str, Floats]) -> None:
        super().__init__(model, arrays)
        self._q = np.empty((model.actions, 0), np.float32)

    def forward(self, rows: Floats) -> Floats:
        """Compute ``q [A, N]`` from V and A, which the trunk's last layer gives."""
        outputs = self.trunk.forward(rows)
        return self._combine(outputs[0], outputs[1:])

    def backward(self, d_q: Floats, gradients: list[tuple[list[Floats], list[Floats]]]) -> None:
        """Divide ``d_q [A, N]`` between V and A, and go back through the trunk."""
        self.trunk.backward(np.concatenate(self._divide(d_q)), *gradients[0])

    def _combine(self, value: Floats, advantage: Floats) -> Floats:
        if self._q.shape != advantage.shape:
            self._q = np.empty_like(advantage)
        offset = value - np.add.reduce(advantage) / np.float32(len(advantage))
        np.add(advantage, offset, out=self._q)
        return self._q

    def _divide(self, d_q: Floats) -> tuple[Floats, Floats]:
        """Return the derivatives by V ``[1, N]`` and by A ``[A, N]``."""
        d_value: Floats = np.add.reduce(d_q, keepdims=True)
        d_advantage: Floats = d_q - d_value / np.float32(len(d_q))
        return d_value, d_advantage


class _NumpyStreams(_NumpyDuelingQ):
    """V and A as networks of their own on top of the trunk."""

    prefixes = ("trunk", "value", "advantage")

    def __init__(self, model: MLPQ, arrays: Mapping[str, Floats]) -> None:
        super().__init__(model, arrays)
        activation = model.settings.activation
        self.value = dense_network(arrays, "value", activation)
        self.advantage = dense_network(arrays, "advantage", activation)
        self._d_trunk = np.empty((2, model.settings.hidden[-1], 0), np.float32)

    def forward(self, rows: Floats) -> Floats:
        """Compute ``q [A, N]`` from V and A, which two networks compute from the trunk's output."""
        trunk = self.trunk.forward(rows).T
        return self._combine(self.value.forward(trunk)[0], self.advantage.forward(trunk))

    def backward(self, d_q: Floats, gradients: list[tuple[list[Floats], list[Floats]]]) -> None:
        """Divide ``d_q [A, N]`` between the two networks, and add up their derivatives by the trunk."""
        if self._d_trunk.shape[2] != d_q.shape[1]:
            self._d_trunk = np.empty((*self._d_trunk.shape[:2], d_q.shape[1]), np.float32)
        d_value, d_advantage = self._divide(d_q)
        by_value, by_advantage = self._d_trunk
        self.value.backward(d_value, *gradients[1], d_input=by_value)
        self.advantage.backward(d_advantage, *gradients[2], d_input=by_advantage)
        by_value += by_advantage
        self.trunk.backward(by_value, *gradients[0])


def numpy_q(model: MLPQ, arrays: Mapping[str, Floats]) -> _NumpyQ:
    """Build a model's network over named arrays."""
    if model.settings.stream_hidden:
        return _NumpyStreams(model, arrays)
    return (_NumpyDuelingQ if model.settings.dueling else _NumpyQ)(model, arrays)


def q_executor(model: MLPQ) -> NumpyExecutor:
    """Build the executor, with a copy of the parameters."""
    return NumpyExecutor(model, partial(numpy_q, model))


def evaluate_q(model: MLPQ) -> q_network.Forward:
    """Build a forward pass over the parameters in place."""
    return numpy_q(model, value_views(model))


class MLPQBackprop:
    """Differentiates an ``MLPQ`` by hand.

    Args:
        model: network whose parameters are read, and whose ``grad`` is written, in place.
    """

    def __init__(self, model: MLPQ) -> None:
        gradients = gradient_views(model)
        self._network = numpy_q(model, value_views(model))
        self._gradients = [select_layers(gradients, prefix) for prefix in self._network.prefixes]

    def __call__(self, observation: npt.NDArray[Any], loss_gradient: q_network.LossGradient) -> None:
        """Write the gradient of a loss on ``observation [B, ...]``."""
        (d_q,) = loss_gradient(*self._network(observation))
        self._network.backward(d_q.T, self._gradients)
