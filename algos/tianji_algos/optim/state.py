"""What update rules keep beside a model: parameters in one tensor, target networks, named tensors, means."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.core import Model
from tianji_algos.errors import StateMismatchError
from tianji_algos.settings import TargetSettings


def flatten_parameters(model: nn.Module) -> nn.Parameter:
    """Move a model's parameters and gradients into one tensor each; the model keeps views of them.

    Args:
        model: on its final device; all its parameters are float32.

    Returns:
        The parameters as one flat parameter ``[P]``, whose ``grad [P]`` is the gradients.
    """
    parameters = list(model.parameters())
    flat = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
    flat.grad = torch.zeros_like(flat)
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        parameter.data = flat.detach()[start:stop].view_as(parameter)
        parameter.grad = flat.grad[start:stop].view_as(parameter)
        start = stop
    return flat


Tensors = Mapping[str, torch.Tensor]


def tensors_of(prefix: str, model: nn.Module) -> dict[str, torch.Tensor]:
    """Name a network's parameters and buffers, in place."""
    return {f"{prefix}.{name}": tensor for name, tensor in model.state_dict().items()}


def copy_tensors(own: Tensors) -> dict[str, torch.Tensor]:
    """Copy tensors into the host's memory, so that training may go on."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in own.items()}


def check_algorithm(rest: Mapping[str, Any], algorithm: str) -> None:
    """Refuse the state of another algorithm.

    Raises:
        StateMismatchError: says which.
    """
    if rest.get("algorithm") != algorithm:
        raise StateMismatchError(f"this state belongs to {rest.get('algorithm')!r}, not to {algorithm!r}")


def restore_tensors(own: Tensors, saved: Tensors) -> None:
    """Copy all ``saved`` tensors into ``own``, or none.

    Raises:
        StateMismatchError: a tensor is missing, unknown or of another shape; says which.
    """
    for name in sorted(own.keys() | saved.keys()):
        if name not in saved or name not in own:
            missing = "missing from the state" if name in own else "unknown to this model"
            raise StateMismatchError(f"tensor {name!r} is {missing}")
        found, expected = tuple(saved[name].shape), tuple(own[name].shape)
        if found != expected:
            raise StateMismatchError(f"tensor {name!r} is {found}, and {expected} in this model")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])


class Means:
    """Adds up a few numbers with every update."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._sums = np.zeros(len(names), np.float64)
        self._updates = 0

    def add(self, values: npt.NDArray[np.float32] | Sequence[float], last: float) -> None:
        """Add the numbers of an update: all but the last, and the last."""
        self._sums[:-1] += values
        self._sums[-1] += last
        self._updates += 1

    def take(self) -> dict[str, float]:
        """Return the means since the last call, and begin anew; empty if there was no update."""
        if self._updates == 0:
            return {}
        means = dict(zip(self._names, (self._sums / self._updates).tolist(), strict=True))
        self._sums[:] = 0.0
        self._updates = 0
        return means


AnyModel = TypeVar("AnyModel", bound=Model)


class TargetNetwork(Generic[AnyModel]):
    """Follows an online network; is never trained.

    Args:
        flat: its parameters, as ``flatten_parameters`` gave them.

    Attributes:
        model: the network with parameters of its own.
    """

    def __init__(self, online: AnyModel, flat: torch.Tensor) -> None:
        self.model = copy.deepcopy(online)
        self._online = online
        self._online_flat = flat.detach()
        self._flat = flatten_parameters(self.model).detach()
        for parameter in self.model.parameters():
            parameter.grad = None
        self.model.requires_grad_(requires_grad=False)

    def keep_up(self, settings: TargetSettings, updates: int) -> None:
        """Follow as the settings say, now that so many updates were made."""
        if settings.target_update == "soft":
            self.follow(settings.target_tau)
        elif updates % settings.target_every == 0:
            self.follow(1.0)

    def follow(self, tau: float) -> None:
        """Go a share ``tau`` of the way to the online network; 1 copies it."""
        if tau < 1.0:
            self._flat.lerp_(self._online_flat, tau)
        else:
            self._flat.copy_(self._online_flat)
        for own, source in zip(self.model.buffers(), self._online.buffers(), strict=True):
            own.copy_(source)
