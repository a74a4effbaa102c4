"""Actions of a team as critics see them: what was done, and what actors would do, with gradients.

Everything here is agent by agent, ``[M, B, ...]``, as the actors compute it. What an agent does that is not
alive is seen as zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Spaces
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.team import UNAVAILABLE, Team

Floats = npt.NDArray[np.float32]


class TeamActions(ABC):
    """How actors' outputs become actions."""

    @abstractmethod
    def done(self, recorded: torch.Tensor) -> torch.Tensor:
        """Return what the agent's field ``action [B, M, ...]`` says was done: ``[M, B, A]``."""

    @abstractmethod
    def chosen(self, outputs: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:
        """Return what actors do by their outputs ``[M, B, A]``, differentiably: ``[M, B, A]``.

        Args:
            available: which actions there are, ``[M, B, A]``; None where they are continuous.
        """

    @abstractmethod
    def entropy(self, outputs: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:
        """Return the entropy of each agent's policy, ``[M, B]``, without gradients."""


class DiscreteActions(TeamActions):
    """Actions are one-hot; their distribution has a Gumbel-softmax for its gradient (Jang et al., 2017).

    Args:
        temperature: of the Gumbel-softmax; the lower it is, the fewer actions have a part in a gradient.
        rng: that actions are drawn with; on the host, so that every device gets the same.
    """

    def __init__(self, actions: int, temperature: float, rng: np.random.Generator) -> None:
        self._actions = actions
        self._temperature = temperature
        self._rng = rng

    def done(self, recorded: torch.Tensor) -> torch.Tensor:
        """Return recorded numbers of actions ``[B, M]`` as one-hot rows ``[M, B, A]``."""
        return torch.nn.functional.one_hot(recorded.T.long(), self._actions).float()

    def chosen(self, outputs: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:
        """Draw one-hot actions, whose gradient is that of the softmax that they are the argmax of."""
        noise = torch.from_numpy(gumbel(self._rng, np.empty(outputs.shape, np.float32))).to(outputs.device)
        soft = torch.softmax(_masked((outputs + noise) / self._temperature, available), dim=2)
        hard = torch.zeros_like(soft).scatter_(2, soft.argmax(dim=2, keepdim=True), 1.0)
        return hard + (soft - soft.detach()) if soft.requires_grad else hard

    @torch.no_grad()
    def entropy(self, outputs: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:
        """Return the entropy of a softmax of the outputs, ``[M, B]``."""
        probabilities = torch.softmax(_masked(outputs, available), dim=2)
        entropy: torch.Tensor = torch.special.entr(probabilities).sum(dim=2)
        return entropy


class ContinuousActions(TeamActions):
    """Actions are tanh of the outputs, from -1 to 1; in the environment that is from bound to bound."""

    def __init__(self, bounds: ActionBounds, device: torch.device) -> None:
        self._middle = torch.from_numpy(bounds.middle).to(device)[:, None]
        half = torch.from_numpy(bounds.half).to(device)[:, None]
        self._exists = (half > 0).float()
        self._per_half = self._exists / half.clamp_min(torch.finfo().tiny)

    def done(self, recorded: torch.Tensor) -> torch.Tensor:
        """Scale recorded actions ``[B, M, A]`` to between -1 and 1."""
        return (recorded.transpose(0, 1) - self._middle) * self._per_half

    def chosen(
        self,
        outputs: torch.Tensor,
        available: torch.Tensor | None,  # noqa: ARG002 - every number can be chosen
    ) -> torch.Tensor:
        """Return the tanh of the outputs, and 0 for numbers that an agent's action does not have."""
        return outputs.tanh() * self._exists

    def entropy(self, outputs: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG002
        """Return 0: these policies are deterministic."""
        return torch.zeros(outputs.shape[:2], device=outputs.device)


class ActionBounds:
    """Middle and half of the distance between the bounds of a team's continuous actions.

    Args:
        space: of the actions; numbers that an agent's action does not have are bounded by 0 and 0.

    Attributes:
        middle: ``[M, A]``.
        half: ``[M, A]``.

    Raises:
        UnsupportedSpaceError: an action is not bounded.
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        if not space.is_bounded():
            raise UnsupportedSpaceError(
                f"MADDPG's continuous actions go from bound to bound, and {space} has none; "
                "a Box with finite low and high would be right"
            )
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        self.middle: Floats = np.float32(0.5) * (low + high)
        self.half: Floats = np.float32(0.5) * (high - low)


def team_actions(
    spaces: Spaces, temperature: float, rng: np.random.Generator, device: torch.device
) -> TeamActions:
    """Choose how actors' outputs become actions, by the space of the actions.

    Raises:
        UnsupportedSpaceError: an action is not bounded.
    """
    space: gym.Space[Any] = spaces.action
    if isinstance(space, gym.spaces.Box):
        return ContinuousActions(ActionBounds(space), device)
    return DiscreteActions(Team.of(spaces).most_actions, temperature, rng)


def gumbel(rng: np.random.Generator, into: Floats) -> Floats:
    """Draw from the standard Gumbel distribution, in place.

    The largest of some logits, each with such noise added, is a draw from their softmax.
    """
    rng.standard_exponential(dtype=np.float32, out=into)
    np.maximum(into, np.finfo(np.float32).tiny, out=into)
    return np.negative(np.log(into, out=into), out=into)


def _masked(logits: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:
    return logits if available is None else logits.masked_fill(~available, UNAVAILABLE)
