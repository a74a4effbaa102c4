"""Normalised values: the network gives them in the units of its targets, returns are what they stand for.

The statistics are those of ``Normalizer.values``, and nothing of the network is rescaled when they move: what
it gives moves with them, and is learnt again.

- PPO's agents record values as returns, by the statistics of the policy that acted. So a fragment of any age
  needs no statistics of its own, and GAE takes what it has always taken.
- IMPALA's learner computes values anew in every update, by the statistics that the network learnt with last.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import AllReduce, Model
from tianji_algos.normalizable import SMALL
from tianji_algos.normalization import Normalizer, normalizer_of

Floats = npt.NDArray[np.float32]


class ValueUnits(NamedTuple):
    """What a normalised value of 0, and a step of 1, stand for.

    Attributes:
        mean: of value targets.
        spread: their standard deviation.
    """

    mean: float
    spread: float

    @classmethod
    def of(cls, normalizer: Normalizer) -> Self:
        """Read them from the statistics of a model that has some."""
        assert normalizer.values is not None, "values are normalised"
        return cls.from_moments(float(normalizer.values.mean), float(normalizer.values.variance))

    @classmethod
    def from_moments(cls, mean: float, variance: float) -> Self:
        """Take the square root of a variance, which may be 0."""
        return cls(mean, math.sqrt(variance + SMALL))

    def normalized(self, returns: Any) -> Any:
        """Shift and scale returns, an array or a tensor."""
        return (returns - self.mean) / self.spread

    def restored(self, values: Any) -> Any:
        """Return what normalised values, an array or a tensor, stand for."""
        return values * self.spread + self.mean


class RecordedValues:
    """The values that an agent records: as returns, by the statistics of the policy that acts."""

    def __init__(self, normalizer: Normalizer) -> None:
        assert normalizer.values is not None, "values are normalised"
        self._place = normalizer.place(normalizer.values)
        self._units = ValueUnits.of(normalizer)

    @classmethod
    def of(cls, model: Model) -> Self | None:
        """Build them for the policy that a model has; None if its values are as they are."""
        normalizer = normalizer_of(model)
        return None if normalizer is None or normalizer.values is None else cls(normalizer)

    def adopt(self, parameters: Floats) -> None:
        """Go on with the statistics among new parameters."""
        self._units = ValueUnits.from_moments(*parameters[self._place].tolist())

    def restore(self, value: Floats) -> None:
        """Make returns of what the network gave, in place."""
        value[...] = self._units.restored(value)


class LearntValues:
    """The values of a network in updates that compute their targets anew.

    The targets of a pass over a rollout are noted where they are, and taken into the statistics at its end:
    an update reads nothing to the host, and learners add up once in a pass.

    Attributes:
        units: of the network's values in this pass.
    """

    def __init__(self, normalizer: Normalizer) -> None:
        self._normalizer = normalizer
        self._noted: list[npt.NDArray[Any] | torch.Tensor] = []
        self.units = ValueUnits.of(normalizer)

    @classmethod
    def of(cls, model: Model) -> Self | None:
        """Build them for a model; None if its values are as they are."""
        normalizer = normalizer_of(model)
        return None if normalizer is None or normalizer.values is None else cls(normalizer)

    def begin(self) -> None:
        """Begin with a rollout: since the last, statistics may have come from a checkpoint or from groups."""
        self._noted.clear()
        self.units = ValueUnits.of(self._normalizer)

    def note(self, target: Floats | torch.Tensor) -> None:
        """Note the targets ``[K]`` of an update, as returns, in memory that stays as it is."""
        self._noted.append(target)

    def end_pass(self, learners: AllReduce) -> None:
        """Take in what was noted, and by other learners."""
        self._normalizer.update_values(self.targets(), learners)
        self.begin()

    def targets(self) -> Floats:
        """Bring the targets of this pass so far together on the host, ``[K]``."""
        if not self._noted:
            return np.empty(0, np.float32)
        return torch.cat([torch.as_tensor(target) for target in self._noted]).cpu().numpy()
