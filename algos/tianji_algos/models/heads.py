"""What comes after the features: a policy and a value."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from torch import nn

from tianji_algos.distributions import Gaussian, distribution_for
from tianji_algos.models.layers import build_layers


class PolicyValueHead(nn.Module):
    """One layer with the outputs of the policy and the value; in float32, which probabilities need.

    The standard deviation of continuous actions is a parameter of its own and depends on no observation.

    Args:
        features: width of what it gets.
        space: of the actions.
        policy_gain: scale of the policy output's initial weights.
        initial_log_std: of the Gaussian policy.

    Raises:
        UnsupportedSpaceError: an action space that it cannot serve.
    """

    def __init__(
        self, features: int, space: gym.Space[Any], policy_gain: float, initial_log_std: float
    ) -> None:
        super().__init__()
        distribution = distribution_for(space)
        gaussian = isinstance(distribution, Gaussian)
        outputs = distribution.outputs // 2 if gaussian else distribution.outputs
        self.outputs = build_layers(features, (), "relu", [policy_gain] * outputs + [1.0])
        self.log_std = nn.Parameter(torch.full((outputs,), initial_log_std)) if gaussian else None

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute policy ``[N, outputs]`` and value ``[N]`` from ``features [N, features]``."""
        outputs = self.outputs(features)
        policy, value = outputs[:, :-1], outputs[:, -1]
        if self.log_std is not None:
            policy = torch.cat((policy, self.log_std.expand_as(policy)), dim=1)
        return policy, value
