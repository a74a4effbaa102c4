"""Action distributions: sampling in numpy for the actor, probabilities in torch for the learner.

A policy network's output is ``policy [N, outputs]``. What is in numpy works on its transpose: rows of N
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
import torch

from tianji_algos.errors import UnsupportedSpaceError

Floats = npt.NDArray[np.float32]
Actions = npt.NDArray[Any]

HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)


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
    def evaluate(self, policy: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities ``[N]`` and entropies ``[N]`` of recorded actions, differentiably."""


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
        self.sets = [slice(first, last) for first, last in pairwise(edges)]
        self._rows = -1
        self._draws: list[_Draw] = []

    def sample(self, policy: Floats, rng: np.random.Generator, action: Actions, log_prob: Floats) -> None:
        """Draw by inverting the cumulative distribution: one uniform number per set."""
        if len(policy) != self._rows:
            self._rows = len(policy)
            self._draws = [_Draw(members.stop - members.start, self._rows) for members in self.sets]
        log_prob[...] = 0.0
        for column, members, draw in zip(self.columns(action), self.sets, self._draws, strict=True):
            log_prob += draw(policy.T[members], rng, column)

    def mode(self, policy: Floats) -> Actions:
        """Take the largest logit of each set."""
        action = np.empty((len(policy), *self.action_shape), self.action_dtype)
        for column, members in zip(self.columns(action), self.sets, strict=True):
            column[...] = policy.T[members].argmax(axis=0)
        return action

    def for_environment(self, action: Actions) -> Actions:
        """Add the number of the first action, where it is not 0."""
        return action if self._offset is None else action + self._offset

    def evaluate(self, policy: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum log-probabilities and entropies over the sets."""
        log_prob, entropy = policy.new_zeros(2, len(policy)).unbind()
        for column, members in zip(self.columns(action), self.sets, strict=True):
            log_p = policy[:, members].log_softmax(dim=1)
            log_prob = log_prob + log_p.gather(1, column.long()[:, None])[:, 0]
            entropy = entropy - (log_p.exp() * log_p).sum(dim=1)
        return log_prob, entropy

    def columns(self, action: Any) -> list[Any]:
        """Split actions, an array or a tensor, into one ``[N]`` per set."""
        if not self.action_shape:
            return [action]
        return [action[:, k] for k in range(len(self.sets))]


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
        self.dimensions = math.prod(space.shape)
        self.outputs = 2 * self.dimensions
        self._noise = self._spread = np.empty((0, 0), np.float32)

    def sample(self, policy: Floats, rng: np.random.Generator, action: Actions, log_prob: Floats) -> None:
        """Draw ``mean + std * noise``."""
        mean, log_std = self.split(policy)
        if self._noise.shape != mean.shape:
            self._noise, self._spread = np.empty((2, *mean.shape), np.float32)
        rng.standard_normal(out=self._noise, dtype=np.float32)
        np.exp(log_std, out=self._spread)
        self._spread *= self._noise
        np.add(mean, self._spread, out=action.reshape(len(policy), -1).T)
        log_prob[...] = normal_log_prob(self._noise, log_std)

    def mode(self, policy: Floats) -> Actions:
        """Take the mean."""
        return self.split(policy)[0].T.reshape(-1, *self.action_shape)

    def for_environment(self, action: Actions) -> Actions:
        """Clip to the space's bounds."""
        if not self._bounded:
            return action
        return np.clip(action, self._space.low, self._space.high)

    def evaluate(self, policy: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum over the dimensions of an action."""
        mean, log_std = policy.chunk(2, dim=1)
        noise = (action.reshape(mean.shape) - mean) * (-log_std).exp()
        log_prob = (-0.5 * noise.square() - log_std - HALF_LOG_2PI).sum(dim=1)
        return log_prob, log_std.sum(dim=1) + self.dimensions * (0.5 + HALF_LOG_2PI)

    def split(self, policy: Floats) -> tuple[Floats, Floats]:
        """View means and logarithms of standard deviations of ``policy [N, 2 D]``, ``[D, N]`` each."""
        columns = policy.T
        return columns[: self.dimensions], columns[self.dimensions :]


def normal_log_prob(noise: Floats, log_std: Floats) -> Floats:
    """Sum, over D dimensions, the log-probabilities of what is ``noise [D, N]`` deviations off, ``[N]``."""
    terms: Floats = noise * noise
    terms *= np.float32(-0.5)
    terms -= log_std
    terms -= np.float32(HALF_LOG_2PI)
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
    raise UnsupportedSpaceError(
        f"a policy acts in Discrete and MultiDiscrete spaces and in Boxes of floats, not in {space}"
    )
