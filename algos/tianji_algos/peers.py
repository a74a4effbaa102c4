"""The learners that make each update together, as an update rule sees them: somebody who adds numbers up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import numpy as np
import numpy.typing as npt
import torch


class Peers(ABC):
    """Learners in lockstep: all of them call the same methods, in the same order.

    Attributes:
        number: how many there are.
        index: which of them this one is, from 0.
    """

    number: int
    index: int

    @abstractmethod
    def add_up(self, values: torch.Tensor) -> None:
        """Replace ``values``, in place, by their sum over all learners: the same bits for each of them."""

    def compare(self, own: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Tell the other learners this one's counts ``[K]`` and hear theirs: ``[learners, K]``."""
        counts = np.zeros((self.number, len(own)), np.int64)
        counts[self.index] = own
        self.add_up(torch.from_numpy(counts))
        return counts


class Alone(Peers):
    """One learner by itself."""

    number = 1
    index = 0

    def add_up(self, values: torch.Tensor) -> None:
        """Leave the values: nobody adds anything."""


ALONE: Final = Alone()
