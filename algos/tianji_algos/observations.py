"""The observations of a rollout: stored as they came, gathered as a network sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Fields, Spaces

Indices = npt.NDArray[np.intp]


class Observations:
    """Holds the observations of fragments in memory that is kept, where the network computes.

    Rows are numbered ``(fragment * (T + 1) + t) * N + n``: row T is what the last step led to. All fragments
    of a rollout are alike. Where a policy sees a stack, each observation is held once, and stacks are
    gathered.

    Args:
        spaces: of one environment, as the network sees it.
        device: where the network computes.
    """

    def __init__(self, spaces: Spaces, device: torch.device) -> None:
        self._stack = spaces.stack
        self._device = device
        self._rows: npt.NDArray[Any] = np.empty(0)

    def gather(self, fragments: Sequence[Fields]) -> None:
        """Copy the observations of a rollout's fragments in; nothing of them is needed afterwards."""
        if self._stack > 1:
            raise NotImplementedError
        rows = np.stack([fragment["observation"] for fragment in fragments])
        self._rows = rows.reshape(-1, *rows.shape[3:])

    def take(self, rows: Indices) -> Any:
        """Give the observations ``[..., *shape]`` of ``rows [...]``, as a network takes them.

        Returns:
            An array on a CPU, a tensor elsewhere; reused by the next call.
        """
        return np.take(self._rows, rows, axis=0)
