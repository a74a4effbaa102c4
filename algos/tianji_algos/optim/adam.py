"""Adam on one flat tensor."""

from __future__ import annotations

import math
from typing import ClassVar, Final

import torch

from tianji_algos.optim.optimizer import Optimizer

_BETA_1: Final = 0.9
_BETA_2: Final = 0.999


class Adam(Optimizer):
    """Adam (Kingma & Ba, 2015, algorithm 1) with gradients clipped by their norm.

    Args:
        flat: the parameters ``[P]``, updated in place; ``flat.grad`` is their gradient.
        learning_rate: step size; may be set anew at any time.
        eps: added to the root of the second moment.
        max_grad_norm: longer gradients are shortened to this norm; None leaves them as they are.

    Attributes:
        mean: first moment of the gradient, ``[P]``.
        square: second moment of the gradient, ``[P]``.
    """

    name: ClassVar[str] = "adam"

    def __init__(
        self, flat: torch.nn.Parameter, learning_rate: float, eps: float, max_grad_norm: float | None
    ) -> None:
        super().__init__(flat, learning_rate, max_grad_norm)
        self.mean = torch.zeros_like(self.gradient)
        self.square = torch.zeros_like(self.gradient)
        self._eps = eps

    def _descend(self) -> None:
        self.mean.lerp_(self.gradient, 1.0 - _BETA_1)
        self.square.mul_(_BETA_2).addcmul_(self.gradient, self.gradient, value=1.0 - _BETA_2)
        unbiased = math.sqrt(1.0 - _BETA_2**self.steps)
        torch.sqrt(self.square, out=self._denominator).div_(unbiased).add_(self._eps)
        step_size = self.learning_rate / (1.0 - _BETA_1**self.steps)
        self._parameters.addcdiv_(self.mean, self._denominator, value=-step_size)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Name the moments, in place."""
        return {"adam.mean": self.mean, "adam.square": self.square}
