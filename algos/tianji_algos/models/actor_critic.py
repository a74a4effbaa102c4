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
"""From policy ``[B, outputs]`` and value ``[B]`` to the loss's derivatives by them, same shapes."""

Backprop = Callable[[Any, LossGradient], None]
"""From observations ``[B, ...]`` and the loss's derivative to ``grad`` of every parameter, overwritten.

A network that remembers takes ``Sequences``; its outputs are flat then, ``[T * B, outputs]`` and ``[T * B]``,
time first.
"""

TrainingPass = Callable[[Any], tuple[torch.Tensor, ...]]
"""From observations, an array or a tensor on the network's device, to policy and value, differentiably.

A network that remembers takes ``Sequences``, as for ``Backprop``.
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
        """Act through torch with a copy of this network."""
        return TorchExecutor(self)

    def backprop(self) -> Backprop:
        """Train by a loss that is differentiated by hand, as on a CPU; through torch's autograd.

        Built once parameters and gradients are in their final memory.
        """
        return TorchBackprop(self)

    def training_pass(self) -> TrainingPass:
        """Run in torch, for a loss that is written in torch."""
        return TorchPass(self)
