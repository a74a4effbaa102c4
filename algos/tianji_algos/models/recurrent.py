"""An actor-critic that remembers: an encoder, an LSTM or a GRU, and a policy and a value."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from tianji_algos.core import Spaces
from tianji_algos.fields import FieldSpec
from tianji_algos.models.cores import RecurrentCore, state_size
from tianji_algos.models.encoders import ImageEncoder, RowEncoder
from tianji_algos.models.heads import PolicyValueHead
from tianji_algos.models.settings import RecurrentActorCriticSettings
from tianji_algos.models.through_time import RecurrentActorCritic


class GatedActorCritic(RecurrentActorCritic):
    """Policy and value on top of an LSTM or GRU (Mnih et al., 2016; Espeholt et al., 2018).

    Args:
        spaces: of one environment.
        settings: encoder, core and their widths, initial scales, precision.

    Raises:
        UnsupportedSpaceError: an observation or action space that it cannot serve.
    """

    settings_type: ClassVar[type[RecurrentActorCriticSettings]] = RecurrentActorCriticSettings

    def __init__(self, spaces: Spaces, settings: RecurrentActorCriticSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder: ImageEncoder | RowEncoder
        if settings.encoder == "mlp":
            self.encoder = RowEncoder(spaces.observation, settings)
        else:
            self.encoder = ImageEncoder(spaces.observation, settings, settings.widths)
        self.core = RecurrentCore(self.encoder.features, settings.width, settings.core)
        self.state_size = self.core.state_size
        self.head = PolicyValueHead(
            settings.width, spaces.action, settings.policy_gain, settings.initial_log_std
        )

    @classmethod
    def recorded(
        cls,
        spaces: Spaces,  # noqa: ARG003 - the same for all
        settings: RecurrentActorCriticSettings,
    ) -> tuple[FieldSpec, ...]:
        """Record once in a fragment what is remembered before its first step."""
        shape = (state_size(settings.width, settings.core),)
        return (FieldSpec("state", np.dtype(np.float32), shape, once=True),)

    def unroll(
        self, observation: torch.Tensor, first: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Go through steps in their order; the encoder sees all of them at once."""
        features = self.encoder(observation.flatten(0, 1)).view(*first.shape, -1)
        outputs, state = self.core(features, first, state)
        policy, value = self.head(outputs.flatten(0, 1))
        return policy, value, state
