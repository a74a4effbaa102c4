"""Observations of a rollout: stored as they came, gathered as networks see them, and put in an order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import AllReduce, Fields, Spaces
from tianji_algos.device import Uploads, as_numbers, on_host, torch_type
from tianji_algos.normalization import Normalizer

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.intp]


class Observations:
    """Holds the observations of fragments in reused memory, on the network's device.

    Rows are numbered ``(fragment * (T + 1) + t) * N + n``: row T is the observation that the last step led
    to. All fragments of a rollout have the same shape. Where a policy sees a stack, this holds each
    observation once, and gathers stacks.

    Args:
        normalizer: the model's normaliser; None leaves observations as they came.
    """

    def __init__(self, spaces: Spaces, device: torch.device, normalizer: Normalizer | None = None) -> None:
        self._normalizer = normalizer
        self._stack = spaces.stack
        self._frames: HostFrames | DeviceFrames = HostFrames() if on_host(device) else DeviceFrames(device)
        self._planes: Indices = np.empty(0, np.intp)

    def gather(self, fragments: Sequence[Fields]) -> None:
        """Copy the observations of a rollout's fragments in; the fragments are not needed afterwards."""
        if self._normalizer is None:
            self._frames.hold([fragment["observation"] for fragment in fragments])
        else:
            self._frames.hold(self._normalizer.recorded(fragments))
        if self._stack > 1:
            mask = np.stack([fragment["mask"] for fragment in fragments]).astype(bool, copy=False)
            self._planes = frame_numbers(mask, self._stack)

    def take(self, rows: Indices) -> Any:
        """Return the observations ``[..., *shape]`` of ``rows [...]``, as a network takes them.

        Returns:
            An array on a CPU, a tensor elsewhere; may be reused by the next call.
        """
        return self._frames.take(rows if self._stack == 1 else self._planes[rows])


class HostFrames:
    """Frames of a rollout in a host's memory; the one after the last is black."""

    def __init__(self) -> None:
        self._frames: Array = np.empty(0)
        self._taken: Array = np.empty(0)

    def hold(self, fragments: Sequence[Array]) -> None:
        """Copy the frames of fragments in, ``[rows, N, ...]`` each, all alike."""
        (rows, num_envs, *shape), dtype = fragments[0].shape, fragments[0].dtype
        size = rows * num_envs
        number = len(fragments) * size
        if len(self._frames) <= number:
            self._frames = np.empty((number + 1, *shape), dtype)
            self._taken = np.empty((0, *shape), dtype)
        for i, fragment in enumerate(fragments):
            self._frames[i * size : (i + 1) * size].reshape(fragment.shape)[...] = fragment
        self._frames[number] = 0

    def take(self, numbers: Indices) -> Array:
        """Return frames ``[..., *shape]`` by their numbers ``[...]``."""
        if len(self._taken) < numbers.size:
            self._taken = np.empty((numbers.size, *self._frames.shape[1:]), self._frames.dtype)
        taken = self._taken[: numbers.size]
        # Any other mode would gather into memory of its own first.
        np.take(self._frames, numbers.reshape(-1), axis=0, out=taken, mode="clip")
        return taken.reshape(*numbers.shape, *taken.shape[1:])


