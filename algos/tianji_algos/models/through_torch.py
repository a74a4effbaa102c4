"""Acting and training through torch alone: what every model can do that brings nothing faster of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Executor, Model

Floats = npt.NDArray[np.float32]


class TorchForward:
    """Runs a network whose ``forward`` gives one tensor or several, on the device where it is.

    Args:
        model: run with the parameters that it has at the time.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._device = next(model.parameters()).device

    def __call__(self, observation: npt.NDArray[Any]) -> tuple[Floats, ...]:
        """Give each output ``[N, ...]`` for ``observation [N, ...]``."""
        with torch.inference_mode():
            outputs = _as_tuple(self._model(_tensor(observation).to(self._device)))
        return tuple(output.cpu().numpy() for output in outputs)


class TorchExecutor(TorchForward, Executor):
    """Acts with a network.

    Args:
        model: run as it is; ``adopt`` writes into its parameters.
    """

    def adopt(self, parameters: Floats) -> None:
        """Copy new parameters into the network."""
        self._model.read_parameters(parameters)


class TorchBackprop:
    """Differentiates a network with autograd.

    Args:
        model: its parameters' ``grad`` is written.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._device = next(model.parameters()).device

    def __call__(
        self, observation: npt.NDArray[Any], loss_gradient: Callable[..., tuple[Floats, ...]]
    ) -> None:
        """Write the gradient of a loss on ``observation [B, ...]``, given its derivatives by the outputs."""
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        outputs = _as_tuple(self._model(_tensor(observation).to(self._device)))
        derivatives = loss_gradient(*(output.detach().cpu().numpy() for output in outputs))
        gradients = [torch.from_numpy(derivative).to(self._device) for derivative in derivatives]
        torch.autograd.backward(outputs, gradients)


def _tensor(observation: npt.NDArray[Any]) -> torch.Tensor:
    """View an array as a tensor; torch knows no read-only memory, which is what a transport lends."""
    return torch.from_numpy(observation if observation.flags.writeable else observation.copy())


def _as_tuple(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (outputs,) if isinstance(outputs, torch.Tensor) else outputs
