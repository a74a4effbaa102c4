"""Example of two roles around a learnt reward model, for reward_model.toml.

One role learns from copies of fragments to predict the environment's reward, and publishes the model; another
between actors and the buffer puts the model's prediction in the place of each reward. A model that is learnt
from people's preferences, or from demonstrations, would stand in the same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from tianji_algos.core import Spaces
from tianji_algos.fields import FieldSpec
from tianji_algos.settings import Settings
from tianji_cli.config.schema import JobConfig
from tianji_cli.roles.records import Fields
from tianji_cli.roles.user_role import RoleContext, UserRole

HIDDEN = 64


def reward_model(spaces: Spaces) -> nn.Sequential:
    """Build a network from observations and actions to rewards, the same at first in each process."""
    (seen,), (acts,) = spaces.observation.shape or (1,), spaces.action.shape or (1,)
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(seen + acts, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1), nn.Flatten(0))


def rows_of(fields: Fields, steps: int) -> torch.Tensor:
    """Join observations and actions of a fragment's steps, ``[T * N, seen + acts]``."""
    seen, acted = fields["observation"][:steps], fields["action"]
    rows = [array.reshape(steps * array.shape[1], -1) for array in (seen, acted)]
    return torch.from_numpy(np.concatenate(rows, axis=1, dtype=np.float32))


class Weights:
    """The model's parameters, in one row."""

    @classmethod
    def fields(cls, spaces: Spaces, _config: JobConfig) -> Sequence[FieldSpec]:
        """All parameters as float32."""
        number = parameters_to_vector(reward_model(spaces).parameters()).numel()
        return (FieldSpec("parameters", np.dtype(np.float32), (number,)),)


class RewardLearnerSettings(Settings):
    """Settings of the config's ``[roles.reward_learner]`` beside those of every role."""

    learning_rate: float = Field(3e-3, gt=0)
    batch_size: int = Field(128, ge=1)


class RewardLearner(UserRole):
    """Learns to predict rewards from copies of fragments, and publishes its model."""

    settings_type = RewardLearnerSettings

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        self._model = reward_model(context.spaces)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=self.settings.learning_rate)
        self._error = float("inf")

    def turn(self) -> bool:
        """Learn from the fragments that have come, and publish what was learnt; returns whether any had."""
        learnt = False
        for fragment in self.fragments():
            rewards = torch.from_numpy(fragment.fields["reward"].reshape(-1).copy())
            rows = rows_of(fragment.fields, self.context.layout.steps)
            for batch in torch.randperm(len(rows)).split(self.settings.batch_size):
                error = (self._model(rows[batch]) - rewards[batch]).square().mean()
                self._optimizer.zero_grad()
                error.backward()
                self._optimizer.step()
            self._error, learnt = float(error), True
        if learnt:
            parameters = parameters_to_vector(self._model.parameters())
            self.publish("reward_model", parameters=parameters.detach().numpy())
        return learnt

    def report(self) -> dict[str, Any]:
        """Mean squared error of the last batch."""
        return super().report() | {"error": self._error if np.isfinite(self._error) else None}


class Relabel(UserRole):
    """Replaces rewards by those of the newest model, and sends fragments on."""

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        self._model = reward_model(context.spaces)
        self._version = 0
        self._held = False

    def turn(self) -> bool:
        """Send one fragment on; returns False if there is none, or no room for it."""
        if not self._held and self.probe("fragments") is None:
            return False
        self._held = not self.forward("fragments", self._relabel)
        return not self._held

    def stop(self) -> None:
        """Send the rest on: the actors have stopped."""
        self.forward_rest("fragments", self._relabel)

    def _relabel(self, fields: Fields) -> None:
        newest = self.latest("reward_model", newer_than=self._version)
        if newest is not None:
            self._version = newest.version
            vector_to_parameters(torch.from_numpy(newest.fields["parameters"]), self._model.parameters())
        with torch.no_grad():
            predicted = self._model(rows_of(fields, len(fields["reward"])))
        fields["reward"][...] = predicted.numpy().reshape(fields["reward"].shape)
