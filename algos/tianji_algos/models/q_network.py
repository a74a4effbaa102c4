"""The contract between DQN and its networks: the value of each action for each observation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Executor, Model
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.models.torch_backend import TorchBackprop, TorchExecutor, TorchForward

Floats = npt.NDArray[np.float32]

Forward = Callable[[Any], tuple[Floats, ...]]
"""Function of observations ``[B, ...]`` that returns ``(Q [B, A],)``; the next call may reuse the array."""

LossGradient = Callable[[Floats], tuple[Floats]]
"""Function of ``Q [B, A]`` that returns the loss's derivative by Q, same shape."""

Backprop = Callable[[Any, LossGradient], None]
"""Function of observations ``[B, ...]`` and a loss gradient that overwrites ``grad`` of every parameter."""


class QNetwork(Model):
    """A network that gives the value of each action.

    A user's subclass needs ``forward`` alone; acting and training then go through torch.
    """

    @abstractmethod
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Compute ``Q [N, A]`` from ``observation [N, ...]`` as it comes; ``A`` is ``count_actions``."""

    def executor(self, batch_size: int) -> Executor:  # noqa: ARG002 - torch allocates its outputs itself
        """Build an executor that runs a copy of this network in torch."""
        return TorchExecutor(self)

    def evaluation(self) -> Forward:
        """Build a forward pass, on a CPU; each call computes with the network's current parameters.

        Call this once the parameters are in their final memory. Outputs outlive a call of ``backprop``.
        """
        return TorchForward(self)

    def backprop(self) -> Backprop:
        """Build the backward pass for losses differentiated by hand, as on a CPU; here torch's autograd.

        Call this once parameters and gradients are in their final memory.
        """
        return TorchBackprop(self)


def count_actions(space: gym.Space[Any]) -> int:
    """Count the actions of a space.

    Raises:
        UnsupportedSpaceError: the space is not Discrete.
    """
    if not isinstance(space, gym.spaces.Discrete):
        raise UnsupportedSpaceError(
            f"DQN compares the values of single actions, so it acts in Discrete spaces, not in {space}; "
            "let the environment number its actions, or use an agent for this space, such as 'ppo'"
        )
    return int(space.n)
