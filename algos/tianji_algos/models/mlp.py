"""Fully connected networks: an actor-critic and action values.

Torch holds the parameters. On a CPU numpy does the arithmetic (``fast_cpu/networks.py``), elsewhere torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.core import Executor, Spaces
from tianji_algos.device import is_on_host
from tianji_algos.distributions import Gaussian, distribution_for
from tianji_algos.models import q_network
from tianji_algos.models.actor_critic import ActorCritic, Backprop
from tianji_algos.models.layers import build_layers
from tianji_algos.models.observations import observation_encoder
from tianji_algos.models.q_network import Forward, QNetwork, count_actions
from tianji_algos.models.settings import MLPActorCriticSettings, MLPQSettings
from tianji_algos.registry import kernel

Floats = npt.NDArray[np.float32]


class MLPActorCritic(ActorCritic):
    """Policy and value as two fully connected networks, or as two outputs of one.

    The standard deviation of continuous actions is a parameter of its own and depends on no observation.

    Raises:
        UnsupportedSpaceError: an observation or action space that it cannot serve.
    """

    settings_type: ClassVar[type[MLPActorCriticSettings]] = MLPActorCriticSettings

    def __init__(self, spaces: Spaces, settings: MLPActorCriticSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = observation_encoder(spaces.observation, spaces.image_layout)
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
        """Build an executor with a copy of the parameters: in numpy on a CPU, in torch elsewhere."""
        if not is_on_host(self):
            return super().executor(batch_size)
        built: Executor = kernel("MLPActorCritic.executor")(self)
        return built

    def backprop(self) -> Backprop:
        """Build the backward pass in numpy."""
        built: Backprop = kernel("MLPActorCritic.backprop")(self)
        return built

    def _network(self, output_gains: Sequence[float]) -> nn.Sequential:
        settings = self.settings
        return build_layers(self.encoder.features, settings.hidden, settings.activation, output_gains)


class MLPQ(QNetwork):
    """Action values, plain or dueling (Wang et al., 2016).

    A dueling network without ``stream_hidden`` has one output layer, whose first output is the state's value
    and whose others are the advantages.

    Raises:
        UnsupportedSpaceError: an observation or action space that it cannot serve.
    """

    settings_type: ClassVar[type[MLPQSettings]] = MLPQSettings

    def __init__(self, spaces: Spaces, settings: MLPQSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = observation_encoder(spaces.observation, spaces.image_layout)
        self.actions = count_actions(spaces.action)
        outputs = self.actions + settings.dueling
        trunk_outputs = 0 if settings.stream_hidden else outputs
        activation, width = settings.activation, settings.hidden[-1]
        self.trunk = build_layers(self.encoder.features, settings.hidden, activation, [1.0] * trunk_outputs)
        if settings.stream_hidden:
            self.value = build_layers(width, settings.stream_hidden, activation, [1.0])
            self.advantage = build_layers(width, settings.stream_hidden, activation, [1.0] * self.actions)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Compute ``Q [N, A]`` in torch, on any device."""
        rows = self.encoder.in_torch(observation)
        flowing: torch.Tensor = self.trunk(rows)
        if not self.settings.dueling:
            return flowing
        if self.settings.stream_hidden:
            value, advantage = self.value(flowing), self.advantage(flowing)
        else:
            value, advantage = flowing[:, :1], flowing[:, 1:]
        q: torch.Tensor = value + advantage - advantage.mean(dim=1, keepdim=True)
        return q

    def executor(self, batch_size: int) -> Executor:
        """Build an executor with a copy of the parameters: in numpy on a CPU, in torch elsewhere."""
        if not is_on_host(self):
            return super().executor(batch_size)
        built: Executor = kernel("MLPQ.executor")(self)
        return built

    def evaluation(self) -> Forward:
        """Build a forward pass in numpy."""
        built: Forward = kernel("MLPQ.evaluation")(self)
        return built

    def backprop(self) -> q_network.Backprop:
        """Build the backward pass in numpy."""
        built: q_network.Backprop = kernel("MLPQ.backprop")(self)
        return built
