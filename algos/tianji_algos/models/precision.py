"""Layers that may compute in bfloat16 between numbers in float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from tianji_algos.models.settings import Precision


class MixedPrecision(nn.Module):
    """Layers that compute in the precision that is set; their parameters are float32, for an optimizer.

    Args:
        precision: "float32" or "bfloat16".

    Attributes:
        dtype: what is computed in.
    """

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self._converts = self.dtype != torch.float32

    def computing(self, device: torch.device) -> AbstractContextManager[object]:
        """Convert parameters and what flows on ``device`` as needed, within a ``with`` statement."""
        if not self._converts:
            return nullcontext()
        return torch.autocast(device.type, self.dtype, cache_enabled=False)

    def round_parameters(self) -> None:
        """Keep the parameters in the precision that is computed in, to act with and never to train.

        With few observations at a time, converting them at every step takes as long as a third of the rest.
        """
        self.to(self.dtype)
        self._converts = False
