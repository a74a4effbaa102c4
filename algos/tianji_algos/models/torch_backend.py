"""Acting and training in torch alone, in float32 or bfloat16, for models without a faster way."""

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
    """Layers that compute in the configured precision; their parameters are float32, for an optimizer."""

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self._converts = self.dtype != torch.float32

    def computing(self, device: torch.device) -> AbstractContextManager[object]:
        """Convert parameters and activations on ``device`` as needed, within a ``with`` statement."""
        if not self._converts:
            return nullcontext()
        return torch.autocast(device.type, self.dtype, cache_enabled=False)

    def round_parameters(self) -> None:
        """Keep the parameters in the layers' own precision, for acting and never for training.

        With few observations at a time, converting the parameters at every step takes a third of the time of
        all else.
        """
        self.to(self.dtype)
        self._converts = False

    def compute_in_float32(self) -> None:
        """Compute in float32 from now on, the only precision of files that act elsewhere."""
        self.dtype, self._converts = torch.float32, False


Network = TypeVar("Network", bound=Model)


class TorchForward:
    """Runs a network whose ``forward`` gives one tensor or several, on the device where it is.

    Args:
        model: network whose current parameters each call uses; it stays on its device.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._exchange = Exchange(device_of(model))

    def __call__(self, observation: Any) -> tuple[Floats, ...]:
        """Return each output ``[N, ...]`` for ``observation [N, ...]``: an array, or a tensor on the device.

        The next call may reuse the arrays.
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
        model: network whose parameters' ``grad`` is written.
        outputs: the network's pass; None for a network whose ``forward`` takes observations.
    """

    def __init__(self, model: Model, outputs: TorchPass | None = None) -> None:
        self._model = model
        self._outputs = TorchPass(model) if outputs is None else outputs

    def __call__(self, observation: Any, loss_gradient: Callable[..., tuple[Floats, ...]]) -> None:
        """Write the gradient of a loss on ``observation``, in the form that the network's pass takes."""
        outputs = self._outputs(observation)
        found = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        if found:  # there are none before the first call, unless they are views of one tensor
            torch._foreach_zero_(found)
        derivatives = loss_gradient(*(output.detach().numpy() for output in outputs))
        torch.autograd.backward(outputs, [torch.from_numpy(derivative) for derivative in derivatives])


def acting_copy(model: Network) -> Network:
    """Copy a network for acting; the copy is never trained."""
    acting = copy.deepcopy(model)
    for part in acting.modules():
        if isinstance(part, MixedPrecision):
            part.round_parameters()
    return acting


def _as_tuple(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Wrap a single output in a tuple."""
    return (outputs,) if isinstance(outputs, torch.Tensor) else outputs
