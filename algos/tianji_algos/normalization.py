"""Normalised observations, rewards and values: running statistics that are a part of the model.

The statistics are buffers of the model: they are published, saved and averaged with its parameters, and an
evaluation leaves them as they are. When they move, the network is not rescaled. ``normalizable.py`` finds the
numbers of an observation that have statistics.

- Observations of a rollout: a fragment holds raw observations, and the statistics that its policy used
  (``NormalizingExecutor``): the learner shows the network the same numbers, however old the policy is
  (``Normalizer.recorded``).
- Observations of a replay: a replay has steps of many policies, and every draw computes targets anew. So
  all networks use the current statistics (``Normalizer.seen``), which come from the drawn batches; a fragment
  records none.
- Rewards: an actor sums up its ``DiscountedReturns``, and the learner scales by their deviation.
- Values: the network's values are in the units of its targets (``ValueUnits``), and move with these. PPO's
  agents record values as returns, which GAE needs; IMPALA's learner computes values anew in every update, by
  the statistics that the network learnt with last.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self, TypeVar, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.batch import Batch
from tianji_algos.core import AllReduce, Executor, Fields, Model, Spaces
from tianji_algos.device import RecordParts
from tianji_algos.errors import AlgorithmError, DivergedError, UnsuitableModelError
from tianji_algos.fields import FieldSpec
from tianji_algos.models.images import is_picture
from tianji_algos.normalizable import MOST, SMALL, Numbers
from tianji_algos.settings import ObservationSettings, PolicySettings

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Seen = TypeVar("Seen", bound=torch.Tensor | RecordParts)

FILTER: Final = "observation_filter"
"""Field: mean, and one over the standard deviation, of each number of an observation, ``[2, F]``.

