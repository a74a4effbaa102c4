"""Actor-critics that remember, and how torch acts with them and trains them through time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Executor, Fields
from tianji_algos.device import Exchange, device_of
from tianji_algos.models.actor_critic import ActorCritic, Backprop
from tianji_algos.models.torch_backend import TorchBackprop, acting_copy
from tianji_algos.sequences import Sequences

Floats = npt.NDArray[np.float32]


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
            first: ``[T, B]`` bool, on the host, so that where episodes begin is known without waiting for a
                device; the state is zero before these.
            state: ``[B, state_size]`` before the first step; zero is nothing remembered.

        Returns:
            Policy ``[T * B, outputs]`` and value ``[T * B]``, time first, and the state after the last step.
        """

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute policy and value of observations ``[N, ...]`` of which nothing earlier is remembered."""
        state = torch.zeros(len(observation), self.state_size, device=observation.device)
        first = torch.zeros(1, len(observation), dtype=torch.bool)
        policy, value, _ = self.unroll(observation[None], first, state)
        return policy, value

    def executor(self, batch_size: int) -> Executor:
        """Act through torch with a copy of this network, and remember."""
        return RecurrentExecutor(self, batch_size)

    def backprop(self) -> Backprop:
        """Train through time with torch's autograd, on ``Sequences``."""
        return RecurrentBackprop(self)


class RecurrentExecutor(Executor):
    """Acts with a copy of a network that remembers, and remembers for it.

    Args:
        model: is copied, and stays as it is.
        num_envs: N, how many environments are served at once.
    """

    def __init__(self, model: RecurrentActorCritic, num_envs: int) -> None:
        self._model = acting_copy(model)
        device = device_of(model)
        self._exchange = Exchange(device)
        self._state = torch.zeros(num_envs, model.state_size, device=device)
        self._nowhere = torch.zeros(1, num_envs, dtype=torch.bool)

    def adopt(self, parameters: Floats) -> None:
        """Copy new parameters in; what is remembered stays."""
        self._model.read_parameters(parameters)

    def __call__(self, observation: npt.NDArray[Any]) -> tuple[Floats, ...]:
        """Give policy and value for ``observation [N, ...]``, and move on by one step."""
        return self._run(observation, moves_on=True)

    def preview(self, observation: npt.NDArray[Any]) -> tuple[Floats, ...]:
        """Give policy and value for ``observation [N, ...]``, and stay."""
        return self._run(observation, moves_on=False)

    def record(self, fields: Fields) -> None:
        """Write the field ``state``, ``[1, N, state_size]``."""
        fields["state"][0] = self._state.cpu().numpy()

    def forget(self, where: npt.NDArray[np.bool_]) -> None:
        """Forget what was seen in those environments, ``[N]``."""
        self._state.masked_fill_(self._exchange.to_device(where)[:, None], 0.0)

    def _run(self, observation: npt.NDArray[Any], moves_on: bool) -> tuple[Floats, ...]:
        with torch.inference_mode():
            seen = self._exchange.to_device(observation)[None]
            policy, value, state = self._model.unroll(seen, self._nowhere, self._state)
            if moves_on:
                self._state.copy_(state)
            return self._exchange.to_host((policy, value))


class RecurrentBackprop(TorchBackprop):
    """Differentiates a network through time with autograd.

    Args:
        model: its parameters' ``grad`` is written; it stays where it is now.
    """

    _model: RecurrentActorCritic

    def __call__(self, observation: Sequences, loss_gradient: Callable[..., tuple[Floats, ...]]) -> None:
        """Write the gradient of a loss on sequences, given its derivatives by the outputs, time first."""
        sequences = observation
        to_device = self._exchange.to_device
        first = torch.tensor(sequences.first)  # a copy, since torch knows no read-only memory
        policy, value, _ = self._model.unroll(
            to_device(sequences.observation), first, to_device(sequences.state)
        )
        self.propagate((policy, value), loss_gradient)
