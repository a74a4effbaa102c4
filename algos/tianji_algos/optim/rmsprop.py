"""RMSProp on one flat tensor."""

from __future__ import annotations

from typing import ClassVar

import torch

from tianji_algos.optim.optimizer import Optimizer


class RMSProp(Optimizer):
    """RMSProp (Tieleman & Hinton, 2012, lecture 6.5) as TensorFlow has it, with gradients clipped.

    The mean square begins at 1, so that the first steps are small, and ``eps`` is inside the root: a step is
    at most ``learning_rate / sqrt(eps)`` times the gradient. That is what IMPALA's settings are for (Espeholt
    et al., 2018, Atari experiments: decay 0.99, eps 0.1, no momentum). Torch adds eps to the root: what
    is eps there is about the square of it here.

    Args:
        flat: the parameters ``[P]``, updated in place; ``flat.grad`` is their gradient.
        learning_rate: step size; may be set anew at any time.
        decay: how much of the mean square is kept from one step to the next.
        eps: added to the mean square, inside the root.
        max_grad_norm: longer gradients are shortened to this norm; None leaves them as they are.

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
