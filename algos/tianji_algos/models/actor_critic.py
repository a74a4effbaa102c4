"""The contract between PPO, IMPALA and their networks: a policy and a value for each observation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Executor, Model
from tianji_algos.models.through_time import RecurrentBackprop, RecurrentExecutor
from tianji_algos.models.through_torch import TorchBackprop, TorchExecutor

Floats = npt.NDArray[np.float32]

LossGradient = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""From policy ``[B, outputs]`` and value ``[B]`` to the loss's derivatives by them, same shapes."""

Backprop = Callable[[Any, LossGradient], None]
"""From observations ``[B, ...]`` and the loss's derivative to ``grad`` of every parameter, overwritten.

Observations are an array, or a tensor on the network's device. A ``RecurrentActorCritic`` takes
``Sequences``; its outputs are flat then, ``[T * B, outputs]`` and ``[T * B]``, time first.
"""


class ActorCritic(Model):
    """A network with two outputs: the parameters of the action distribution, and the value.

    A subclass of one's own needs ``forward`` alone; acting and training then go through torch. The policy
    has ``distribution_for(spaces.action).outputs`` numbers per row: logits for discrete actions, means
    followed by logarithms of standard deviations for continuous ones.
    """

    @abstractmethod
    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute ``policy [N, outputs]`` and ``value [N]`` from ``observation [N, ...]`` as it comes."""

    def executor(self, batch_size: int) -> Executor:  # noqa: ARG002 - torch allocates its outputs itself
        """Act through torch with a copy of this network."""
        return TorchExecutor(self)

    def backprop(self) -> Backprop:
        """Train through torch's autograd. Built once parameters and gradients are in their final memory."""
        return TorchBackprop(self)


class RecurrentActorCritic(ActorCritic):
    """An actor-critic that remembers: its state goes from step to step, and into each fragment.

    A subclass of one's own needs ``unroll``, ``state_size`` and ``recorded``, which declares the field
    ``state``; acting and training then go through torch.

    Attributes:
        state_size: numbers that it remembers of one environment.
    """

    state_size: int

    @abstractmethod
    def unroll(
        self, observation: torch.Tensor, first: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Go through steps in their order.

        Args:
            observation: ``[T, B, ...]`` as it comes.
            first: ``[T, B]`` bool; the state is zero before these.
            state: ``[B, state_size]`` before the first step; zero is nothing remembered.

        Returns:
            Policy ``[T * B, outputs]`` and value ``[T * B]``, time first, and the state after the last step.
        """

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute policy and value of observations ``[N, ...]`` of which nothing earlier is remembered."""
        state = torch.zeros(len(observation), self.state_size, device=observation.device)
        first = torch.zeros(1, len(observation), dtype=torch.bool, device=observation.device)
        policy, value, _ = self.unroll(observation[None], first, state)
        return policy, value

    def executor(self, batch_size: int) -> Executor:
        """Act through torch, and remember."""
        return RecurrentExecutor(self, batch_size)

    def backprop(self) -> Backprop:
        """Train through time with torch's autograd, on ``Sequences``."""
        return RecurrentBackprop(self)
