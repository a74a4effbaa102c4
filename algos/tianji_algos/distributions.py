"""Action distributions in numpy: sampling for the actor, derivatives for the learner.

A policy network's output is ``policy [N, outputs]``. Everything here works on its transpose: rows of N
numbers are what numpy is fast on, and the built-in model's output is laid out that way in memory.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any, Final, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from tianji_algos.errors import UnsupportedSpaceError

Floats = npt.NDArray[np.float32]
Actions = npt.NDArray[Any]

_HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)


class Distribution(ABC):
    """A distribution over actions, one for each of up to ``batch_size`` rows of a policy's output.

    Attributes:
        outputs: how many numbers per row the policy network has to give.
        agents: shape of what is one number for a policy of its own: () or, for the M of a team, (M,).
    """

    outputs: int
    action_shape: tuple[int, ...]
    action_dtype: np.dtype[Any]
    agents: tuple[int, ...] = ()

    @abstractmethod
    def sample(self, policy: Floats, rng: np.random.Generator, action: Actions, log_prob: Floats) -> None:
        """Draw ``action [N, *action_shape]`` and write its ``log_prob [N]``, both in place."""

    @abstractmethod
    def mode(self, policy: Floats) -> Actions:
        """Return the likeliest actions ``[N, *action_shape]``."""

    @abstractmethod
    def for_environment(self, action: Actions) -> Actions:
        """Turn recorded actions ``[N, *action_shape]`` into what the environment takes."""

    @abstractmethod
    def evaluate(self, policy: Floats, action: Actions) -> tuple[Floats, Floats]:
        """Return log-probabilities ``[N]`` and entropies ``[N]``, and remember them for ``gradient``."""

    @abstractmethod
    def gradient(self, d_log_prob: Floats, d_entropy: float) -> Floats:
        """Derive by the policy of the last ``evaluate``.

        Args:
            d_log_prob: ``[N]``, derivative of the loss by each log-probability.
            d_entropy: derivative of the loss by any row's entropy.

        Returns:
            Derivative of the loss by the policy's output, ``[N, outputs]``.
        """


class Categorical(Distribution):
    """Softmax over one or several sets of discrete actions; the sets are independent.

    Args:
        sizes: number of actions in each set.
        starts: the environment's number for each set's first action.
        scalar: an action is one number (Discrete) and not an array (MultiDiscrete).
    """

    def __init__(
        self, sizes: tuple[int, ...], starts: tuple[int, ...], scalar: bool, dtype: np.dtype[Any]
    ) -> None:
        self.outputs = sum(sizes)
        self.action_shape = () if scalar else (len(sizes),)
        self.action_dtype = dtype
        self._offset = np.array(starts, dtype) if any(starts) else None
        edges = [0, *np.cumsum(sizes).tolist()]
        self._sets = [slice(first, last) for first, last in pairwise(edges)]
        self._rows = -1
        self._draws: list[_Draw] = []
        self._seen: list[tuple[npt.NDArray[np.intp], Floats, Floats, Floats]] = []

    def sample(self, policy: Floats, rng: np.random.Generator, action: Actions, log_prob: Floats) -> None:
        """Draw by inverting the cumulative distribution: one uniform number per set."""
        if len(policy) != self._rows:
            self._rows = len(policy)
            self._draws = [_Draw(members.stop - members.start, self._rows) for members in self._sets]
        log_prob[...] = 0.0
        for column, members, draw in zip(self._columns(action), self._sets, self._draws, strict=True):
            log_prob += draw(policy.T[members], rng, column)

    def mode(self, policy: Floats) -> Actions:
        """Take the largest logit of each set."""
        action = np.empty((len(policy), *self.action_shape), self.action_dtype)
        for column, members in zip(self._columns(action), self._sets, strict=True):
            column[...] = policy.T[members].argmax(axis=0)
        return action

    def for_environment(self, action: Actions) -> Actions:
        """Add the number of the first action, where it is not 0."""
        return action if self._offset is None else action + self._offset

    def evaluate(self, policy: Floats, action: Actions) -> tuple[Floats, Floats]:
        """Sum log-probabilities and entropies over the sets."""
        self._seen.clear()
        log_prob = np.zeros(len(policy), np.float32)
        entropy = np.zeros(len(policy), np.float32)
        for column, members in zip(self._columns(action), self._sets, strict=True):
            logit = policy.T[members]
            log_p = logit - np.maximum.reduce(logit)
            p = np.exp(log_p)
            total = np.add.reduce(p)
            p /= total
            log_p -= np.log(total)
            set_entropy = -np.add.reduce(p * log_p)
            chosen = column.astype(np.intp, copy=False)
            log_prob += _pick(log_p, chosen)
            entropy += set_entropy
            self._seen.append((chosen, p, log_p, set_entropy))
        return log_prob, entropy

    def gradient(self, d_log_prob: Floats, d_entropy: float) -> Floats:
        """Use d log p(a) / d logit = 1[a] - p and d H / d logit = -p (log p + H)."""
        d_policy = np.empty((self.outputs, len(d_log_prob)), np.float32)
        rows = np.arange(len(d_log_prob))
        for members, (chosen, p, log_p, entropy) in zip(self._sets, self._seen, strict=True):
            d_logit = d_policy[members]
            np.multiply(p, -d_log_prob, out=d_logit)
            d_logit[chosen, rows] += d_log_prob
            if d_entropy != 0.0:
                d_logit -= np.float32(d_entropy) * p * (log_p + entropy)
        return d_policy.T

    def _columns(self, action: Actions) -> list[Actions]:
        """Split actions into one array ``[N]`` per set."""
        if not self.action_shape:
            return [action]
        return [action[:, k] for k in range(len(self._sets))]


class _Draw:
    """Draws from one set of actions, in memory that is kept: an actor does this at every step."""

    def __init__(self, size: int, rows: int) -> None:
        self._uniform = np.empty(rows, np.float32)
        self._logit = np.empty((size, rows), np.float32)
        self._flat_logit = self._logit.reshape(-1)
        self._weight = np.empty((size, rows), np.float32)
        self._cumulative = np.empty((size, rows), np.float32)
        self._is_below = np.empty((size - 1, rows), np.bool_)
        self._chosen = np.empty(rows, np.intp)
        self._column = np.arange(rows)
        self._log_prob = np.empty(rows, np.float32)

    def __call__(self, logit: Floats, rng: np.random.Generator, action: Actions) -> Floats:
        """Write actions ``[N]`` for ``logit [A, N]``; the log-probabilities are reused by the next call."""
        np.maximum.reduce(logit, out=self._log_prob)
        np.subtract(logit, self._log_prob, out=self._logit)
        np.exp(self._logit, out=self._weight)
        np.add.accumulate(self._weight, out=self._cumulative)
        total = self._cumulative[-1]
        rng.random(out=self._uniform, dtype=np.float32)
        self._uniform *= total
        np.less_equal(self._cumulative[:-1], self._uniform, out=self._is_below)
        np.add.reduce(self._is_below, axis=0, dtype=np.intp, out=self._chosen)
        action[...] = self._chosen
        self._chosen *= len(self._column)
        self._chosen += self._column
        np.take(self._flat_logit, self._chosen, out=self._log_prob, mode="clip")
        np.log(total, out=total)
        self._log_prob -= total
        return self._log_prob


class Gaussian(Distribution):
    """Independent normal distributions, from means and logarithms of standard deviations ``[N, 2 D]``.

    The environment gets actions clipped to its bounds; what is recorded and judged is the action as drawn.
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        self.action_shape = space.shape
        self.action_dtype = np.dtype(np.float32)
        self._space = space
        self._bounded = bool(np.isfinite(space.low).any() or np.isfinite(space.high).any())
        self._dimensions = math.prod(space.shape)
        self.outputs = 2 * self._dimensions
        self._noise = self._spread = np.empty((0, 0), np.float32)
        self._seen: tuple[Floats, Floats] | None = None

    def sample(self, policy: Floats, rng: np.random.Generator, action: Actions, log_prob: Floats) -> None:
        """Draw ``mean + std * noise``."""
        mean, log_std = self._split(policy)
        if self._noise.shape != mean.shape:
            self._noise, self._spread = np.empty((2, *mean.shape), np.float32)
        rng.standard_normal(out=self._noise, dtype=np.float32)
        np.exp(log_std, out=self._spread)
        self._spread *= self._noise
        np.add(mean, self._spread, out=action.reshape(len(policy), -1).T)
        log_prob[...] = self._log_prob(self._noise, log_std)

    def mode(self, policy: Floats) -> Actions:
        """Take the mean."""
        return self._split(policy)[0].T.reshape(-1, *self.action_shape)

    def for_environment(self, action: Actions) -> Actions:
        """Clip to the space's bounds."""
        if not self._bounded:
            return action
        return np.clip(action, self._space.low, self._space.high)

    def evaluate(self, policy: Floats, action: Actions) -> tuple[Floats, Floats]:
        """Sum over the dimensions of an action."""
        mean, log_std = self._split(policy)
        inverse_std = np.exp(-log_std)
        noise = (action.reshape(len(policy), -1).T - mean) * inverse_std
        self._seen = (noise, inverse_std)
        entropy = np.add.reduce(log_std) + np.float32(self._dimensions * (0.5 + _HALF_LOG_2PI))
        return self._log_prob(noise, log_std), entropy

    def gradient(self, d_log_prob: Floats, d_entropy: float) -> Floats:
        """Use d log p / d mean = z / std, d log p / d log std = z^2 - 1 and d H / d log std = 1."""
        assert self._seen is not None, "gradient() follows evaluate()"
        noise, inverse_std = self._seen
        d_policy = np.empty((self.outputs, len(d_log_prob)), np.float32)
        d_mean, d_log_std = d_policy[: self._dimensions], d_policy[self._dimensions :]
        np.multiply(noise, inverse_std, out=d_mean)
        d_mean *= d_log_prob
        np.multiply(noise, noise, out=d_log_std)
        d_log_std -= np.float32(1.0)
        d_log_std *= d_log_prob
        d_log_std += np.float32(d_entropy)
        return d_policy.T

    def _split(self, policy: Floats) -> tuple[Floats, Floats]:
        columns = policy.T
        return columns[: self._dimensions], columns[self._dimensions :]

    def _log_prob(self, noise: Floats, log_std: Floats) -> Floats:
        terms: Floats = noise * noise
        terms *= np.float32(-0.5)
        terms -= log_std
        terms -= np.float32(_HALF_LOG_2PI)
        return cast("Floats", np.add.reduce(terms))


def distribution_for(space: gym.Space[Any]) -> Distribution:
    """Choose the distribution for an action space.

    Raises:
        UnsupportedSpaceError: it is neither Discrete nor MultiDiscrete nor Box of floats.
    """
    if isinstance(space, gym.spaces.Discrete):
        return Categorical((int(space.n),), (int(space.start),), scalar=True, dtype=np.dtype(np.int64))
    if isinstance(space, gym.spaces.MultiDiscrete) and space.nvec.ndim == 1:
        sizes, starts = tuple(space.nvec.tolist()), tuple(space.start.tolist())
        return Categorical(sizes, starts, scalar=False, dtype=np.dtype(space.dtype))
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Gaussian(space)
    raise UnsupportedSpaceError(f"a policy acts in Discrete, MultiDiscrete and Box spaces, not in {space}")


def _pick(table: Floats, index: npt.NDArray[np.intp]) -> Floats:
    """Take ``table[index[i], i]`` for each column i."""
    columns = table.shape[1]
    flat = index * columns
    flat += np.arange(columns)
    return cast("Floats", table.reshape(-1).take(flat, mode="clip"))
