"""The tensors of an update rule's state, saved and restored by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tianji_algos.errors import StateMismatchError

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
