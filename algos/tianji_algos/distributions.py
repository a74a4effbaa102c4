"""Action distributions: sampling in numpy for the actor, probabilities in torch for the learner.

A policy network's output is ``policy [N, outputs]``. The numpy code works on its transpose: numpy is fast on
rows of N numbers, and the built-in model lays its output out that way in memory.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, Final, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.errors import NotExportableError, UnsupportedSpaceError
from tianji_algos.rules import ActionBounds, ActionRule, BoundedRule, Port, normal_noise

Floats = npt.NDArray[np.float32]
Actions = npt.NDArray[Any]

HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)


class Distribution(ABC):
    """A distribution over actions, one for each row of a policy's output: of one agent in one environment.

    Attributes:
        outputs: numbers per row that the policy network has to give.
        agents: shape of a log-probability or value in one environment: () or, for a team of M, (M,).
    """

    outputs: int
    action_shape: tuple[int, ...]
    action_dtype: np.dtype[Any]
    agents: tuple[int, ...] = ()

    @abstractmethod
    def sample(self, policy: Floats, rng: np.random.Generator, action: Actions, log_prob: Floats) -> None:
        """Draw ``action [N, *action_shape]`` and write its ``log_prob [N, *agents]``, both in place.

        Args:
            action: contiguous.
        """

    @abstractmethod
    def mode(self, policy: Floats) -> Actions:
        """Return the likeliest actions ``[N, *action_shape]``."""

    @abstractmethod
    def for_environment(self, action: Actions) -> Actions:
        """Convert recorded actions ``[N, *action_shape]`` to the environment's form."""

    @abstractmethod
    def evaluate(self, policy: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies, ``[rows]``, of recorded actions, differentiably.

        Args:
            policy: ``[rows, outputs]``.
            action: ``[rows, ...]``: a team's row is one agent's.
        """

    def rule(self) -> ActionRule:
        """Describe ``mode`` and ``sample`` in torch, in the environment's form.

        Raises:
            NotExportableError: the distribution defines no rule.
        """
        raise NotExportableError(
            f"{type(self).__name__} does not say in torch how it is sampled from: it has no rule()"
        )


class Categorical(Distribution):
    """Softmax over one or several sets of discrete actions; the sets are independent.

    Args:
        sizes: number of actions in each set.
        starts: the environment's number for each set's first action.
        shape: shape of an action, which has a number for each set.
        dtype: the environment's.
        agents: ``(M,)`` for a team of M, each of whose agents has an action.
        recorded: dtype of recorded actions; None: the environment's.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        starts: tuple[int, ...],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        agents: tuple[int, ...] = (),
        recorded: np.dtype[Any] | None = None,
    ) -> None:
        self.outputs = sum(sizes)
        self.action_shape = (*agents, *shape)
        self.action_dtype = dtype if recorded is None else recorded
        self.agents = agents
        self._shape, self._dtype = shape, dtype
        self._given = np.empty(0, dtype)
        self._starts = starts
        self._offset = np.array(starts, dtype).reshape(shape) if any(starts) else None
        self._columns = [(slice(None), *at) for at in np.ndindex(shape)]
        edges = [0, *np.cumsum(sizes).tolist()]
        self.sets = [slice(first, last) for first, last in pairwise(edges)]
        self._rows = -1
        self._draws: list[_Draw] = []

    def sample(self, policy: Floats, rng: np.random.Generator, action: Actions, log_prob: Floats) -> None:
        """Draw by inverting the cumulative distribution: one uniform number per set."""
        if len(policy) != self._rows:
            self._rows = len(policy)
            self._draws = [_Draw(members.stop - members.start, self._rows) for members in self.sets]
        if len(self.sets) == 1:  # The usual case, in every step of an actor: nothing to divide or to add up.
            log_prob[...] = self._draws[0](policy.T, rng, action.reshape(-1)).reshape(log_prob.shape)
            return
        columns = self.columns(action.reshape(len(policy), *self._shape))
        drawn = [
            draw(policy.T[members], rng, column)
            for column, members, draw in zip(columns, self.sets, self._draws, strict=True)
        ]
        log_prob[...] = reduce(np.add, drawn).reshape(log_prob.shape)

    def mode(self, policy: Floats) -> Actions:
        """Take the largest logit of each set."""
        action = np.empty((len(policy), *self._shape), self.action_dtype)
        for column, members in zip(self.columns(action), self.sets, strict=True):
            column[...] = policy.T[members].argmax(axis=0)
        return action.reshape(-1, *self.action_shape)

    def for_environment(self, action: Actions) -> Actions:
        """Return actions in the space's type, with the number of the first action added.

        The next call may reuse the array.
        """
        if self._dtype != self.action_dtype:
            if self._given.shape != action.shape:
                self._given = np.empty(action.shape, self._dtype)
            np.copyto(self._given, action)
            action = self._given
        return action if self._offset is None else action + self._offset

    def evaluate(self, policy: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum log-probabilities and entropies over the sets."""
        log_prob, entropy = policy.new_zeros(2, len(policy)).unbind()
        for column, members in zip(self.columns(action), self.sets, strict=True):
            log_p = policy[:, members].log_softmax(dim=1)
            log_prob = log_prob + log_p.gather(1, column.long()[:, None])[:, 0]
            entropy = entropy - (log_p.exp() * log_p).sum(dim=1)
        return log_prob, entropy

    def rule(self) -> ActionRule:
        """Take the largest logit of each set, or invert the cumulative distribution."""
        return CategoricalRule(self.sets, self._starts, self.action_shape, self._dtype, self.agents)

    def columns(self, action: Any) -> list[Any]:
        """Split the actions of rows of a policy, an array or a tensor, into one ``[N]`` per set."""
        return [action[column] for column in self._columns] if self._shape else [action]


class _Draw:
    """Draws from one set of actions, in reused memory, since an actor draws at every step."""

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


class CategoricalRule(ActionRule):
    """Chooses actions as ``Categorical`` does, with a uniform number for each set as the noise.

    Args:
        shape: shape of an action, or of all actions of a team.
        agents: ``(M,)`` for a team of M; the network then gives a row for each, ``[N * M, outputs]``.
    """

    starts: torch.Tensor

    def __init__(
        self,
        sets: Sequence[slice],
        starts: Sequence[int],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        agents: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self._sets, self._shape, self._agents = sets, shape, agents
        self.register_buffer("starts", torch.from_numpy(np.array(starts, dtype)))
        single = np.dtype(np.float32)
        self.noise = Port("noise", single, shape, "uniform, from 0 up to and without 1")
        self.outputs = (
            Port("action", dtype, shape, "the likeliest"),
            Port("sampled_action", dtype, shape, "drawn with the noise"),
            Port("logits", single, (*agents, sets[-1].stop), "their softmax is the probabilities of actions"),
        )

    def forward(self, given: Sequence[torch.Tensor], noise: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Choose from each set."""
        assert noise is not None
        policy, luck = given[0], noise.reshape(-1, len(self._sets))
        greedy, drawn = [], []
        for k, members in enumerate(self._sets):
            logit = policy[:, members]
            greedy.append(logit.argmax(dim=1))
            cumulative = (logit - logit.amax(dim=1, keepdim=True)).exp().cumsum(dim=1)
            is_below = cumulative[:, :-1] <= luck[:, k : k + 1] * cumulative[:, -1:]
            drawn.append(is_below.long().sum(dim=1))
        actions = [
            (torch.stack(chosen, dim=1).to(self.starts.dtype) + self.starts).reshape(-1, *self._shape)
            for chosen in (greedy, drawn)
        ]
        return actions[0], actions[1], policy.reshape(-1, *self._agents, policy.shape[1])

    def draw(self, rng: np.random.Generator, number: int) -> Floats:
        """Draw noise set by set."""
        rows = number * math.prod(self._agents)
        drawn = [rng.random(rows, dtype=np.float32) for _ in self._sets]
        return np.stack(drawn, axis=1).reshape(number, *self._shape)

    def choices(self, action: Actions, scores: Floats) -> list[tuple[Actions, Floats]]:
        """Split actions and scores by set and agent."""
        chosen, logits = action.reshape(-1, len(self._sets)), scores.reshape(-1, scores.shape[-1])
        chosen = chosen - self.starts.numpy()
        return [(chosen[:, k], logits[:, members]) for k, members in enumerate(self._sets)]


class Gaussian(Distribution):
    """Independent normal distributions, from means and logarithms of standard deviations ``[N, 2 D]``.

    The environment gets actions scaled and clipped to its bounds; recorded actions and their probabilities
    are as drawn.

    Args:
        space: the environment's.
        scaled: -1 and 1 stand for an action's bounds; else for themselves.
        agents: ``(M,)`` for a team of M, whose agents have a row of the space each.
    """

    def __init__(self, space: gym.spaces.Box, *, scaled: bool = True, agents: tuple[int, ...] = ()) -> None:
        self.action_shape = space.shape
        self.action_dtype = np.dtype(np.float32)
        self.agents = agents
        self._bounds = ActionBounds(space, scaled=scaled, may_be_open=True)
        self.dimensions = math.prod(space.shape[len(agents) :])
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
        log_prob[...] = normal_log_prob(self._noise, log_std).reshape(log_prob.shape)

    def mode(self, policy: Floats) -> Actions:
        """Take the mean."""
        return self.split(policy)[0].T.reshape(-1, *self.action_shape)

    def for_environment(self, action: Actions) -> Actions:
        """Scale to the space's bounds and clip to them; reused by the next call."""
        return self._bounds.scale(action)

    def evaluate(self, policy: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum over the dimensions of an action."""
        mean, log_std = policy.chunk(2, dim=1)
        noise = (action.reshape(mean.shape) - mean) * (-log_std).exp()
        log_prob = (-0.5 * noise.square() - log_std - HALF_LOG_2PI).sum(dim=1)
        return log_prob, log_std.sum(dim=1) + self.dimensions * (0.5 + HALF_LOG_2PI)

    def rule(self) -> ActionRule:
        """Take the mean, or ``mean + std * noise``, scaled and clipped."""
        return GaussianRule(self._bounds, self.agents)

    def split(self, policy: Floats) -> tuple[Floats, Floats]:
        """View means and logarithms of standard deviations of ``policy [N, 2 D]``, ``[D, N]`` each."""
        columns = policy.T
        return columns[: self.dimensions], columns[self.dimensions :]


class GaussianRule(BoundedRule):
    """Chooses actions as ``Gaussian`` does.

    Args:
        bounds: bounds of an action, or of all actions of a team.
        agents: ``(M,)`` for a team of M; the network then gives a row for each, ``[N * M, outputs]``.
    """

    def __init__(self, bounds: ActionBounds, agents: tuple[int, ...] = ()) -> None:
        super().__init__(bounds)
        self._agents = math.prod(agents)
        self.noise = normal_noise(bounds.shape)
        self.outputs = (
            self.action("action", "the mean, scaled and clipped to the bounds"),
            self.action("sampled_action", "mean + std * noise, scaled and clipped to the bounds"),
            self.number("mean", "of the normal distribution of an action before it is scaled and clipped"),
            self.number("std", "its standard deviation"),
        )

    def forward(self, given: Sequence[torch.Tensor], noise: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Choose all numbers of an action."""
        assert noise is not None
        mean, log_std = (half.reshape(-1, *self.action_shape) for half in given[0].chunk(2, dim=1))
        std = log_std.exp()
        return self.scaled(mean), self.scaled(mean + std * noise), mean, std

    def draw(self, rng: np.random.Generator, number: int) -> Floats:
        """Draw noise number by number, each for all actions at once."""
        of_each = math.prod(self.action_shape) // self._agents
        drawn = rng.standard_normal((of_each, number * self._agents), dtype=np.float32)
        return drawn.T.reshape(number, *self.action_shape)


def normal_log_prob(noise: Floats, log_std: Floats) -> Floats:
    """Log-probabilities ``[N]`` of draws ``noise [D, N]`` deviations from the mean, summed over D."""
    terms: Floats = noise * noise
    terms *= np.float32(-0.5)
    terms -= log_std
    terms -= np.float32(HALF_LOG_2PI)
    return cast("Floats", np.add.reduce(terms))


def distribution_for(space: gym.Space[Any], *, scaled: bool = True) -> Distribution:
    """Choose the distribution for an action space.

    Args:
        scaled: numbers from -1 to 1 are scaled to the bounds of a Box.

    Raises:
        UnsupportedSpaceError: the space is neither Discrete nor MultiDiscrete nor a Box of floats.
    """
    if isinstance(space, gym.spaces.Discrete):
        return Categorical((int(space.n),), (int(space.start),), (), np.dtype(np.int64))
    if isinstance(space, gym.spaces.MultiDiscrete):
        sizes, starts = tuple(space.nvec.ravel().tolist()), tuple(space.start.ravel().tolist())
        return Categorical(sizes, starts, space.nvec.shape, np.dtype(space.dtype))
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Gaussian(space, scaled=scaled)
    raise UnsupportedSpaceError(
        f"a policy acts in Discrete and MultiDiscrete spaces and in Boxes of floats, not in {space}"
    )
