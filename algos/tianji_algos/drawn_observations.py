"""Normalised observations where an update rule learns from a replay.

The statistics are those of ``Normalizer.observations``, of the batches that were drawn. These are shown to
all networks through the statistics as they are now, since a replay has steps of many policies, and targets
are computed anew with every draw. So a fragment need not say what its policy saw through.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.batch import Batch
from tianji_algos.core import AllReduce, Model
from tianji_algos.normalization import Normalizer, normalizer_of


class DrawnObservations:
    """Shows the observations of batches to networks: normalised, if those of the model are to be.

    Args:
        model: where it is trained.
    """

    def __init__(self, model: Model) -> None:
        self._normalizer: Normalizer | None = None
        if (normalizer := normalizer_of(model)) is not None and normalizer.numbers is not None:
            self._normalizer = normalizer
        self._seen: npt.NDArray[Any] = np.empty(0, np.float32)

    def take_in(self, observation: npt.NDArray[Any], learners: AllReduce) -> None:
        """Count those of a batch, ``[B, ...]``, of which other learners have others: all get equal bits."""
        if self._normalizer is not None:
            self._normalizer.update_drawn(observation, learners)

    def arrays(self, batch: Batch) -> Batch:
        """Return a batch as networks on a CPU see it, in memory that the next call reuses."""
        if self._normalizer is None:
            return batch
        numbers, (mean, scale) = self._normalizer.numbers, self._normalizer.filter()
        assert numbers is not None, "observations are normalised"
        shape = (2, *batch.observation.shape)
        if self._seen.shape != shape:
            self._seen = numbers.empty(shape, batch.observation)
        for observation, seen in zip((batch.observation, batch.next_observation), self._seen, strict=True):
            numbers.normalize(observation, mean.numpy(), scale.numpy(), seen)
        return dataclasses.replace(batch, observation=self._seen[0], next_observation=self._seen[1])

    def tensor(self, observation: torch.Tensor) -> torch.Tensor:
        """Return observations ``[B, ...]``, records as bytes, as networks see them, where they are."""
        if self._normalizer is None:
            return observation
        seen = self._normalizer.seen(observation)
        assert isinstance(seen, torch.Tensor)
        return seen
