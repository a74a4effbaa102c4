"""A rollout: the fragments of one round of updates, as flat arrays of samples in memory that is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Fields
from tianji_algos.ppo.advantage import estimate_advantages
from tianji_algos.ppo.loss import Minibatch
from tianji_algos.ppo.settings import PPOSettings

_SMALL: Final = np.float32(1e-8)


class Rollout:
    """Samples of a rollout, and the same samples shuffled.

    Args:
        settings: discounts, normalisation and the size of a minibatch.
    """

    def __init__(self, settings: PPOSettings) -> None:
        self._settings = settings
        self._samples: dict[str, npt.NDArray[Any]] = {}
        self._shuffled: dict[str, npt.NDArray[Any]] = {}
        self._size = 0

    def gather(self, fragments: Sequence[Fields]) -> None:
        """Copy the experience of fragments in, with its advantages."""
        kept = [self._experience(fragment) for fragment in fragments]
        self._size = sum(len(part["log_prob"]) for part in kept)
        self._reserve(kept[0])
        start = 0
        for part in kept:
            stop = start + len(part["log_prob"])
            for name, rows in part.items():
                self._samples[name][start:stop] = rows
            start = stop
        if self._settings.normalize_advantage == "rollout":
            normalize(self._samples["advantage"][: self._size])

    def minibatches(self, rng: np.random.Generator) -> Iterator[Minibatch]:
        """Go through all samples once, in random order, in minibatches of equal size (give or take one)."""
        count = max(1, round(self._size / self._settings.minibatch_size))
        order = rng.permutation(self._size)
        for name, rows in self._samples.items():
            np.take(rows, order, axis=0, out=self._shuffled[name][: self._size], mode="clip")
        edges = np.linspace(0, self._size, count + 1).astype(np.int64).tolist()
        for start, stop in pairwise(edges):
            batch = Minibatch(**{name: rows[start:stop] for name, rows in self._shuffled.items()})
            if self._settings.normalize_advantage == "minibatch":
                normalize(batch.advantage)
            yield batch

    def _experience(self, fragment: Fields) -> dict[str, npt.NDArray[Any]]:
        """Select the steps that are experience, as rows ``[samples, ...]`` of each field of a minibatch."""
        settings = self._settings
        reward = fragment["reward"] * np.float32(settings.reward_scale)
        value = fragment["value"]
        advantage = estimate_advantages(
            reward,
            value,
            fragment["terminated"],
            fragment["mask"],
            settings.gamma,
            settings.gae_lambda,
        )
        where = np.flatnonzero(fragment["mask"])
        columns = {
            "observation": fragment["observation"][:-1],
            "action": fragment["action"],
            "log_prob": fragment["log_prob"],
            "value": value[:-1],
            "advantage": advantage,
            "target": advantage + value[:-1],
        }
        return {name: rows.reshape(-1, *rows.shape[2:])[where] for name, rows in columns.items()}

    def _reserve(self, like: dict[str, npt.NDArray[Any]]) -> None:
        """Have memory for so many samples; it grows and is never given back."""
        if self._samples and len(self._samples["log_prob"]) >= self._size:
            return
        for memory in (self._samples, self._shuffled):
            for name, rows in like.items():
                memory[name] = np.empty((self._size, *rows.shape[1:]), rows.dtype)


def normalize(advantage: npt.NDArray[np.float32]) -> None:
    """Shift and scale to mean 0 and standard deviation 1, in place."""
    advantage -= advantage.mean()
    spread = np.sqrt(np.dot(advantage, advantage) / np.float32(len(advantage)))
    advantage /= spread + _SMALL
