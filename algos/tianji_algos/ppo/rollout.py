"""PPO's rollouts: advantages, and minibatches of samples or of sequences.

All of it is computed on the host, once in a rollout or an epoch, wherever the network is.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Fields
from tianji_algos.normalized_values import ValueUnits
from tianji_algos.on_policy import Arrays, PolicyMinibatch, PolicyRollout, Tensors
from tianji_algos.ppo.settings import PPOSettings
from tianji_algos.rollout_observations import Columns, Indices, Observations, Sequences

Floats = npt.NDArray[np.float32]

SMALL: Final = np.float32(1e-8)
"""Keeps a division by a spread of 0 finite."""
ON_HOST: Final = ("advantage", "alive")
"""Fields that the host works with in each epoch."""


def estimate_advantages(
    reward: Floats,
    value: Floats,
    terminated: npt.NDArray[Any],
    mask: npt.NDArray[Any],
    gamma: float,
    gae_lambda: float,
) -> Floats:
    """Estimate advantages (Schulman et al., 2016, equation 16).

    The step after an episode's end only resets the environment: ``mask`` is False there, which keeps the
    next episode apart. The observation it starts from is the ended episode's last one, so ``value[t + 1]``
    bootstraps a truncated step as it does any other; a terminated step has nothing to bootstrap from.

    Args:
        reward: ``[T, N, ...]``: a team has a last axis, of its agents; it is 1 long in ``reward``,
            ``terminated`` and ``mask`` where these are the same for all of them.
        value: ``[T + 1, N, ...]``; the last row belongs to the observation after the last step.
        terminated: ``[T, N, ...]``, bool or uint8.
        mask: ``[T, N, ...]``; where it is False the advantage is 0 and nothing flows through.
        gae_lambda: 0 is one-step temporal difference, 1 is Monte Carlo.

    Returns:
        Advantages ``[T, N, ...]``, for every agent that there is a value of.
    """
    experience = mask.astype(bool)
    delta = np.where(terminated.astype(bool), np.float32(0.0), value[1:])
    delta *= np.float32(gamma)
    delta += reward
    delta -= value[:-1]
    delta *= experience
    decay = experience * np.float32(gamma * gae_lambda)
    advantage = delta
    carried = np.empty_like(advantage[0])
    for t in range(len(advantage) - 2, -1, -1):
        np.multiply(decay[t], advantage[t + 1], out=carried)
        advantage[t] += carried
    return advantage


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOMinibatch(PolicyMinibatch):
    """Samples for one gradient update, ``[B, ...]`` each.

    Attributes:
        value: estimate at the time of acting.
        advantage: how much better than ``value`` the action turned out, normalised.
        target: what the value should have been: advantage (not normalised) plus value.
        outputs: which of the network's outputs are the samples, ``[B]``; None says that all are, in order.
    """

    value: Any
    advantage: Any
    target: Any
    outputs: Any = None


class PPORollout(PolicyRollout):
    """Samples of a rollout, and the same samples in the order of an epoch.

    For a loss in torch a rollout goes to the network's device once, and is put in order there; only what the
    host works with in each epoch, advantages that it normalises, goes there with each.

    Attributes:
        explained_variance: 1 - Var(target - value) / Var(target), of the newest rollout's samples of this
            learner; NaN before there is one, or where all targets are alike.
    """

    def __init__(self, settings: PPOSettings, observations: Observations, memory: Arrays) -> None:
        super().__init__(settings, observations, memory)
        self._samples: dict[str, npt.NDArray[Any]] = {}
        self._ordered: dict[str, npt.NDArray[Any]] = {}
        self._resident: dict[str, Any] = {}
        """Samples on the device."""
        self._epoch: Mapping[str, Any] = {}
        """Samples in order, where the loss is."""
        self._size = 0
        self._sizes = np.zeros(1, np.int64)
        self.explained_variance = math.nan

    def gather(self, fragments: Sequence[Fields]) -> None:
        """Copy the experience of fragments in, with its advantages."""
        self._observations.gather(fragments)
        experience = [np.flatnonzero(fragment["mask"]) for fragment in fragments]
        self._hold(fragments, experience)
        self._size = sum(len(steps) for steps in experience)
        self._sizes = self._learners.compare(np.array([self._size]))[:, 0]
        start = 0
        for fragment, steps in zip(fragments, experience, strict=True):
            stop = start + len(steps)
            fields = self._fields(fragment)
            self._reserve(fields)
            for name, rows in fields.items():
                np.take(rows, steps, axis=0, out=self._samples[name][start:stop], mode="clip")
            start = stop
        self._explain()
        self._normalize_values()
        if self.settings.normalize_advantage == "rollout":
            edges = np.array([[0, size] for size in self._sizes])
            self._normalize(self._samples, edges, self._count(self._samples, edges))
        if isinstance(self._memory, Tensors):
            self._resident = {
                name: self._memory.put(rows[: self._size])
                for name, rows in self._samples.items()
                if name not in ON_HOST
            }

    def _explain(self) -> None:
        """Measure how well the values foretold the targets."""
        alive = self._samples.get("alive")
        judged = ... if alive is None else alive[: self._size].astype(bool)
        target, advantage = (self._samples[name][: self._size][judged] for name in ("target", "advantage"))
        spread = float(target.var()) if target.size else 0.0
        self.explained_variance = 1.0 - float(advantage.var()) / spread if spread else math.nan

    def _normalize_values(self) -> None:
        """Take in the rollout's targets; bring values, targets and advantages into the network's units."""
        normalizer = self._observations.normalizer
        if normalizer is None or normalizer.values is None:
            return
        value, target, advantage = (
            self._samples[name][: self._size] for name in ("value", "target", "advantage")
        )
        alive = self._samples.get("alive")
        normalizer.update_values(
            target if alive is None else target[alive[: self._size].astype(bool)], self._learners
        )
        units = ValueUnits.of(normalizer)
        value[...] = units.normalized(value)
        target[...] = units.normalized(target)
        advantage /= np.float32(units.spread)

    def minibatches(self, rng: np.random.Generator) -> Iterator[PPOMinibatch]:
        """Go through all samples once, in random order, in minibatches of about equal size.

        Those without a sample are left out: all learners know of them.
        """
        order, edges = self._shuffle(rng)
        for name, rows in self._samples.items():
            if name not in self._resident:
                np.take(rows, order, axis=0, out=self._ordered[name][: self._size], mode="clip")
        totals = self._count(self._ordered, edges)
        if self.settings.normalize_advantage == "minibatch":
            self._normalize(self._ordered, edges, totals)
        self._epoch = self._ordered
        if self._resident:
            there = self._memory.put(order)
            resident = {name: self._memory.take(rows, there) for name, rows in self._resident.items()}
            advantage = self._memory.put(self._ordered["advantage"][: self._size])
            self._epoch = {**resident, "advantage": advantage}
        for number, (samples, total) in enumerate(zip(self._own(edges), totals.tolist(), strict=True)):
            if total:
                yield self._minibatch(number, samples, total)

    def _minibatch(self, number: int, samples: slice, total: int) -> PPOMinibatch:
        """Put a minibatch together.

        Args:
            number: of the minibatch in its epoch.
            samples: where it is in that order.
            total: its samples over all learners.
        """
        observation, outputs = self._input(number, samples)
        parts = {name: rows[samples] for name, rows in self._epoch.items()}
        where = None if outputs is None else self._memory.put(outputs)
        return PPOMinibatch(observation=observation, total=total, outputs=where, **parts)

    @abstractmethod
    def _hold(self, fragments: Sequence[Fields], experience: Sequence[Indices]) -> None:
        """Copy what the network's input takes beside the observations.

        Args:
            experience: numbers of the steps of each that are samples, of ``T * N``.
        """

    @abstractmethod
    def _shuffle(self, rng: np.random.Generator) -> tuple[Indices, npt.NDArray[np.int64]]:
        """Put the samples in an order and cut it into minibatches.

        Returns:
            Numbers of this learner's samples, all of them; and where in that order each minibatch begins and
            the last ends, of each learner: ``[learners, minibatches + 1]``.
        """

    @abstractmethod
    def _input(self, number: int, samples: slice) -> tuple[Any, Indices | None]:
        """Return the network's input for a minibatch, and which outputs are samples (None: all)."""

    def _own(self, edges: npt.NDArray[np.int64]) -> list[slice]:
        """Return where this learner's part of each minibatch is."""
        return [slice(*edge) for edge in pairwise(edges[self._learners.index].tolist())]

    def _count(
        self,
        columns: Mapping[str, npt.NDArray[Any]],  # noqa: ARG002 - all that is in them are samples here
        edges: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Count the samples of each minibatch over all learners.

        Args:
            edges: where each minibatch begins and the last ends, ``[learners, minibatches + 1]``.
        """
        counts: npt.NDArray[np.int64] = np.diff(edges).sum(axis=0)
        return counts

    def _normalize(
        self,
        columns: Mapping[str, npt.NDArray[Any]],
        edges: npt.NDArray[np.int64],
        totals: npt.NDArray[np.int64],
    ) -> None:
        """Shift and scale advantages to mean 0 and standard deviation 1, each minibatch over all learners.

        Args:
            columns: of this learner's samples; ``advantage`` is written in place. Where there is ``alive``,
                those that are not are no samples, and their advantages come as zeros.
        """
        advantage, slices = columns["advantage"], self._own(edges)
        if self._learners.number == 1 and "alive" not in columns:
            for own in slices:
                if own.start < own.stop:
                    normalize(advantage[own])
            return
        sums = np.array(
            [
                (advantage[own].sum(dtype=np.float64), np.square(advantage[own], dtype=np.float64).sum())
                for own in slices
            ]
        )
        self._learners.add_up(torch.from_numpy(sums))
        mean, mean_square = sums.T / np.maximum(totals, 1)
        spread = np.sqrt(np.maximum(mean_square - mean * mean, 0.0)) + SMALL
        for own, shift, scale in zip(slices, mean.tolist(), spread.tolist(), strict=True):
            advantage[own] -= shift
            advantage[own] /= scale

    def _fields(self, fragment: Fields) -> dict[str, npt.NDArray[Any]]:
        """Compute what a minibatch has of each step, ``[T * N, ...]``."""
        settings = self.settings
        reward, value, terminated, mask = self._returns_of(fragment)
        reward = self.scaled(reward, settings.reward_scale)
        advantage = estimate_advantages(reward, value, terminated, mask, settings.gamma, settings.gae_lambda)
        columns = {
            "action": fragment["action"],
            "log_prob": fragment["log_prob"],
            "value": value[:-1],
            "advantage": advantage,
            "target": advantage + value[:-1],
        }
        return {name: rows.reshape(-1, *rows.shape[2:]) for name, rows in columns.items()}

    def _returns_of(self, fragment: Fields) -> tuple[Floats, Floats, npt.NDArray[Any], npt.NDArray[Any]]:
        """Return reward, value, where nothing follows, and what is experience, as GAE takes them."""
        return fragment["reward"], fragment["value"], fragment["terminated"], fragment["mask"]

    def _reserve(self, like: dict[str, npt.NDArray[Any]]) -> None:
        """Reserve memory for ``_size`` samples; it grows and is never freed."""
        if self._samples and len(self._samples["log_prob"]) >= self._size:
            return
        for memory in (self._samples, self._ordered):
            for name, rows in like.items():
                memory[name] = np.empty((self._size, *rows.shape[1:]), rows.dtype)


class SampleRollout(PPORollout):
    """A rollout whose samples are shuffled one by one: for networks that remember nothing."""

    _rows: Indices
    """Row of ``Observations`` of each sample."""
    _ordered_rows: Indices

    def _hold(self, fragments: Sequence[Fields], experience: Sequence[Indices]) -> None:
        """Record where the observation of each sample is."""
        steps, num_envs = fragments[0]["mask"].shape
        each = (steps + 1) * num_envs
        self._rows = np.concatenate([numbers + k * each for k, numbers in enumerate(experience)])

    def _shuffle(self, rng: np.random.Generator) -> tuple[Indices, npt.NDArray[np.int64]]:
        """Shuffle; minibatches are of equal size, give or take one.

        From each minibatch a learner has a share that is as large as its share of the rollout.
        """
        count = max(1, round(self._sizes.sum() / self.settings.minibatch_size))
        count = min(count, max(1, self._sizes.max()))  # No minibatch is empty.
        order = rng.permutation(self._size)
        self._ordered_rows = np.take(self._rows, order, mode="clip")
        return order, np.linspace(0, self._sizes, count + 1, axis=1).astype(np.int64)

    def _input(self, number: int, samples: slice) -> tuple[Any, None]:  # noqa: ARG002 - where it is will do
        """Return the observations of the samples."""
        return self._observations.take(self._ordered_rows[samples]), None


def normalize(advantage: Floats) -> None:
    """Shift and scale to mean 0 and standard deviation 1, in place."""
    advantage -= advantage.mean()
    spread = np.sqrt(np.dot(advantage, advantage) / np.float32(len(advantage)))
    advantage /= spread + SMALL


class SequenceRollout(PPORollout):
    """A rollout of which columns are shuffled: what one environment did in one fragment.

    Steps that only reset an environment go through the network with the others, and are no samples.
    """

    _columns: Columns
    _widths: npt.NDArray[np.int64]
    """Columns of each learner, ``[learners]``."""
    _is_sample: npt.NDArray[np.bool_]
    _sample: Indices
    """Number of each step's sample, ``[fragments * T * N]``; meaningless where a step is no sample."""
    _minibatches: list[tuple[Indices, Indices]]
    """Columns of each minibatch of this epoch, and which of the network's outputs are samples."""

    def _hold(self, fragments: Sequence[Fields], experience: Sequence[Indices]) -> None:
        """Record what was remembered, and where episodes begin."""
        self._columns = Columns(fragments)
        self._widths = self._learners.compare(np.array([self._columns.number]))[:, 0]
        each = fragments[0]["mask"].size
        self._is_sample = np.zeros(len(fragments) * each, np.bool_)
        for k, steps in enumerate(experience):
            self._is_sample[k * each + steps] = True
        self._sample = np.cumsum(self._is_sample) - 1

    def _shuffle(self, rng: np.random.Generator) -> tuple[Indices, npt.NDArray[np.int64]]:
        """Shuffle the columns; minibatches have equally many of them, give or take one."""
        self._minibatches = []
        samples = []
        for columns in self._columns.minibatches(rng, self.settings.minibatch_size, self._widths):
            steps = self._columns.samples(columns).reshape(-1)
            outputs = np.flatnonzero(self._is_sample[steps])
            samples.append(self._sample[steps[outputs]])
            self._minibatches.append((columns, outputs))
        sizes = self._learners.compare(np.array([len(numbers) for numbers in samples]))
        edges = np.zeros((len(sizes), len(samples) + 1), np.int64)
        np.cumsum(sizes, axis=1, out=edges[:, 1:])
        return np.concatenate(samples), edges

    def _input(self, number: int, samples: slice) -> tuple[Sequences, Indices]:  # noqa: ARG002 - the number will do
        """Return all steps of the columns, and those that are samples."""
        columns, outputs = self._minibatches[number]
        observation = self._observations.take(self._columns.rows(columns, self._columns.steps))
        return self._columns.sequences(columns, observation), outputs
