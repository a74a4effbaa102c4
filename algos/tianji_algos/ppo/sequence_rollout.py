"""A rollout for a network that remembers: its minibatches are whole sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Fields
from tianji_algos.ppo.rollout import PPORollout
from tianji_algos.sequences import Columns, Indices, Sequences


class SequenceRollout(PPORollout):
    """A rollout of which columns are shuffled: what one environment did in one fragment.

    Steps that only reset an environment go through the network with the others, and are no samples.
    """

    _columns: Columns
    _widths: npt.NDArray[np.int64]
    """Columns of each learner, ``[learners]``."""
    _is_sample: npt.NDArray[np.bool_]
    _sample: Indices
    """Number of each step's sample, ``[fragments * T * N]``; what it says of the others means nothing."""
    _minibatches: list[tuple[Indices, Indices]]
    """Of this epoch: columns, and which of the network's outputs are samples."""

    def _hold(self, fragments: Sequence[Fields], experience: Sequence[Indices]) -> None:
        """Note what was remembered, and where episodes begin."""
        self._columns = Columns(fragments)
        self._widths = self._peers.compare(np.array([self._columns.number]))[:, 0]
        each = fragments[0]["mask"].size
        self._is_sample = np.zeros(len(fragments) * each, np.bool_)
        for k, steps in enumerate(experience):
            self._is_sample[k * each + steps] = True
        self._sample = np.cumsum(self._is_sample) - 1

    def _deal(self, rng: np.random.Generator) -> tuple[Indices, npt.NDArray[np.int64]]:
        """Shuffle the columns; minibatches have equally many of them, give or take one."""
        self._minibatches = []
        samples = []
        for columns in self._columns.deal(rng, self._settings.minibatch_size, self._widths):
            steps = self._columns.samples(columns).reshape(-1)
            outputs = np.flatnonzero(self._is_sample[steps])
            samples.append(self._sample[steps[outputs]])
            self._minibatches.append((columns, outputs))
        sizes = self._peers.compare(np.array([len(numbers) for numbers in samples]))
        edges = np.zeros((len(sizes), len(samples) + 1), np.int64)
        np.cumsum(sizes, axis=1, out=edges[:, 1:])
        return np.concatenate(samples), edges

    def _input(self, number: int, samples: slice) -> tuple[Sequences, Indices]:  # noqa: ARG002 - the number will do
        """Give all steps of the columns, and those that are samples."""
        columns, outputs = self._minibatches[number]
        observation = self._observations.take(self._columns.rows(columns, self._columns.steps))
        return self._columns.sequences(columns, observation), outputs