class DeviceFrames:
    """Frames of a rollout on a device, copied there once a rollout."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._upload = Uploads(device)
        self._frames = torch.empty(0)

    def hold(self, fragments: Sequence[Array]) -> None:
        """Copy the frames of fragments to the device, ``[rows, N, ...]`` each, all alike.

        Records are held as bytes.
        """
        fragments = [as_numbers(fragment) for fragment in fragments]
        rows, num_envs, *shape = fragments[0].shape
        size = rows * num_envs
        number = len(fragments) * size
        if len(self._frames) <= number:
            dtype = torch_type(fragments[0].dtype)
            self._frames = torch.empty((number + 1, *shape), dtype=dtype, device=self._device)
        parts = self._frames[:number].view(len(fragments), *fragments[0].shape)
        self._upload.fill(zip(parts, fragments, strict=True))
        self._frames[number] = 0

    def take(self, numbers: Indices) -> torch.Tensor:
        """Return frames ``[..., *shape]`` by their numbers ``[...]``."""
        taken = self._frames.index_select(0, self._upload(numbers.reshape(-1)))
        return taken.view(*numbers.shape, *self._frames.shape[1:])


def frame_numbers(mask: npt.NDArray[np.bool_], stack: int) -> Indices:
    """Return the numbers of the frames in each stack of a rollout.

    Args:
        mask: ``[fragments, T, N]``; where it is False, the step only led to an episode's first frame.

    Returns:
        ``[fragments * (T + 1) * N, S]``, oldest first, where fragments have ``S - 1 + T + 1`` rows of frames.
        Frames from before the episode have the number of the black one, which follows all others.
    """
    fragments, steps, num_envs = mask.shape
    rows = steps + stack
    of_fragments = np.arange(fragments * rows * num_envs).reshape(fragments, rows, num_envs)
    # [fragments, T + 1, N, S]: frame t + j is plane j of the stack at t.
    numbers = np.lib.stride_tricks.sliding_window_view(of_fragments, stack, axis=1).copy()
    # Planes 0 to S - 2 are black right after a reset, plane 0 for longest.
    for reset in range(min(stack - 1, steps)):
        for plane in range(stack - 1 - reset):
            numbers[:, 1 + reset :, :, plane][~mask[:, : steps - reset]] = of_fragments.size
    return numbers.reshape(-1, stack)


@dataclass(frozen=True, slots=True)
class Sequences:
    """Successive steps of B environments.

    Attributes:
        observation: ``[T, B, ...]``, as the network sees it: an array, or a tensor on the network's device.
        first: ``[T, B]`` bool: the observation is the first of an episode, and the state there is zero.
        state: ``[B, state_size]`` float32, the network's state before the first step.
    """

    observation: Any
    first: npt.NDArray[np.bool_]
    state: npt.NDArray[np.float32]


class Columns:
    """The fragments of a rollout as sequences: column ``f * N + n`` is environment n in fragment f.

    Attributes:
        steps: T, steps of each column.
        first: ``[T + 1, columns]``, see ``first_observations``.
        state: ``[columns, state_size]``, the network's state before the first step; ``state_size`` is 0 where
            fragments have no such field.
    """

    def __init__(self, fragments: Sequence[Fields]) -> None:
        self.steps, self._envs = fragments[0]["mask"].shape
        self.number = len(fragments) * self._envs
        self.first = np.concatenate([first_observations(f["mask"]) for f in fragments], axis=1)
        nothing = np.zeros((1, self._envs, 0), np.float32)
        self.state = np.concatenate([f.get("state", nothing)[0] for f in fragments])

    def minibatches(
        self, rng: np.random.Generator, minibatch_size: int, widths: npt.NDArray[np.int64]
    ) -> list[Indices]:
        """Shuffle the columns and cut them into minibatches of equal size, give or take one.

        Every learner makes equally many minibatches: its share of each is as large as its share of the
        rollout.

        Args:
            rng: random stream of the order; a single minibatch of all columns keeps their order.
            minibatch_size: approximate steps of a minibatch over all learners; it has one column at least.
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
            steps: T, or T + 1 with the observation that the last step led to.

        Returns:
            ``[steps, B]``.
        """
        return self._numbers(columns, steps, of=self.steps + 1)

    def samples(self, columns: Indices) -> Indices:
        """Number the steps of columns ``[B]`` in arrays ``[fragments * T * N]``; returns ``[T, B]``."""
        return self._numbers(columns, self.steps, of=self.steps)

    def sequences(self, columns: Indices, observation: Any) -> Sequences:
        """Build a network's input from columns ``[B]``.

        Args:
            observation: observations of ``rows(columns, steps)``, ``[steps, B, ...]``.
        """
        return Sequences(observation, self.first[: len(observation), columns], self.state[columns])

    def _numbers(self, columns: Indices, steps: int, of: int) -> Indices:
        fragment, env = np.divmod(columns, self._envs)
        numbers: Indices = (fragment * of + np.arange(steps)[:, None]) * self._envs + env
        return numbers


def first_observations(mask: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Mark the observations that begin an episode.

    The step that only resets an environment is no experience, and leads to the first observation.

    Args:
        mask: a fragment's field, ``[T, N]``.

    Returns:
        ``[T + 1, N]``; the first row is False, since the recorded state already covers earlier ends.
    """
    first = np.zeros((len(mask) + 1, *mask.shape[1:]), np.bool_)
    np.logical_not(mask, out=first[1:])
    return first


