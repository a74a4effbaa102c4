"""Copies of networks for acting alone."""

from __future__ import annotations

import copy
from typing import Protocol, TypeVar

import torch

from tianji_algos.models.settings import EncoderSettings


class _Encoding(Protocol):
    """A network with an encoder.

    Attributes:
        settings: say which.
        encoder: what computes in ``settings.precision``.
    """

    @property
    def settings(self) -> EncoderSettings: ...

    @property
    def encoder(self) -> torch.nn.Module: ...


_Network = TypeVar("_Network", bound=_Encoding)


def acting_copy(network: _Network) -> _Network:
    """Copy a network that is to act and never to be trained.

    What computes in bfloat16 keeps its parameters so in the copy: with few observations at a time, converting
    them at every step takes as long as a third of the rest.
    """
    acting = copy.deepcopy(network)
    if network.settings.precision == "bfloat16":
        acting.encoder.to(torch.bfloat16)
    return acting
