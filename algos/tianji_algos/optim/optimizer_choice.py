"""The optimizer that settings ask for."""

from __future__ import annotations

import torch

from tianji_algos.optim.adam import Adam
from tianji_algos.optim.optimizer import Optimizer
from tianji_algos.optim.settings import AnyOptimizerSettings
from tianji_algos.optim.rmsprop import RMSProp


def build_optimizer(flat: torch.nn.Parameter, settings: AnyOptimizerSettings) -> Optimizer:
    """Build the optimizer of the parameters ``flat [P]``."""
    if settings.optimizer == "adam":
        return Adam(flat, settings.learning_rate, settings.adam_eps, settings.max_grad_norm)
    return RMSProp(
        flat, settings.learning_rate, settings.rmsprop_decay, settings.rmsprop_eps, settings.max_grad_norm
    )
