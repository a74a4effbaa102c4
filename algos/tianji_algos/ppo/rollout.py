"""A rollout: the fragments of one round of updates, as flat arrays of samples in memory that is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Fields
from tianji_algos.peers import ALONE, Peers
from tianji_algos.ppo.advantage import estimate_advantages
from tianji_algos.ppo.loss import Minibatch
from tianji_algos.ppo.settings import PPOSettings

Floats = npt.NDArray[np.float32]

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
        self._peers: Peers = ALONE
        self._sizes = np.zeros(1, np.int64)

    def join(self, peers: Peers) -> None:
        """Hold this learner's share of every rollout from now on."""
        self._peers = peers

    def gather(self, fragments: Sequence[Fields]) -> None:
        """Copy the experience of fragments in, with its advantages."""
        kept = [self._experience(fragment) for fragment in fragments]
        self._size = sum(len(part["log_prob"]) for part in kept)
        self._sizes = self._sizes_of_shares()
        self._reserve(kept[0])
        start = 0
        for part in kept:
            stop = start + len(part["log_prob"])
            for name, rows in part.items():
                self._samples[name][start:stop] = rows
            start = stop
        if self._settings.normalize_advantage == "rollout":
            self._normalize(self._samples["advantage"], np.array([[0, size] for size in self._sizes]))

    def minibatches(self, rng: np.random.Generator) -> Iterator[Minibatch]:
        """Go through all samples once, in random order, in minibatches of equal size (give or take one).

        Every learner makes as many: from each minibatch it has a share that is as large as its share of the
        rollout.
        """
        count = max(1, round(self._sizes.sum() / self._settings.minibatch_size))
        count = min(count, max(1, self._sizes.max()))  # No minibatch is empty.
        order = rng.permutation(self._size)
        for name, rows in self._samples.items():
            np.take(rows, order, axis=0, out=self._shuffled[name][: self._size], mode="clip")
        edges = np.linspace(0, self._sizes, count + 1, axis=1).astype(np.int64)
        if self._settings.normalize_advantage == "minibatch":
            self._normalize(self._shuffled["advantage"], edges)
        totals = np.diff(edges).sum(axis=0).tolist()
        for (start, stop), total in zip(pairwise(edges[self._peers.index].tolist()), totals, strict=True):
            yield Minibatch(**{name: rows[start:stop] for name, rows in self._shuffled.items()}, total=total)

    def _sizes_of_shares(self) -> npt.NDArray[np.int64]:
        """Say how many samples each learner has, ``[learners]``."""
        sizes = np.zeros(self._peers.number, np.int64)
        sizes[self._peers.index] = self._size
        self._peers.add_up(torch.from_numpy(sizes))
        return sizes

    def _normalize(self, advantage: Floats, edges: npt.NDArray[np.int64]) -> None:
        """Shift and scale to mean 0 and standard deviation 1, in place, each minibatch over all learners.

        Args:
            advantage: of this learner's samples.
            edges: where each minibatch begins and the last ends, ``[learners, minibatches + 1]``.
        """
        slices = [slice(*edge) for edge in pairwise(edges[self._peers.index].tolist())]
        if self._peers.number == 1:
            for own in slices:
                normalize(advantage[own])
            return
        sums = np.array(
            [(advantage[own].sum(dtype=np.float64), _square_sum(advantage[own])) for own in slices]
        )
        self._peers.add_up(torch.from_numpy(sums))
        mean, mean_square = sums.T / np.diff(edges).sum(axis=0)
        spread = np.sqrt(np.maximum(mean_square - mean * mean, 0.0)) + _SMALL
        for own, shift, scale in zip(slices, mean.tolist(), spread.tolist(), strict=True):
            advantage[own] -= shift
            advantage[own] /= scale

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


def normalize(advantage: Floats) -> None:
    """Shift and scale to mean 0 and standard deviation 1, in place."""
    advantage -= advantage.mean()
    spread = np.sqrt(np.dot(advantage, advantage) / np.float32(len(advantage)))
    advantage /= spread + _SMALL


def _square_sum(advantage: Floats) -> float:
    return float(np.square(advantage, dtype=np.float64).sum())
