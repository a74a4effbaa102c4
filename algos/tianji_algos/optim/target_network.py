"""The target network: an online network's earlier self, which training bootstraps from."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch

from tianji_algos.core import Model
from tianji_algos.optim.settings import TargetSettings
from tianji_algos.optim.state import flatten_parameters

AnyModel = TypeVar("AnyModel", bound=Model)


class TargetNetwork(Generic[AnyModel]):
    """Follows an online network; is never trained.

    Args:
        online: the network to follow.
        flat: its parameters, as ``flatten_parameters`` gave them.

    Attributes:
        model: the network with parameters of its own.
    """

    def __init__(self, online: AnyModel, flat: torch.Tensor) -> None:
        self.model = copy.deepcopy(online)
        self._online = online
        self._online_flat = flat.detach()
        self._flat = flatten_parameters(self.model).detach()
        for parameter in self.model.parameters():
            parameter.grad = None
        self.model.requires_grad_(requires_grad=False)

    def keep_up(self, settings: TargetSettings, updates: int) -> None:
        """Follow as the settings say, now that so many updates were made."""
        if settings.target_update == "soft":
            self.follow(settings.target_tau)
        elif updates % settings.target_every == 0:
            self.follow(1.0)

    def follow(self, tau: float) -> None:
        """Go a share ``tau`` of the way to the online network; 1 copies it."""
        if tau < 1.0:
            self._flat.lerp_(self._online_flat, tau)
        else:
            self._flat.copy_(self._online_flat)
        for own, source in zip(self.model.buffers(), self._online.buffers(), strict=True):
            own.copy_(source)
