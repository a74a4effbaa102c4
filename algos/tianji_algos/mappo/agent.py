"""MAPPO in a team's environment: each agent samples from its own policy."""

from __future__ import annotations

from typing import ClassVar

import torch

from tianji_algos.core import Spaces
from tianji_algos.mappo.distribution import TeamDistribution
from tianji_algos.mappo.settings import MAPPOAgentSettings
from tianji_algos.models.teams.actor_critic import TeamActorCritic
from tianji_algos.ppo.agent import PPOAgent


class MAPPOAgent(PPOAgent):
    """Acts by sampling for every agent of a team; records action, log-probability and value of each."""

    algorithm: ClassVar[str] = "MAPPO"
    contract: ClassVar[type[torch.nn.Module]] = TeamActorCritic
    settings_type: ClassVar[type[MAPPOAgentSettings]] = MAPPOAgentSettings  # type: ignore[assignment]
    default_model: ClassVar[str] = "team_actor_critic"
    default_embryo: ClassVar[str] = "mappo"
    plays_in_team: ClassVar[bool] = True

    @classmethod
    def distribution(cls, spaces: Spaces) -> TeamDistribution:
        """Give what the agents choose from, each for itself."""
        return TeamDistribution(spaces)
