"""What optimizers have in common: one flat tensor, a gradient that is clipped, a count of steps.

``torch.optim`` imports torch's compiler with the first optimizer, which takes about a second at start-up, and
its step costs more than the arithmetic on a small network.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from tianji_algos.errors import DivergedError


class Optimizer(ABC):
    """Follows the gradient of one flat tensor, wherever it is.

    Args:
        flat: the parameters ``[P]``, updated in place; ``flat.grad`` is their gradient.
        learning_rate: step size; may be set anew at any time.
        max_grad_norm: longer gradients are shortened to this norm; None leaves them as they are.

    Attributes:
        learning_rate: step size of the next step.
        steps: how many steps were made.
        gradient: ``flat.grad``, which the next step follows.
    """

    name: ClassVar[str]
    """What its tensors and its count are called in a checkpoint."""

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
        """Update the parameters and whatever is remembered of gradients."""

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """Name what is remembered of gradients, in place: for a checkpoint, and for averages."""
