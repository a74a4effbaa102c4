"""All parameters of a model in one tensor, so that an optimizer's step is one operation."""

from __future__ import annotations

import torch
from torch import nn


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
