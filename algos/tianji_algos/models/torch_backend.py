"""Acting and training through torch alone, in float32 or bfloat16, for models without a faster way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.core import Executor, Model
from tianji_algos.device import Exchange, device_of
from tianji_algos.models.settings import Precision

Floats = npt.NDArray[np.float32]


class MixedPrecision(nn.Module):
    """Layers that compute in the precision that is set; their parameters are float32, for an optimizer."""

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self._converts = self.dtype != torch.float32

    def computing(self, device: torch.device) -> AbstractContextManager[object]:
        """Convert parameters and what flows on ``device`` as needed, within a ``with`` statement."""
        if not self._converts:
            return nullcontext()
        return torch.autocast(device.type, self.dtype, cache_enabled=False)

    def round_parameters(self) -> None:
        """Keep the parameters in the precision that is computed in, to act with and never to train.

        With few observations at a time, converting them at every step takes as long as a third of the rest.
        """
        self.to(self.dtype)
        self._converts = False

    def compute_in_float32(self) -> None:
        """Leave the precision that is set: files that act elsewhere have no other."""
        self.dtype, self._converts = torch.float32, False


Network = TypeVar("Network", bound=Model)


class TorchForward:
    """Runs a network whose ``forward`` gives one tensor or several, on the device where it is.

    Args:
        model: run with the parameters that it has at the time; it stays where it is now.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._exchange = Exchange(device_of(model))

    def __call__(self, observation: Any) -> tuple[Floats, ...]:
        """Return each output ``[N, ...]`` for ``observation [N, ...]``: an array, or a tensor on the device.

        What is given may be reused by the next call.
        """
        with torch.inference_mode():
            outputs = _as_tuple(self._model(self._exchange.to_device(observation)))
            return self._exchange.to_host(outputs)


class TorchExecutor(TorchForward, Executor):
    """Acts with a copy of a network."""

    def __init__(self, model: Model) -> None:
        super().__init__(acting_copy(model))

    def adopt(self, parameters: Floats) -> None:
        """Copy new parameters in."""
        self._model.read_parameters(parameters)


class TorchPass:
    """Runs a network differentiably, on the device where it is now."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._exchange = Exchange(device_of(model))

    def __call__(self, observation: Any) -> tuple[torch.Tensor, ...]:
        """Return each output of ``observation [B, ...]``: an array, or a tensor on the device."""
        return _as_tuple(self._model(self._exchange.to_device(observation)))


class TorchBackprop:
    """Differentiates a network on a CPU with autograd, given a loss's derivatives by its outputs.

    Args:
        model: its parameters' ``grad`` is written.
        outputs: runs it; None for one whose ``forward`` takes observations.
    """

    def __init__(self, model: Model, outputs: TorchPass | None = None) -> None:
        self._model = model
        self._outputs = TorchPass(model) if outputs is None else outputs

    def __call__(self, observation: Any, loss_gradient: Callable[..., tuple[Floats, ...]]) -> None:
        """Write the gradient of a loss on ``observation``, which is what the network's pass takes."""
        outputs = self._outputs(observation)
        found = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        if found:  # there are none before the first call, unless they are views of one tensor
            torch._foreach_zero_(found)
        derivatives = loss_gradient(*(output.detach().numpy() for output in outputs))
        torch.autograd.backward(outputs, [torch.from_numpy(derivative) for derivative in derivatives])


def acting_copy(model: Network) -> Network:
    """Copy a network that is to act and never to be trained."""
    acting = copy.deepcopy(model)
    for part in acting.modules():
        if isinstance(part, MixedPrecision):
            part.round_parameters()
    return acting


def _as_tuple(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Take a single output for one of several."""
    return (outputs,) if isinstance(outputs, torch.Tensor) else outputs
