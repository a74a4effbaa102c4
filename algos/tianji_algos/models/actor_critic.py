"""The contract between PPO and its networks: a policy and a value for each observation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Executor, Model

Floats = npt.NDArray[np.float32]

LossGradient = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""From policy ``[B, outputs]`` and value ``[B]`` to the loss's derivatives by them, same shapes."""

Backprop = Callable[[npt.NDArray[Any], LossGradient], None]
"""From observations ``[B, ...]`` and the loss's derivative to ``grad`` of every parameter, overwritten."""


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


class TorchExecutor(Executor):
    """Runs any actor-critic's forward pass in torch.

    Args:
        model: run as it is; ``adopt`` writes into its parameters.
    """

    def __init__(self, model: ActorCritic) -> None:
        self._model = model
        self._device = next(model.parameters()).device

    def adopt(self, parameters: Floats) -> None:
        """Copy new parameters into the network."""
        self._model.read_parameters(parameters)

    def __call__(self, observation: npt.NDArray[Any]) -> tuple[Floats, ...]:
        """Give policy ``[N, outputs]`` and value ``[N]``."""
        with torch.inference_mode():
            policy, value = self._model(torch.from_numpy(observation).to(self._device))
        return policy.cpu().numpy(), value.cpu().numpy()


class TorchBackprop:
    """Differentiates any actor-critic with autograd.

    Args:
        model: its parameters' ``grad`` is written.
    """

    def __init__(self, model: ActorCritic) -> None:
        self._model = model
        self._device = next(model.parameters()).device

    def __call__(self, observation: npt.NDArray[Any], loss_gradient: LossGradient) -> None:
        """Write the gradient of a loss on ``observation [B, ...]``."""
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        policy, value = self._model(torch.from_numpy(observation).to(self._device))
        d_policy, d_value = loss_gradient(policy.detach().cpu().numpy(), value.detach().cpu().numpy())
        gradients = [torch.from_numpy(d).to(self._device) for d in (d_policy, d_value)]
        torch.autograd.backward([policy, value], gradients)
