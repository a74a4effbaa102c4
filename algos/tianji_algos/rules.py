"""Action rules of agents as torch modules, for files that act without tianji (see ``export.py``).

A rule turns a network's outputs into actions in the environment's own form. It draws nothing: noise is an
input, so that a file gives the same actions everywhere and the random stream is its user's.
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