It is float64 where means are subtracted in double precision."""
RETURNS: Final = "discounted_returns"
"""Field: number, mean and sum of squared deviations of the discounted returns of a fragment, ``[3]``."""


@dataclass(frozen=True)
class Normalization:
    """Normalisation that a config asks for.

    Attributes:
        observations: shift and scale observations by their running mean and variance.
        rewards: scale rewards by the running variance of discounted returns.
        gamma: discount of these returns.
        values: the network's values are shifted and scaled by the running mean and variance of their targets.
        precise: observations may be far from 0, and vary however little.
    """

    observations: bool
    rewards: bool
    gamma: float
    values: bool = False
    precise: bool = True

    @classmethod
    def of(cls, settings: object, spaces: Spaces, *, able: bool = True) -> Normalization | None:
        """Read the settings of an update rule; None if they ask for nothing.

        Args:
            able: the update rule can normalise, so the spaces decide about "auto" settings.
        """
        asked: Normalization | None = None
        if isinstance(settings, PolicySettings):
            observations, rewards = settings.normalize_observations, settings.normalize_rewards
            if observations == "auto":
                observations = able and _has_floats(spaces)
            if rewards == "auto":
                rewards = able and settings.may_scale_rewards and not _has_pictures(spaces)
            values, precise = settings.normalize_values, settings.normalize_precisely
            asked = cls(observations, rewards, settings.gamma, values, precise)
        elif isinstance(settings, ObservationSettings):
            observations, precise = settings.normalize_observations, settings.normalize_precisely
            asked = cls(observations, rewards=False, gamma=0.0, precise=precise)
        return asked if asked is not None and (asked.observations or asked.rewards or asked.values) else None

    def fields(self, spaces: Spaces) -> tuple[FieldSpec, ...]:
        """Describe the fields that a fragment has once for each environment."""
        single = np.dtype(np.float32)
        described: tuple[FieldSpec, ...] = ()
        if self.observations:  # Others, such as images, have no numbers to be counted.
            numbers = Numbers.of(spaces, precise=self.precise)
            kind = np.dtype(np.float64) if numbers.doubles else single
            described += (FieldSpec(FILTER, kind, (2, numbers.count), once=True),)
        if self.rewards:
            described += (FieldSpec(RETURNS, single, (3,), once=True),)
        return described


def _has_floats(spaces: Spaces) -> bool:
    """Whether observations have numbers without a scale of their own."""
    numbers = Numbers.find(spaces)
    return numbers is not None and numbers.floats


def _has_pictures(spaces: Spaces) -> bool:
    """Whether observations are images, or have some among their parts."""
    space = spaces.observation
    parts = space.spaces.values() if isinstance(space, gym.spaces.Dict) else (space,)
    return any(is_picture(part, spaces.image_layout) for part in parts)


class Moments(nn.Module):
    """Running count, means and variances, in double precision: buffers of a model.

    Args:
        size: number of means and variances.
        doubles: a mean's remainder beyond float32 is a buffer of its own, since buffers travel as float32.
    """

    count: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor
    mean_rest: torch.Tensor

    def __init__(self, size: int, *, doubles: bool = False) -> None:
        super().__init__()
        self.doubles = doubles
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))
        if doubles:
            self.register_buffer("mean_rest", torch.zeros(size, dtype=torch.float64))

    @property
    def exact_mean(self) -> torch.Tensor:
        """Mean in double precision, also after the buffers have travelled as float32."""
        return self.mean.float().double() + self.mean_rest if self.doubles else self.mean

    def set_mean(self, mean: torch.Tensor) -> None:
        """Replace the mean."""
        self.mean.copy_(mean)
        if self.doubles:
            self.mean_rest.copy_(mean - mean.float())

    def merge(self, count: float, mean: Doubles, squares: Doubles) -> None:
        """Add the moments of further data (Chan et al., 1979, equation 2.1).

        Args:
            count: number of data.
            mean: mean of each number, ``[size]``.
            squares: sum of squared deviations from that mean, ``[size]``.
        """
        if not count:
            return
        more, of_more = (torch.from_numpy(part).to(self.mean.device) for part in (mean, squares))
        total = self.count + count
        before = self.exact_mean
        distance = more - before
        own = self.variance * self.count
        self.set_mean(before + distance * (count / total))
        own += of_more + distance * distance * (self.count * count / total)
        torch.div(own, total, out=self.variance)
        self.count.copy_(total)

    def since(self, earlier: Moments) -> tuple[float, Doubles, Doubles]:
        """Return the moments, as ``merge`` takes them, of the data since ``earlier``, a copy of these."""
        more = self.count - earlier.count
        moved = self.exact_mean - earlier.exact_mean
        distance = moved * (self.count / more.clamp(min=1.0))
        mean = earlier.exact_mean + distance
        squares = self.variance * self.count - earlier.variance * earlier.count
        squares -= distance * distance * (earlier.count * more / self.count.clamp(min=1.0))
        return float(more), mean.cpu().numpy(), squares.clamp(min=0.0).cpu().numpy()


class Normalizer(nn.Module):
    """The statistics of a model, and a learner's use of them.

    Attributes:
        asked: normalisation that the config asks for.
        numbers: numbers of an observation that are normalised; None: observations are not normalised.
        observations: moments of each of these numbers; None: observations are not normalised.
        returns: moments of discounted returns; None: rewards are not normalised.
        values: moments of value targets; None: values are not normalised.
    """

    def __init__(self, spaces: Spaces, asked: Normalization) -> None:
        super().__init__()
        self.asked = asked
        self.numbers = numbers = Numbers.of(spaces, precise=asked.precise) if asked.observations else None
        self.observations = None if numbers is None else Moments(numbers.count, doubles=numbers.doubles)
        self.returns = Moments(1) if asked.rewards else None
        self.values = Moments(1) if asked.values else None
        self._normalized: npt.NDArray[Any] = np.empty(0, np.float32)
        self._contributed: list[nn.Module] = []

    @classmethod
    def of(cls, model: Model, spaces: Spaces) -> Normalizer:
        """Return the normaliser of a model, for its learner; an inactive one if the model has none."""
        return normalizer_of(model) or cls(
            spaces, Normalization(observations=False, rewards=False, gamma=0.0)
        )

    @property
    def size(self) -> int:
        """Number of the statistics' values, which are the last of a model's flat array."""
        return sum(buffer.numel() for buffer in self.buffers())

    def place(self, moments: Moments) -> slice:
        """Find moments, without their count, in the flat array of a model, counted from its end."""
        start = -self.size
        for own in self.children():
            if own is moments:
                break
            start += sum(buffer.numel() for buffer in own.buffers())
        first = start + moments.count.numel()
        return slice(first, first + (2 + moments.doubles) * len(moments.mean) or None)

    def means(self) -> list[tuple[int, int, int]]:
        """Find means in a model's flat array: place from its end, number, and number of remainders."""
        kinds = [moments for moments in self.children() if isinstance(moments, Moments)]
        sizes = [(len(moments.mean), moments.doubles * len(moments.mean)) for moments in kinds]
        return [(self.place(moments).start, *size) for moments, size in zip(kinds, sizes, strict=True)]

    def update(self, fragments: Sequence[Fields], learners: AllReduce) -> None:
        """Merge a rollout, of which other learners may have other fragments: all get the same bits."""
        if self.observations is not None and self.numbers is not None:
            seen = experience_of(fragments, self.numbers)
            self._merge(self.observations, _sums_of_observations(seen), learners)
        if self.returns is not None:
            self._merge(self.returns, _sums_of_returns(fragments), learners)

    def update_drawn(self, observation: npt.NDArray[Any], learners: AllReduce) -> None:
        """Merge the observations ``[B, ...]`` of a batch that a replay has drawn, likewise."""
        if self.observations is not None and self.numbers is not None:
            seen = [self.numbers.rows(observation)]
            self._merge(self.observations, _sums_of_observations(seen), learners)

    def update_values(self, targets: Floats, learners: AllReduce) -> None:
        """Merge value targets ``[K]``; other learners may have others, and all get the same bits."""
        if self.values is not None:
            self._merge(self.values, _sums_of_targets(targets), learners)

    def _merge(self, into: Moments, sums: _Sums, learners: AllReduce) -> None:
        first = np.append(sums.values, sums.number)
        learners.add_up(torch.from_numpy(first))
        count = float(first[-1])
        mean = first[:-1] / max(count, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):  # The check below finds infinities.
            squares = sums.squares(mean)
        learners.add_up(torch.from_numpy(squares))
        if not (np.isfinite(mean).all() and np.isfinite(squares).all()):
            raise DivergedError(
                f"the statistics of {sums.what} are not finite: some are too large to be squared; "
                "an environment with smaller numbers would be right"
            )
        into.merge(count, mean, squares)

    def remember(self) -> None:
        """Remember these statistics: they go into an average over groups."""
        self._contributed = copy.deepcopy(list(self.children()))

    def adopt(self, average: Floats) -> Floats:
        """Adopt an average over groups, and merge the data seen here since ``remember``.

        Args:
            average: average of all buffers in a row, weighted by counts, ``[size]``. A count stays this
                group's own.

        Returns:
            The buffers in a row, as a model's flat array has them.
        """
        start = 0
        for own, earlier in zip(self.children(), self._contributed, strict=True):
            assert isinstance(own, Moments)
            assert isinstance(earlier, Moments)
            seen_since, stop = own.since(earlier), start + sum(buffer.numel() for buffer in own.buffers())
            mean, variance, *rest = torch.tensor(average[start + 1 : stop]).double().view(-1, len(own.mean))
            own.count.copy_(earlier.count)
            own.set_mean(mean + rest[0] if rest else mean)
            own.variance.copy_(variance)
            own.merge(*seen_since)
            start = stop
        return torch.cat([buffer.reshape(-1) for buffer in self.buffers()]).float().cpu().numpy()

    def recorded(self, fragments: Sequence[Fields]) -> Sequence[npt.NDArray[Any]]:
        """Return the observations of fragments as the policies that acted saw them, ``[rows, N, ...]`` each.

        Returns:
            Observations as ``Numbers.normalize`` writes them, in memory that the next call reuses; raw ones
            if observations are not normalised.
        """
        observations = [fragment["observation"] for fragment in fragments]
        if self.numbers is None:
            return observations
        shape = (len(observations), *observations[0].shape)
        if self._normalized.shape != shape:
            self._normalized = self.numbers.empty(shape, observations[0])
        for fragment, observation, into in zip(fragments, observations, self._normalized, strict=True):
            seen_through = fragment[FILTER][0, 0]
            if not seen_through[1].all():
                raise AlgorithmError(
                    f"a fragment does not say what its observations were normalised with ({FILTER}): "
                    "begin() of an agent of your own calls super().begin(), and finish() super().finish(); "
                    "or training.normalize_observations = false would be right"
                )
            mean, scale = seen_through[0], seen_through[1].astype(np.float32, copy=False)
            self.numbers.normalize(observation, mean, scale, into)
        return list(self._normalized)

    def seen(self, observation: Seen) -> Seen:
        """Return observations ``[N, ...]``, on their device, normalised by the current statistics."""
        if self.numbers is None:
            return observation
        mean, scale = self.filter()
        return cast("Seen", self.numbers.normalize_in_torch(observation, mean, scale))

    def seen_batch(self, batch: Batch) -> Batch:
        """Return a batch as networks on a CPU see it, likewise, in memory that the next call reuses."""
        if self.numbers is None:
            return batch
        mean, scale = (part.numpy() for part in self.filter())
        shape = (2, *batch.observation.shape)
        if self._normalized.shape != shape:
            self._normalized = self.numbers.empty(shape, batch.observation)
        observation, following = self._normalized
        self.numbers.normalize(batch.observation, mean, scale, observation)
        self.numbers.normalize(batch.next_observation, mean, scale, following)
        return replace(batch, observation=observation, next_observation=following)

    def filter(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean, and one over the standard deviation, of each number of an observation, ``[F]``."""
        assert self.observations is not None, "observations are normalised"
        assert self.numbers is not None, "observations are normalised"
        mean, scale = self.numbers.filter(self.observations.exact_mean, self.observations.variance)
        return mean if self.numbers.doubles else mean.float(), scale.float()

    def rewards(self, reward: Floats) -> Floats:
        """Scale rewards by the standard deviation of discounted returns, and clip them."""
        if self.returns is None:
            return reward
        scale = 1.0 / math.sqrt(float(self.returns.variance) + SMALL)
        normalized: Floats = reward * np.float32(scale)
        return np.clip(normalized, -MOST, MOST, out=normalized)


class _Sums(NamedTuple):
    """Sums over data, from which moments are computed in two passes.

    Attributes:
        what: name of the quantity, for messages.
        number: number of summed data.
        values: sum of each number, ``[size]``.
        squares: function that sums the squared distances from a mean ``[size]``.
    """

    what: str
    number: int
    values: Doubles
    squares: Callable[[Doubles], Doubles]


def _sums_of_observations(pieces: Iterable[npt.NDArray[Any]]) -> _Sums:
    """Sum the numbers of observations, in pieces of ``[K, F]``."""
    rows = list(pieces)

    def squares(mean: Doubles) -> Doubles:
        total = np.zeros_like(mean)
        for each in rows:
            distance = each - mean
            total += np.einsum("ij,ij->j", distance, distance)
        return total

    values: Doubles = np.sum([each.sum(axis=0, dtype=np.float64) for each in rows], axis=0)
    return _Sums("observations", sum(len(each) for each in rows), values, squares)


def experience_of(fragments: Sequence[Fields], numbers: Numbers) -> Iterator[npt.NDArray[Any]]:
    """Yield the numbers ``[K, F]`` of the observations of each fragment that its policy acted on."""
    for fragment in fragments:
        mask = fragment["mask"].astype(bool, copy=False)
        seen = fragment["observation"][: len(mask)]
        rows = numbers.rows(seen.reshape(mask.size, *seen.shape[2:]))
        yield rows if mask.all() else rows[mask.reshape(-1)]


def _sums_of_returns(fragments: Sequence[Fields]) -> _Sums:
    """Sum the discounted returns that the fragments record."""
    moments = np.concatenate([fragment[RETURNS][0] for fragment in fragments]).astype(np.float64)
    count, means, squares_within = moments.T

    def squares(mean: Doubles) -> Doubles:
        distance = means - mean
        return np.array([squares_within.sum() + np.dot(count, distance * distance)])

    return _Sums("rewards", int(count.sum()), np.array([np.dot(count, means)]), squares)


def _sums_of_targets(targets: Floats) -> _Sums:
    """Sum value targets ``[K]``."""

    def squares(mean: Doubles) -> Doubles:
        distance = targets - mean
        return np.array([np.dot(distance, distance)])

    return _Sums("value targets", len(targets), np.array([targets.sum(dtype=np.float64)]), squares)


class ValueUnits(NamedTuple):
    """Units of normalised values: the return that 0 stands for, and the size of a step of 1.

    Attributes:
        mean: mean of value targets.
        spread: standard deviation of value targets.
    """

    mean: float
    spread: float

    @classmethod
    def of(cls, normalizer: Normalizer) -> Self:
        """Read the units from the statistics of a model that normalises values."""
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
        """Return the returns that normalised values, an array or a tensor, stand for."""
        return values * self.spread + self.mean


class NormalizingExecutor(Executor):
    """Shows a network normalised observations, and records the statistics that it used.

    Args:
        executor: executor of the network.
        normalizer: the model's normaliser, whose statistics are the first to act with.
    """

    def __init__(self, executor: Executor, normalizer: Normalizer) -> None:
        moments, numbers = normalizer.observations, normalizer.numbers
        assert moments is not None, "there is something to normalise"
        assert numbers is not None, "there is something to normalise"
        self._executor = executor
        self._place, self._numbers = normalizer.place(moments), numbers
        mean, scale = normalizer.filter()
        self._mean, self._scale = mean.cpu().numpy().copy(), scale.cpu().numpy().copy()
        self._seen: npt.NDArray[Any] = np.empty(0, np.float32)

    def adopt(self, parameters: Floats) -> None:
        """Copy new parameters in, with the statistics that are among the last of them."""
        self._executor.adopt(parameters)
        moments = parameters[self._place].reshape(-1, self._numbers.count).astype(np.float64)
        mean, variance, *rest = moments
        self._mean[...], self._scale[...] = self._numbers.filter(mean + rest[0] if rest else mean, variance)

    def __call__(self, observation: npt.NDArray[Any]) -> tuple[Floats, ...]:
        """Run the network on normalised ``observation [N, ...]``."""
        return self._executor(self._normalized(observation))

    def preview(self, observation: npt.NDArray[Any]) -> tuple[Floats, ...]:
        """Run the network as a call would, without moving on."""
        return self._executor.preview(self._normalized(observation))

    def record(self, fields: Fields) -> None:
        """Write the network's state, and for a rollout the statistics that normalise observations."""
        if FILTER in fields:
            fields[FILTER][..., 0, :], fields[FILTER][..., 1, :] = self._mean, self._scale
        self._executor.record(fields)

    def resume(self, fields: Fields) -> None:
        """Go on from the network's state."""
        self._executor.resume(fields)

    def forget(self, where: npt.NDArray[np.bool_]) -> None:
        """Clear the network's state."""
        self._executor.forget(where)

    def _normalized(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self._seen.shape != observation.shape:
            self._seen = self._numbers.empty(observation.shape, observation)
        self._numbers.normalize(observation, self._mean, self._scale, self._seen)
        return self._seen


class DiscountedReturns:
    """Follows the discounted return of each environment of an actor, and sums it up for each fragment."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self._gamma = np.float32(gamma)
        self._carried = np.zeros(num_envs, np.float32)
        self._returns = np.empty((0, num_envs), np.float32)

    def record(self, fields: Fields) -> None:
        """Write number, mean and sum of squared deviations over the experience of a full fragment."""
        reward, experience = fields["reward"], fields["mask"].astype(np.float32)
        goes_on = (1 - (fields["terminated"] | fields["truncated"])).astype(np.float32)
        goes_on *= self._gamma
        if len(self._returns) != len(reward):
            self._returns = np.empty_like(reward)
        returns, carried = self._returns, self._carried
        for t in range(len(reward)):
            np.add(reward[t], carried, out=returns[t])
            np.multiply(returns[t], goes_on[t], out=carried)
        count, mean, squares = fields[RETURNS][0].T
        np.add.reduce(experience, axis=0, out=count)
        np.einsum("tn,tn->n", returns, experience, out=mean)
        mean /= np.maximum(count, 1)
        returns -= mean
        np.einsum("tn,tn,tn->n", returns, returns, experience, out=squares)


def build_normalizer(model: Model, spaces: Spaces, asked: Normalization | None) -> None:
    """Give a new model the statistics of ``asked``, as its last buffers.

    Raises:
        UnsupportedSpaceError: observations cannot be normalised.
        UnsuitableModelError: the network already has an attribute ``normalizer``.
    """
    if asked is None:
        return
    if hasattr(model, "normalizer"):
        what = f"{type(model).__name__} has an attribute `normalizer` of its own"
        raise UnsuitableModelError(f"{what}; another name would be right")
    model.normalizer = Normalizer(spaces, asked)


def normalizer_of(model: Model) -> Normalizer | None:
    """Return a model's normaliser; None if it has none, or another attribute of that name."""
    found = getattr(model, "normalizer", None)
    return found if isinstance(found, Normalizer) else None


def acting_executor(model: Model, num_envs: int) -> Executor:
    """Build the executor that an actor runs: the network's, behind the normaliser if the model has one."""
    executor = model.executor(num_envs)
    normalizer = normalizer_of(model)
    if executor.normalizes or normalizer is None or normalizer.observations is None:
        return executor
    return NormalizingExecutor(executor, normalizer)
