"""How agents act, as torch modules: what is written into a file that acts without tianji (see ``export.py``).

A rule makes actions, in the environment's own form, of what a network gives. Nothing in it is drawn: noise is
an input, so that a file gives the same actions everywhere and the random stream is its user's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.bounds import ActionBounds

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

SAMPLED: Final = "sampled_action"
"""Name of the output that noise makes, and nothing else depends on it."""


@dataclass(frozen=True)
class Port:
    """An input or an output of an exported policy, ``[batch, *shape]``.

    Attributes:
        name: unique among inputs and outputs.
        meaning: what it holds, in words.
        initial: of an input that is remembered: its value where an episode begins.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    meaning: str
    initial: int | None = None


class ActionRule(nn.Module, ABC):
    """From a network's outputs to actions as the environment takes them.

    Attributes:
        outputs: what ``forward`` gives. The first is ``action``, the greedy one; with noise the second is
            ``SAMPLED``; then come the numbers that actions are chosen by.
        noise: what an action is sampled with; None: there is nothing to sample from.
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
        """Draw noise for N observations as the agent does: of the same stream it makes the same actions."""
        return np.empty((number, 0), np.float32)

    def choices(self, action: Array, scores: Array) -> list[tuple[Array, Array]]:  # noqa: ARG002
        """Take apart what was chosen, where actions are.

        Args:
            action: ``[N, ...]`` in the environment's form.
            scores: the output that they are chosen by, ``[N, ...]``.

        Returns:
            Of each choice the numbers of actions ``[R]``, from 0, and the scores of all of them ``[R, A]``.
        """
        return []


class BestActionRule(ActionRule):
    """Chooses the action of the highest score, for one agent or for each of a team.

    Args:
        scores: what the network gives, ``[A]`` or ``[M, A]``.
        first: the environment's number of the first action.
    """

    def __init__(self, scores: Port, first: int = 0) -> None:
        super().__init__()
        self._first = first
        best = Port("action", np.dtype(np.int64), scores.shape[:-1], f"the highest of {scores.name}")
        self.outputs = (best, scores)

    def forward(self, given: Sequence[torch.Tensor], noise: torch.Tensor | None) -> tuple[torch.Tensor, ...]:  # noqa: ARG002
        """Choose."""
        return given[0].argmax(dim=-1) + self._first, given[0]

    def choices(self, action: Array, scores: Array) -> list[tuple[Array, Array]]:
        """Take agents apart."""
        return [(action.reshape(-1) - self._first, scores.reshape(-1, scores.shape[-1]))]


class BoundedRule(ActionRule):
    """Brings numbers from -1 to 1 between bounds, in the type that its environment takes."""

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
        """Describe an output with a number for each of an action's."""
        return Port(name, np.dtype(np.float32), self.action_shape, meaning)


def normal_noise(shape: tuple[int, ...]) -> Port:
    """Describe noise of a normal distribution."""
    meaning = "standard normal; zeros give the middle of the policy"
    return Port("noise", np.dtype(np.float32), shape, meaning)
