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
"""From observations ``[B, ...]`` to ``(Q [B, A],)``, in memory that the next call may reuse."""

LossGradient = Callable[[Floats], tuple[Floats]]
"""From ``Q [B, A]`` to the loss's derivative by it, same shape."""

Backprop = Callable[[Any, LossGradient], None]
"""From observations ``[B, ...]`` and the loss's derivative to ``grad`` of every parameter, overwritten."""


class QNetwork(Model):
    """A network that gives the value of each action.

    A user's subclass needs ``forward`` alone; acting and training then go through torch.
    """

    @abstractmethod
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Compute ``Q [N, A]`` from ``observation [N, ...]`` as it comes; ``A`` is ``count_actions``."""

    def executor(self, batch_size: int) -> Executor:  # noqa: ARG002 - torch allocates its outputs itself
        """Act through torch with a copy of this network."""
        return TorchExecutor(self)

    def evaluation(self) -> Forward:
        """Build a forward pass, on a CPU, with this network's parameters as they are when it is called.

        Built once the parameters are in their final memory. Its outputs outlive a call of ``backprop``.
        """
        return TorchForward(self)

    def backprop(self) -> Backprop:
        """Train by a loss that is differentiated by hand, as on a CPU; through torch's autograd.

        Built once parameters and gradients are in their final memory.
        """
        return TorchBackprop(self)


def count_actions(space: gym.Space[Any]) -> int:
    """Count the actions of a space.

    Raises:
        UnsupportedSpaceError: there are not finitely many single actions.
    """
    if not isinstance(space, gym.spaces.Discrete):
        raise UnsupportedSpaceError(
            f"DQN compares the values of single actions, so it acts in Discrete spaces, not in {space}; "
            "let the environment number its actions, or use an agent for this space, such as 'ppo'"
        )
    return int(space.n)
