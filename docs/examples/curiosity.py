"""Example of a role between actors and the buffer: random network distillation, for curiosity.toml.

Rewards get a bonus for observations that are new (Burda et al., 2018): the error of a network that learns to
predict the output of a fixed random network.
"""

from __future__ import annotations

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


class RunningMoments:
    """Mean and standard deviation of all rows so far (Welford, in batches)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count, self.mean, self._squares = 0, np.zeros(shape), np.zeros(shape)

    def add(self, rows: np.ndarray[Any, Any]) -> None:
        """Add rows ``[B, *shape]``."""
        count, shift = self.count + len(rows), rows.mean(axis=0) - self.mean
        self._squares += rows.var(axis=0) * len(rows) + shift**2 * self.count * len(rows) / count
        self.mean += shift * len(rows) / count
        self.count = count

    @property
    def std(self) -> np.ndarray[Any, Any]:
        """Standard deviation, not quite zero."""
        return np.sqrt(self._squares / max(1, self.count)) + 1e-8


class Curious(UserRole):
    """Adds a bonus to the rewards of each fragment, learns from its observations, and sends it on."""

    settings_type = CuriousSettings

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        torch.manual_seed(context.seed)
        (size,) = context.spaces.observation.shape or (1,)
        hidden = self.settings.hidden
        self._target, self._predictor = (
            nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden)) for _ in range(2)
        )
        rate = self.settings.learning_rate
        self._optimizer = torch.optim.Adam(self._predictor.parameters(), lr=rate)
        self._observations, self._bonuses = RunningMoments((size,)), RunningMoments(())
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

    def _add_bonus(self, fields: Fields) -> None:
        reached = fields["observation"][1:].reshape(-1, self._observations.mean.shape[0])  # By each step.
        self._observations.add(reached)
        scaled = (reached - self._observations.mean) / self._observations.std
        rows = torch.as_tensor(np.clip(scaled, -5.0, 5.0), dtype=torch.float32)
        with torch.no_grad():
            target = self._target(rows)
        error = (self._predictor(rows) - target).square().mean(dim=1)
        self._optimizer.zero_grad()
        error.mean().backward()
        self._optimizer.step()
        bonus = error.detach().numpy().astype(np.float64)
        self._bonuses.add(bonus)
        self._mean_bonus = float(bonus.mean())
        scaled_bonus = self.settings.weight * bonus / self._bonuses.std
        fields["reward"] += scaled_bonus.reshape(fields["reward"].shape).astype(np.float32)
