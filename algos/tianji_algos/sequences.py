"""Steps in the order they were made: what a network that remembers is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Fields

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Sequences:
    """Steps of B environments one after another.

    Attributes:
        observation: ``[T, B, ...]``, as the network sees it: an array, or a tensor on the network's device.
        first: ``[T, B]`` bool: the observation is the first of an episode, and nothing is remembered there.
        state: ``[B, state_size]`` float32, what was remembered before the first step.
    """

    observation: Any
    first: npt.NDArray[np.bool_]
    state: npt.NDArray[np.float32]


class Columns:
    """The fragments of a rollout as sequences: column ``f * N + n`` is what environment n did in fragment f.

    Attributes:
        number: how many columns there are.
        steps: T, of each.
        first: ``[T + 1, columns]``, see ``first_observations``.
        state: ``[columns, state_size]``, what was remembered before the first step; of no size where
            fragments have no such field.
    """

    def __init__(self, fragments: Sequence[Fields]) -> None:
        self.steps, self._envs = fragments[0]["mask"].shape
        self.number = len(fragments) * self._envs
        self.first = np.concatenate([first_observations(f["mask"]) for f in fragments], axis=1)
        nothing = np.zeros((1, self._envs, 0), np.float32)
        self.state = np.concatenate([f.get("state", nothing)[0] for f in fragments])

    def deal(
        self, rng: np.random.Generator, minibatch_size: int, widths: npt.NDArray[np.int64]
    ) -> list[Indices]:
        """Shuffle the columns and cut them into minibatches of as many, give or take one.

        Every learner makes as many minibatches: from each it has a share that is as large as its share of the
        rollout.

        Args:
            rng: says in which order; one minibatch of all has them as they come.
            minibatch_size: steps of a minibatch of all learners, about; it has one column at least.
            widths: columns of each learner, ``[learners]``.

        Returns:
            This learner's columns of each minibatch.
        """
        count = max(1, round(int(widths.sum()) * self.steps / minibatch_size))
        count = min(count, int(widths.max()))  # No minibatch is empty.
        order = rng.permutation(self.number) if count > 1 else np.arange(self.number)
        edges = np.linspace(0, self.number, count + 1).astype(np.int64)
        return [order[start:stop] for start, stop in pairwise(edges.tolist())]

    def rows(self, columns: Indices, steps: int) -> Indices:
        """Number the observations of columns ``[B]`` as ``Observations`` does.

        Args:
            columns: which.
            steps: T, or T + 1 with what the last step led to.

        Returns:
            ``[steps, B]``.
        """
        return self._numbers(columns, steps, of=self.steps + 1)

    def samples(self, columns: Indices) -> Indices:
        """Number the steps of columns ``[B]`` in arrays ``[fragments * T * N]``; returns ``[T, B]``."""
        return self._numbers(columns, self.steps, of=self.steps)

    def sequences(self, columns: Indices, observation: Any) -> Sequences:
        """Put together what a network gets of columns ``[B]``.

        Args:
            columns: which.
            observation: ``[steps, B, ...]`` of ``rows(columns, steps)``.
        """
        return Sequences(observation, self.first[: len(observation), columns], self.state[columns])

    def _numbers(self, columns: Indices, steps: int, of: int) -> Indices:
        fragment, env = np.divmod(columns, self._envs)
        numbers: Indices = (fragment * of + np.arange(steps)[:, None]) * self._envs + env
        return numbers


def first_observations(mask: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which observations begin an episode.

    The step that only resets an environment is no experience, and leads to the first observation.

    Args:
        mask: ``[T, N]`` of a fragment.

    Returns:
        ``[T + 1, N]``; in the first row False, since the state before a fragment knows of earlier ends.
    """
    first = np.zeros((len(mask) + 1, *mask.shape[1:]), np.bool_)
    np.logical_not(mask, out=first[1:])
    return first
