"""Adam on one flat tensor.

``torch.optim`` imports torch's compiler with the first optimizer, which takes about a second at start-up, and
its step costs more than the arithmetic on a small network.
"""

from __future__ import annotations

import math
from typing import Final

import torch

from tianji_algos.errors import DivergedError

_BETA_1: Final = 0.9
_BETA_2: Final = 0.999


class Adam:
    """Adam (Kingma & Ba, 2015, algorithm 1) with gradients clipped by their norm.

    Args:
        flat: the parameters ``[P]``, updated in place; ``flat.grad`` is their gradient.
        learning_rate: step size; may be set anew at any time.
        eps: added to the root of the second moment.
        max_grad_norm: longer gradients are shortened to this norm; None leaves them as they are.

    Attributes:
        learning_rate: step size of the next step.
        steps: how many steps were made.
        mean: first moment of the gradient, ``[P]``.
        square: second moment of the gradient, ``[P]``.
        gradient: ``flat.grad``, which the next step follows.
    """

    def __init__(
        self, flat: torch.nn.Parameter, learning_rate: float, eps: float, max_grad_norm: float | None
    ) -> None:
        if flat.grad is None:
            flat.grad = torch.zeros_like(flat)
        self.learning_rate = learning_rate
        self.steps = 0
        self.mean = torch.zeros_like(flat.grad)
        self.square = torch.zeros_like(flat.grad)
        self._eps = eps
        self._max_grad_norm = math.inf if max_grad_norm is None else max_grad_norm
        self._parameters = flat.detach()
        self.gradient = flat.grad
        self._denominator = torch.empty_like(flat.grad)

    def step(self) -> float:
        """Update the parameters; returns the norm that the gradient had.

        Raises:
            DivergedError: the gradient is not finite; the parameters are as they were.
        """
        norm = float(torch.linalg.vector_norm(self.gradient))
        if not math.isfinite(norm):
            raise DivergedError(
                f"the gradient is not finite after {self.steps} updates: the loss has diverged; "
                "a smaller learning_rate, or a smaller reward_scale, would be right"
            )
        if norm > self._max_grad_norm:
            self.gradient.mul_(self._max_grad_norm / norm)
        self.steps += 1
        self.mean.lerp_(self.gradient, 1.0 - _BETA_1)
        self.square.mul_(_BETA_2).addcmul_(self.gradient, self.gradient, value=1.0 - _BETA_2)
        unbiased = math.sqrt(1.0 - _BETA_2**self.steps)
        torch.sqrt(self.square, out=self._denominator).div_(unbiased).add_(self._eps)
        step_size = self.learning_rate / (1.0 - _BETA_1**self.steps)
        self._parameters.addcdiv_(self.mean, self._denominator, value=-step_size)
        return norm

    def tensors(self) -> dict[str, torch.Tensor]:
        """Name the moments, in place, for a checkpoint."""
        return {"adam.mean": self.mean, "adam.square": self.square}
