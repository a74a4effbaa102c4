"""A fully connected actor-critic: torch holds the parameters, numpy does the arithmetic on a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.core import Executor, Spaces
from tianji_algos.device import device_of
from tianji_algos.distributions import Gaussian, distribution_for
from tianji_algos.models.actor_critic import ActorCritic, Backprop, LossGradient
from tianji_algos.models.layers import (
    NumpyExecutor,
    build_layers,
    dense_network,
    gradient_views,
    select_layers,
    value_views,
)
from tianji_algos.models.observation_encoder import ObservationEncoder
from tianji_algos.models.settings import MLPActorCriticSettings

Floats = npt.NDArray[np.float32]


class MLPActorCritic(ActorCritic):
    """Policy and value as two fully connected networks, or as two outputs of one.

    The standard deviation of continuous actions is a parameter of its own and depends on no observation.

    Args:
        spaces: of one environment.
        settings: widths, activation, shared or separate, initial scales.

    Raises:
        UnsupportedSpaceError: an observation or action space that it cannot serve.
    """

    settings_type: ClassVar[type[MLPActorCriticSettings]] = MLPActorCriticSettings

    def __init__(self, spaces: Spaces, settings: MLPActorCriticSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = ObservationEncoder(spaces.observation)
        distribution = distribution_for(spaces.action)
        gaussian = isinstance(distribution, Gaussian)
        self.policy_outputs = distribution.outputs // 2 if gaussian else distribution.outputs
        gains = [settings.policy_gain] * self.policy_outputs
        if settings.shared:
            self.policy = self._network([*gains, 1.0])
            self.value = None
        else:
            self.policy = self._network(gains)
            self.value = self._network([1.0])
        self.log_std = (
            nn.Parameter(torch.full((self.policy_outputs,), settings.initial_log_std)) if gaussian else None
        )

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute policy ``[N, outputs]`` and value ``[N]`` in torch, on any device."""
        rows = self.encoder.in_torch(observation)
        policy = self.policy(rows)
        if self.value is None:
            policy, value = policy[:, :-1], policy[:, -1]
        else:
            value = self.value(rows)[:, 0]
        if self.log_std is not None:
            policy = torch.cat((policy, self.log_std.expand_as(policy)), dim=1)
        return policy, value

    def executor(self, batch_size: int) -> Executor:
        """Act in numpy with a copy of the parameters on a CPU, in torch elsewhere."""
        if not self._on_cpu():
            return super().executor(batch_size)
        return NumpyExecutor(self, partial(_NumpyActorCritic, self))

    def backprop(self) -> Backprop:
        """Train in numpy on a CPU, in torch elsewhere."""
        return MLPBackprop(self) if self._on_cpu() else super().backprop()

    def _on_cpu(self) -> bool:
        return device_of(self).type == "cpu"

    def _network(self, output_gains: Sequence[float]) -> nn.Sequential:
        settings = self.settings
        return build_layers(self.encoder.features, settings.hidden, settings.activation, output_gains)


class _NumpyActorCritic:
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


class MLPBackprop:
    """Differentiates an ``MLPActorCritic`` by hand.

    Args:
        model: its parameters and their ``grad`` are read and written where they are now.
    """

    def __init__(self, model: MLPActorCritic) -> None:
        gradients = gradient_views(model)
        self._networks = _NumpyActorCritic(model, value_views(model))
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
