"""A network's own way of training, against autograd through plain layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.optim import flatten_parameters

Floats = npt.NDArray[np.float32]


def assert_gradients_are_autograds(
    model: ActorCritic,
    observation: Any,
    plain: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    derivatives: tuple[Floats, Floats],
    *,
    rtol: float,
    atol: float,
) -> None:
    """Outputs are those of the plain layers within the tolerances, and gradients are autograd's.

    ``plain`` computes policy and value from the model's parameters once they are in one tensor, and
    ``derivatives`` are the loss's by the two.
    """
    flat = flatten_parameters(model)
    assert flat.grad is not None
    outputs: list[Floats] = []

    def loss_gradient(policy: Floats, value: Floats) -> tuple[Floats, Floats]:
        outputs[:] = policy.copy(), value.copy()
        return derivatives

    backprop = model.backprop()
    for _ in range(2):  # overwritten, not added to
        backprop(observation, loss_gradient)
    found = flat.grad.clone()
    flat.grad.zero_()
    expected = plain()
    torch.autograd.backward(expected, [torch.from_numpy(derivative) for derivative in derivatives])
    for output, right in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, right.detach(), rtol=rtol, atol=atol)
    scale = float(flat.grad.abs().max())
    assert scale > 0.1
    torch.testing.assert_close(found, flat.grad, rtol=1e-3, atol=1e-5 * scale)
