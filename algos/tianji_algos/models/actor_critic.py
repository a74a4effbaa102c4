"""The public contract between PPO, IMPALA and their networks: a policy and a value for each observation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Executor, Model
from tianji_algos.models.torch_backend import TorchBackprop, TorchExecutor, TorchPass

Floats = npt.NDArray[np.float32]

LossGradient = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""Function of policy ``[B, outputs]`` and value ``[B]`` that returns the loss's derivatives, same shapes."""

Backprop = Callable[[Any, LossGradient], None]
"""Function of observations ``[B, ...]`` and a loss gradient that overwrites ``grad`` of every parameter.

A recurrent network takes ``Sequences``; its outputs are flat then, ``[T * B, outputs]`` and ``[T * B]``, time
first.
"""

TrainingPass = Callable[[Any], tuple[torch.Tensor, ...]]
"""Function of observations that returns policy and value, differentiably.

Observations are an array, or a tensor on the network's device. A recurrent network takes ``Sequences``, as
for ``Backprop``.
"""


class ActorCritic(Model):
    """A network with two outputs: the parameters of the action distribution, and the value.

    A user's subclass needs ``forward`` alone; acting and training then go through torch. The policy
    has ``distribution_for(spaces.action).outputs`` numbers per row: logits for discrete actions, means
    followed by logarithms of standard deviations for continuous ones.
    """

    @abstractmethod
    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute ``policy [N, outputs]`` and ``value [N]`` from ``observation [N, ...]`` as it comes."""

    def executor(self, batch_size: int) -> Executor:  # noqa: ARG002 - torch allocates its outputs itself
        """Build an executor that runs a copy of this network in torch."""
        return TorchExecutor(self)

    def backprop(self) -> Backprop:
        """Build the backward pass for losses differentiated by hand, as on a CPU; here torch's autograd.

        Call this once parameters and gradients are in their final memory.
        """
        return TorchBackprop(self)

    def training_pass(self) -> TrainingPass:
        """Build the forward pass for losses in torch."""
        return TorchPass(self)
