"""A network that remembers, as small as can be: what PPO and IMPALA are tested with."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tianji_algos.core import Spaces
from tianji_algos.distributions import distribution_for
from tianji_algos.fields import FieldSpec
from tianji_algos.models.recurrent import RecurrentActorCritic
from tianji_algos.models.settings import MLPActorCriticSettings


class TinyGRU(RecurrentActorCritic):
    """One GRU cell, and two outputs of its state; the settings' first width is the state's."""

    settings_type = MLPActorCriticSettings

    def __init__(self, spaces: Spaces, settings: MLPActorCriticSettings) -> None:
        super().__init__()
        assert spaces.observation.shape is not None
        self.state_size = settings.hidden[0]
        self.cell = nn.GRUCell(spaces.observation.shape[0], self.state_size)
        self.policy = nn.Linear(self.state_size, distribution_for(spaces.action).outputs)
        self.value = nn.Linear(self.state_size, 1)

    @classmethod
    def recorded(cls, spaces: Spaces, settings: MLPActorCriticSettings) -> tuple[FieldSpec, ...]:  # noqa: ARG003
        return (FieldSpec("state", np.dtype(np.float32), (settings.hidden[0],), once=True),)

    def unroll(
        self, observation: torch.Tensor, first: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        states, first = [], first.to(state.device)
        for t in range(len(observation)):
            state = self.cell(observation[t], state * ~first[t][:, None])
            states.append(state)
        seen = torch.cat(states)
        return self.policy(seen), self.value(seen)[:, 0], state
