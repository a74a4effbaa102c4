"""Actions in the environment's own form: bounds for acting, and rules for files that act without tianji.

Policies choose real numbers about -1 to 1, which ``ActionBounds`` scales in numpy, and ``BoundedRule`` in
torch. A rule is an agent's way to act as a torch module, from a network's outputs to actions (see
``export.py``). It draws nothing: noise is an input, so that a file gives the same actions everywhere and the
random stream is its user's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.errors import UnsupportedSpaceError

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

UNBOUNDED: Final = 1e18
"""A bound at least this far from 0 counts as none: it is the limit of its type."""


class ActionBounds:
    """Scales numbers from -1 to 1 to the bounds of continuous actions, in the space's own type.

    A number with one bound has it at -1 or 1, and is open on the other side; a number without bounds stays
    as it is.

    Args:
        space: action space; numbers that an agent of a team does not have are bounded by 0 and 0.
        scaled: False only clips numbers to the bounds.
        may_be_open: numbers need not have two bounds.

    Attributes:
        shape: shape of an action.
        size: numbers in an action.
        low: lower bounds, of ``shape``.
        high: upper bounds, of ``shape``.
        middle: the action that 0 stands for, of ``shape``.
        half: distance from ``middle`` to the action that 1 stands for, of ``shape``.

    Raises:
        UnsupportedSpaceError: the space is no Box of floats, or it is open and may not be.
    """

    def __init__(self, space: gym.Space[Any], *, scaled: bool = True, may_be_open: bool = False) -> None:
        if not isinstance(space, gym.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise UnsupportedSpaceError(
                f"this policy chooses real numbers, so it acts in Box spaces of floats, not in {space}; "
                "an agent for this space, such as 'ppo' or 'dqn', would be right"
            )
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        has_low, has_high = low > -UNBOUNDED, high < UNBOUNDED
        if not may_be_open and not (has_low & has_high).all():
            raise UnsupportedSpaceError(
                f"these continuous actions go from bound to bound, and {space} has none; "
                "a Box with finite low and high would be right"
            )
        self.shape = space.shape
        self.size = math.prod(space.shape)
        self.low, self.high = space.low, space.high
        first = np.where(has_low, low, np.where(has_high, high - 2, -1)) if scaled else -np.ones_like(low)
        last = np.where(has_high, high, first + 2) if scaled else -first
        self.middle: Array = (first / 2 + last / 2).astype(space.dtype)
        self.half: Array = (last / 2 - first / 2).astype(space.dtype)
        self._moves = bool((self.half != 1).any() or self.middle.any())
        self._scaled = np.empty((0, *space.shape), space.dtype)

    def scale(self, actions: Array) -> Array:
        """Return ``actions [N, ...]`` in the environment's form ``[N, *shape]``; reused by the next call."""
        if len(self._scaled) != len(actions):
            self._scaled = np.empty((len(actions), *self.shape), self.low.dtype)
        scaled, actions = self._scaled, actions.reshape(self._scaled.shape)
        if self._moves:
            actions = np.multiply(actions, self.half, out=scaled)
            actions += self.middle
        np.maximum(actions, self.low, out=scaled)
        return np.minimum(scaled, self.high, out=scaled)


SAMPLED: Final = "sampled_action"
"""Name of the only output that depends on the noise."""


@dataclass(frozen=True)
class Port:
    """An input or an output of an exported policy, ``[batch, *shape]``.

    Attributes:
        name: unique among inputs and outputs.
        meaning: its content, in words.
        initial: value of a state input where an episode begins; None for any other port.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    meaning: str
    initial: int | None = None


class ActionRule(nn.Module, ABC):
    """Turns a network's outputs into actions in the environment's form.

    Attributes:
        outputs: outputs of ``forward``. The first is ``action``, the greedy one; with noise the second is
            ``SAMPLED``; then come the numbers by which actions are chosen.
        noise: noise that a sampled action needs; None: the rule does not sample.
    """

    outputs: tuple[Port, ...]
    noise: Port | None = None

    @abstractmethod
    def forward(self, given: Sequence[torch.Tensor], noise: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Compute ``outputs`` ``[N, ...]``.

        Args:
            given: the network's outputs, as an ``Executor`` gives them.
            noise: ``[N, *noise.shape]``.
        """

    def draw(self, rng: np.random.Generator, number: int) -> Floats:  # noqa: ARG002 - most draw nothing
        """Draw noise for N observations as the agent does: the same stream gives the same actions."""
        return np.empty((number, 0), np.float32)

    def choices(self, action: Array, scores: Array) -> list[tuple[Array, Array]]:  # noqa: ARG002
        """Split actions and scores into single choices; empty for actions of real numbers.

        Args:
            action: ``[N, ...]`` in the environment's form.
            scores: the output by which they are chosen, ``[N, ...]``.

        Returns:
            For each choice the numbers of the chosen actions ``[R]``, from 0, and all scores ``[R, A]``.
        """
        return []


class BestActionRule(ActionRule):
    """Chooses the action of the highest score, for one agent or for each of a team.

    Args:
        scores: the network's output, ``[A]`` or ``[M, A]``.
        first: the environment's number of the first action.
    """

    def __init__(self, scores: Port, first: int = 0) -> None:
        super().__init__()
        self._first = first
        best = Port("action", np.dtype(np.int64), scores.shape[:-1], f"the highest of {scores.name}")
        self.outputs = (best, scores)

    def forward(self, given: Sequence[torch.Tensor], noise: torch.Tensor | None) -> tuple[torch.Tensor, ...]:  # noqa: ARG002
        """Choose the actions; returns them and the scores."""
        return given[0].argmax(dim=-1) + self._first, given[0]

    def choices(self, action: Array, scores: Array) -> list[tuple[Array, Array]]:
        """Split actions and scores by agent."""
        return [(action.reshape(-1) - self._first, scores.reshape(-1, scores.shape[-1]))]


class BoundedRule(ActionRule):
    """Scales numbers from -1 to 1 to bounds, in the environment's type."""

    low: torch.Tensor
    high: torch.Tensor
    middle: torch.Tensor
    reach: torch.Tensor

    def __init__(self, bounds: ActionBounds) -> None:
        super().__init__()
        self.action_shape, self.action_dtype = bounds.shape, bounds.low.dtype
        arrays = {"low": bounds.low, "high": bounds.high, "middle": bounds.middle, "reach": bounds.half}
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.array(array)))

    def scaled(self, action: torch.Tensor) -> torch.Tensor:
        """Return actions ``[N, ...]`` as the environment takes them."""
        shaped = action.reshape(-1, *self.action_shape).to(self.low.dtype) * self.reach + self.middle
        return torch.minimum(torch.maximum(shaped, self.low), self.high)

    def action(self, name: str, meaning: str) -> Port:
        """Describe an output of actions."""
        return Port(name, self.action_dtype, self.action_shape, meaning)

    def number(self, name: str, meaning: str) -> Port:
        """Describe an output with one number for each number of an action."""
        return Port(name, np.dtype(np.float32), self.action_shape, meaning)


def normal_noise(shape: tuple[int, ...]) -> Port:
    """Describe noise of a normal distribution."""
    meaning = "standard normal; zeros give the middle of the policy"
    return Port("noise", np.dtype(np.float32), shape, meaning)
