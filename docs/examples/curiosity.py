"""Example of a role between actors and the buffer: random network distillation, for curiosity.toml.

Rewards get a bonus for observations that are new (Burda et al., 2018): the error of a network that learns to
predict the output of a fixed random network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import nn

from tianji_algos.settings import Settings
from tianji_cli.roles.records import Fields
from tianji_cli.roles.user_role import RoleContext, UserRole


class CuriousSettings(Settings):
    """Settings of the config's ``[roles.curious]`` beside those of every role."""

    weight: float = Field(1.0, ge=0)
    hidden: int = Field(64, ge=1)
    learning_rate: float = Field(1e-3, gt=0)


class RunningMoments(nn.Module):
    """Mean and standard deviation of all rows so far (Welford, in batches)."""

    count: torch.Tensor
    mean: torch.Tensor
    squares: torch.Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        for name in ("count", "mean", "squares"):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    def add(self, rows: torch.Tensor) -> None:
        """Add rows ``[B, *shape]``."""
        count, shift = self.count + len(rows), rows.mean(dim=0) - self.mean
        self.squares += rows.var(dim=0, correction=0) * len(rows) + shift**2 * self.count * len(rows) / count
        self.mean += shift * len(rows) / count
        self.count += len(rows)

    @property
    def std(self) -> torch.Tensor:
        """Standard deviation, not quite zero."""
        return (self.squares / self.count.clamp(min=1)).sqrt() + 1e-8


class Curious(UserRole):
    """Adds a bonus to the rewards of each fragment, learns from its observations, and sends it on."""

    settings_type = CuriousSettings
    restartable = True

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        torch.manual_seed(context.seed)
        (size,) = context.spaces.observation.shape or (1,)
        hidden = self.settings.hidden
        self._target, self._predictor = (
            nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden)) for _ in range(2)
        )
        self._observations, self._bonuses = RunningMoments((size,)), RunningMoments(())
        self._parts = nn.ModuleList([self._target, self._predictor, self._observations, self._bonuses])
        rate = self.settings.learning_rate
        self._optimizer = torch.optim.Adam(self._predictor.parameters(), lr=rate)
        self._mean_bonus = 0.0
        self._held = False

    def turn(self) -> bool:
        """Send one fragment on; returns False if there is none, or no room for it."""
        if not self._held and self.probe("fragments") is None:
            return False
        self._held = not self.forward("fragments", self._add_bonus)
        return not self._held

    def stop(self) -> None:
        """Send the rest on: the actors have stopped."""
        self.forward_rest("fragments", self._add_bonus)

    def report(self) -> dict[str, Any]:
        """Mean bonus of the last fragment, before it is scaled."""
        return super().report() | {"mean_bonus": self._mean_bonus}

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Both networks, and the moments of observations and bonuses; the optimizer begins anew."""
        return {name: tensor.numpy() for name, tensor in self._parts.state_dict().items()}

    def load_state(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go on with them."""
        self._parts.load_state_dict({name: torch.as_tensor(array) for name, array in state.items()})

    def _add_bonus(self, fields: Fields) -> None:
        observations = torch.as_tensor(fields["observation"][1:], dtype=torch.float64)
        reached = observations.reshape(-1, *self._observations.mean.shape)  # By each step.
        self._observations.add(reached)
        rows = ((reached - self._observations.mean) / self._observations.std).clamp(-5.0, 5.0).float()
        with torch.no_grad():
            target = self._target(rows)
        error = (self._predictor(rows) - target).square().mean(dim=1)
        self._optimizer.zero_grad()
        error.mean().backward()
        self._optimizer.step()
        bonus = error.detach().double()
        self._bonuses.add(bonus)
        self._mean_bonus = float(bonus.mean())
        scaled = self.settings.weight * bonus / self._bonuses.std
        fields["reward"] += scaled.reshape(fields["reward"].shape).float().numpy()
