"""Adam and RMSProp on one flat tensor, with a gradient that is clipped and a count of steps.

``torch.optim`` imports torch's compiler with the first optimizer, which takes about a second at start-up,
and its step costs more than the arithmetic on a small network.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Final

import torch

from tianji_algos.errors import DivergedError
from tianji_algos.settings import AnyOptimizerSettings


class Optimizer(ABC):
    """Follows the gradient of one flat tensor, wherever it is.

    Args:
        flat: the parameters ``[P]``, updated in place; ``flat.grad`` is their gradient.
        max_grad_norm: longer gradients are shortened to this norm; None leaves them as they are.

    Attributes:
        gradient: ``flat.grad``, which the next step follows.
    """

    name: ClassVar[str]
    """Name of its tensors and its count in a checkpoint."""

    def __init__(self, flat: torch.nn.Parameter, learning_rate: float, max_grad_norm: float | None) -> None:
        if flat.grad is None:
            flat.grad = torch.zeros_like(flat)
        self.learning_rate = learning_rate
        self.steps = 0
        self.gradient = flat.grad
        self._max_grad_norm = math.inf if max_grad_norm is None else max_grad_norm
        self._parameters = flat.detach()
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
        self._descend()
        return norm

    @abstractmethod
    def _descend(self) -> None:
        """Update the parameters and the moments of the gradients."""

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """Name what is remembered of gradients, in place: for a checkpoint, and for averages."""


_BETA_1: Final = 0.9
_BETA_2: Final = 0.999


class Adam(Optimizer):
    """Adam (Kingma & Ba, 2015, algorithm 1) with gradients clipped by their norm.

    Args:
        eps: added to the root of the second moment.

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


class RMSProp(Optimizer):
    """RMSProp (Tieleman & Hinton, 2012, lecture 6.5) as TensorFlow has it, with gradients clipped.

    The mean square begins at 1, so that the first steps are small, and ``eps`` is inside the root: a step is
    at most ``learning_rate / sqrt(eps)`` times the gradient. That is what IMPALA's settings are for (Espeholt
    et al., 2018, Atari experiments: decay 0.99, eps 0.1, no momentum). Torch adds eps to the root: what
    is eps there is about the square of it here.

    Args:
        decay: how much of the mean square is kept from one step to the next.
        eps: added to the mean square, inside the root.

    Attributes:
        square: mean square of the gradient, ``[P]``.
    """

    name: ClassVar[str] = "rmsprop"

    def __init__(
        self,
        flat: torch.nn.Parameter,
        learning_rate: float,
        decay: float,
        eps: float,
        max_grad_norm: float | None,
    ) -> None:
        super().__init__(flat, learning_rate, max_grad_norm)
        self.square = torch.ones_like(self.gradient)
        self._decay = decay
        self._eps = eps

    def _descend(self) -> None:
        self.square.mul_(self._decay).addcmul_(self.gradient, self.gradient, value=1.0 - self._decay)
        torch.add(self.square, self._eps, out=self._denominator).sqrt_()
        self._parameters.addcdiv_(self.gradient, self._denominator, value=-self.learning_rate)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Name the mean square, in place."""
        return {"rmsprop.square": self.square}


def build_optimizer(flat: torch.nn.Parameter, settings: AnyOptimizerSettings) -> Optimizer:
    """Build the optimizer of the parameters ``flat [P]``."""
    if settings.optimizer == "adam":
        return Adam(flat, settings.learning_rate, settings.adam_eps, settings.max_grad_norm)
    return RMSProp(
        flat, settings.learning_rate, settings.rmsprop_decay, settings.rmsprop_eps, settings.max_grad_norm
    )
