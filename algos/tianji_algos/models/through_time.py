"""Acting and training through torch with networks that remember."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Executor, Fields
from tianji_algos.device import Exchange, device_of
from tianji_algos.models.through_torch import TorchBackprop
from tianji_algos.sequences import Sequences

if TYPE_CHECKING:
    from tianji_algos.models.actor_critic import RecurrentActorCritic

Floats = npt.NDArray[np.float32]


class RecurrentExecutor(Executor):
    """Acts with a network that remembers, and remembers for it.

    Args:
        model: run as it is; ``adopt`` writes into its parameters.
        num_envs: N, how many environments are served at once.
    """

    def __init__(self, model: RecurrentActorCritic, num_envs: int) -> None:
        self._model = model
        device = device_of(model)
        self._exchange = Exchange(device)
        self._state = torch.zeros(num_envs, model.state_size, device=device)
        self._nowhere = torch.zeros(1, num_envs, dtype=torch.bool, device=device)

    def adopt(self, parameters: Floats) -> None:
        """Copy new parameters into the network; what is remembered stays."""
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
        policy, value, _ = self._model.unroll(
            to_device(sequences.observation), to_device(sequences.first), to_device(sequences.state)
        )
        self.propagate((policy, value), loss_gradient)
