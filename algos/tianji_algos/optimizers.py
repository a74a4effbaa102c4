"""Which optimizers there are, by the names that settings give them."""

from __future__ import annotations

from typing import Literal, Protocol

import torch

from tianji_algos.adam import Adam
from tianji_algos.optimizer import Optimizer
from tianji_algos.rmsprop import RMSProp


class OptimizerSettings(Protocol):
    """What an algorithm's settings say of its optimizer."""

    @property
    def optimizer(self) -> Literal["adam", "rmsprop"]:
        """Which it is."""

    @property
    def learning_rate(self) -> float:
        """Step size."""

    @property
    def max_grad_norm(self) -> float | None:
        """Longer gradients are scaled down to this norm."""

    @property
    def adam_eps(self) -> float:
        """Added to the root of Adam's second moment."""

    @property
    def rmsprop_decay(self) -> float:
        """How much of RMSProp's mean square is kept from step to step."""

    @property
    def rmsprop_eps(self) -> float:
        """Added to RMSProp's mean square, inside the root."""


def build_optimizer(flat: torch.nn.Parameter, settings: OptimizerSettings) -> Optimizer:
    """Build the optimizer that settings ask for, of the parameters ``flat [P]``."""
    if settings.optimizer == "adam":
        return Adam(flat, settings.learning_rate, settings.adam_eps, settings.max_grad_norm)
    return RMSProp(
        flat, settings.learning_rate, settings.rmsprop_decay, settings.rmsprop_eps, settings.max_grad_norm
    )
