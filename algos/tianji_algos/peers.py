"""The learners that make each update together, as an update rule sees them: somebody who adds numbers up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

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


class Alone(Peers):
    """One learner by itself."""

    number = 1
    index = 0

    def add_up(self, values: torch.Tensor) -> None:
        """Leave the values: nobody adds anything."""


ALONE: Final = Alone()
