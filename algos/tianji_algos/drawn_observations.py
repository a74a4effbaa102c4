"""Normalised observations where an update rule learns from a replay.

The statistics are those of ``Normalizer.observations``, of the batches that were drawn. These are shown to
all networks through the statistics as they are now, since a replay has steps of many policies, and targets
are computed anew with every draw. So a fragment need not say what its policy saw through.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.batch import Batch
from tianji_algos.core import AllReduce, Model
from tianji_algos.normalization import MOST, SMALL, normalize, normalizer_of

Floats = npt.NDArray[np.float32]


class DrawnObservations:
    """Shows the observations of batches to networks: normalised, if those of the model are to be.

    Args:
        model: where it is trained.
    """

    def __init__(self, model: Model) -> None:
        self._normalizer = normalizer_of(model)
        self._moments = None if self._normalizer is None else self._normalizer.observations
        self._seen: Floats = np.empty(0, np.float32)

    def take_in(self, batch: Batch, learners: AllReduce) -> None:
        """Count a batch, of which other learners have other shares: all get the same bits."""
        if self._normalizer is not None:
            self._normalizer.update_drawn(batch.observation, learners)

    def arrays(self, batch: Batch) -> Batch:
        """Return a batch as networks on a CPU see it, in memory that the next call reuses."""
        if self._moments is None:
            return batch
        shape = (2, *batch.observation.shape)
        if self._seen.shape != shape:
            self._seen = np.empty(shape, np.float32)
        by = torch.stack(self._filter()).numpy()
        for observation, seen in zip((batch.observation, batch.next_observation), self._seen, strict=True):
            normalize(observation, by, seen)
        return dataclasses.replace(batch, observation=self._seen[0], next_observation=self._seen[1])

    def tensor(self, observation: torch.Tensor) -> torch.Tensor:
        """Return observations ``[B, ...]`` as networks see them, where they are."""
        if self._moments is None:
            return observation
        mean, scale = self._filter()
        flat = (observation.reshape(len(observation), -1) - mean) * scale
        return flat.clamp(-float(MOST), float(MOST)).view(observation.shape)

    def _filter(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean of each number ``[F]``, and one over its standard deviation."""
        assert self._moments is not None
        return self._moments.mean.float(), (self._moments.variance.float() + SMALL).rsqrt()
