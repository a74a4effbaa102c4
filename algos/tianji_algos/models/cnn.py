"""Convolutional networks for images: an actor-critic, and action values."""

from __future__ import annotations

from typing import ClassVar

import torch

from tianji_algos.core import Spaces
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.encoders import ImageEncoder, PolicyValueHead
from tianji_algos.models.layers import build_layers
from tianji_algos.models.q_network import QNetwork, count_actions
from tianji_algos.models.settings import CNNActorCriticSettings, CNNQSettings


class CNNActorCritic(ActorCritic):
    """Policy and value of images on one convolutional network (Mnih et al., 2016; Espeholt et al., 2018).

    Args:
        spaces: of one environment.
        settings: which convolutions, initial scales, precision.

    Raises:
        UnsupportedSpaceError: an observation or action space that it cannot serve.
    """

    settings_type: ClassVar[type[CNNActorCriticSettings]] = CNNActorCriticSettings

    def __init__(self, spaces: Spaces, settings: CNNActorCriticSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = ImageEncoder(spaces.observation, settings, settings.widths)
        self.head = PolicyValueHead(
            self.encoder.features, spaces.action, settings.policy_gain, settings.initial_log_std
        )

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute policy ``[N, outputs]`` and value ``[N]`` from images ``[N, S, H, W]``."""
        policy, value = self.head(self.encoder(observation))
        return policy, value


class CNNQ(QNetwork):
    """Action values of images, plain (Mnih et al., 2015) or dueling (Wang et al., 2016).

    Args:
        spaces: of one environment.
        settings: which convolutions, dueling, precision.

    Raises:
        UnsupportedSpaceError: an observation or action space that it cannot serve.
    """

    settings_type: ClassVar[type[CNNQSettings]] = CNNQSettings

    def __init__(self, spaces: Spaces, settings: CNNQSettings) -> None:
        super().__init__()
        self.settings = settings
        actions = count_actions(spaces.action)
        widths = settings.widths
        if settings.dueling:  # the last layers of both streams, which see the same, are one
            widths = (*widths[:-1], 2 * widths[-1])
        self.encoder = ImageEncoder(spaces.observation, settings, widths)
        self.value = build_layers(settings.widths[-1], (), "relu", [1.0]) if settings.dueling else None
        self.actions = build_layers(settings.widths[-1], (), "relu", [1.0] * actions)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Compute ``Q [N, A]`` from images ``[N, S, H, W]``; dueling: V + A - mean(A), equation 9."""
        features = self.encoder(observation)
        if self.value is None:
            plain: torch.Tensor = self.actions(features)
            return plain
        of_value, of_advantage = features.chunk(2, dim=1)
        advantage = self.actions(of_advantage)
        q: torch.Tensor = self.value(of_value) + advantage - advantage.mean(dim=1, keepdim=True)
        return q