class ShuffledSamples:
    """Samples of a rollout in random order, one by one: for networks without a state.

    Attributes:
        env_steps: env steps of each minibatch of this epoch, over all learners.
    """

    _sizes: npt.NDArray[np.int64]
    """Samples of each learner, ``[learners]``."""
    env_steps: npt.NDArray[np.int64]

    def __init__(self, observations: Observations) -> None:
        self._observations = observations
        self._rows: Indices = np.empty(0, np.intp)
        self._ordered: Indices = self._rows

    def hold(self, fragments: Sequence[Fields], learners: AllReduce) -> list[Indices]:
        """Record the place of each sample's observation.

        Returns:
            Numbers, in ``T * N``, of the steps of each fragment that are samples.
        """
        steps, num_envs = fragments[0]["mask"].shape
        each = (steps + 1) * num_envs
        samples = [np.flatnonzero(fragment["mask"]) for fragment in fragments]
        self._rows = np.concatenate([numbers + k * each for k, numbers in enumerate(samples)])
        self._sizes = learners.compare(np.array([len(self._rows)]))[:, 0]
        return samples

    def shuffle(self, rng: np.random.Generator, minibatch_size: int) -> tuple[Indices, npt.NDArray[np.int64]]:
        """Put the samples in an order and cut it into minibatches of equal size, give or take one.

        A learner's share of each minibatch is as large as its share of the rollout.

        Returns:
            Numbers of all of this learner's samples, in their order; and for each learner the begin of each
            minibatch in that order and the end of the last: ``[learners, minibatches + 1]``.
        """
        count = max(1, round(self._sizes.sum() / minibatch_size))
        count = min(count, max(1, self._sizes.max()))  # No minibatch is empty.
        order = rng.permutation(len(self._rows))
        self._ordered = np.take(self._rows, order, mode="clip")
        edges = np.linspace(0, self._sizes, count + 1, axis=1).astype(np.int64)
        self.env_steps = np.diff(edges).sum(axis=0)
        return order, edges

    def input(self, number: int, samples: slice) -> tuple[Any, Indices | None]:  # noqa: ARG002 - its place will do
        """Return the network's input for a minibatch, by its number and its place in the order.

        Returns:
            Observations, and the indices of the outputs that are samples; None: all are.
        """
        return self._observations.take(self._ordered[samples]), None


class ShuffledSequences:
    """Samples of a rollout whose columns are shuffled: each is one environment in one fragment.

    Steps that only reset an environment go through the network with the others, and are no samples.

    Attributes:
        env_steps: env steps of each minibatch of this epoch, over all learners.
    """

    env_steps: npt.NDArray[np.int64]
    _columns: Columns
    _widths: npt.NDArray[np.int64]
    """Columns of each learner, ``[learners]``."""
    _is_sample: npt.NDArray[np.bool_]
    _sample: Indices
    """Number of each step's sample, ``[fragments * T * N]``; meaningless where a step is no sample."""
    _minibatches: list[tuple[Indices, Indices]]
    """Columns of each minibatch of this epoch, and indices of the network's outputs that are samples."""

    def __init__(self, observations: Observations) -> None:
        self._observations = observations

    def hold(self, fragments: Sequence[Fields], learners: AllReduce) -> list[Indices]:
        """Record states, and the first steps of episodes; see ``ShuffledSamples.hold``."""
        self._learners = learners
        self._columns = Columns(fragments)
        self._widths = learners.compare(np.array([self._columns.number]))[:, 0]
        self._is_sample = np.concatenate([f["mask"].astype(bool).reshape(-1) for f in fragments])
        self._sample = np.cumsum(self._is_sample) - 1
        return [np.flatnonzero(fragment["mask"]) for fragment in fragments]

    def shuffle(self, rng: np.random.Generator, minibatch_size: int) -> tuple[Indices, npt.NDArray[np.int64]]:
        """Shuffle the columns; minibatches have equally many of them, give or take one.

        Returns:
            The same as ``ShuffledSamples.shuffle``.
        """
        self._minibatches = []
        samples = []
        for columns in self._columns.minibatches(rng, minibatch_size, self._widths):
            steps = self._columns.samples(columns).reshape(-1)
            outputs = np.flatnonzero(self._is_sample[steps])
            samples.append(self._sample[steps[outputs]])
            self._minibatches.append((columns, outputs))
        sizes = self._learners.compare(np.array([len(numbers) for numbers in samples]))
        edges = np.zeros((len(sizes), len(samples) + 1), np.int64)
        np.cumsum(sizes, axis=1, out=edges[:, 1:])
        self.env_steps = sizes.sum(axis=0)
        return np.concatenate(samples), edges

    def input(self, number: int, samples: slice) -> tuple[Sequences, Indices]:  # noqa: ARG002 - the number will do
        """Return all steps of a minibatch's columns, and the indices of the outputs that are samples."""
        columns, outputs = self._minibatches[number]
        observation = self._observations.take(self._columns.rows(columns, self._columns.steps))
        return self._columns.sequences(columns, observation), outputs
