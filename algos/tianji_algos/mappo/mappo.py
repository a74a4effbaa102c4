"""MAPPO's update rule (Yu et al., 2022), from which this one departs in two things.

Values are not normalised by running means of the returns: ``reward_scale`` brings these to a size that
networks learn. And a dead agent's value is the mean of those of the living (see ``TeamRollout``).
"""

from __future__ import annotations

from typing import ClassVar

import torch

from tianji_algos.core import Spaces
from tianji_algos.mappo.distribution import TeamDistribution
from tianji_algos.mappo.rollout import TeamMinibatch, TeamRollout
from tianji_algos.mappo.settings import MAPPOSettings
from tianji_algos.models.teams.actor_critic import TeamActorCritic
from tianji_algos.on_policy.rollout import PolicyMinibatch
from tianji_algos.ppo.ppo import PPOEmbryo
from tianji_algos.rollout_observations import Observations


class MAPPOEmbryo(PPOEmbryo):
    """Trains the policies of a team with PPO's loss, each on its agent's own steps.

    Values are of the state of the whole, which policies do not see.
    """

    algorithm: ClassVar[str] = "MAPPO"
    contract: ClassVar[type[torch.nn.Module]] = TeamActorCritic
    example_model: ClassVar[str] = "team_actor_critic"
    settings_type: ClassVar[type[MAPPOSettings]] = MAPPOSettings
    settings: MAPPOSettings

    def update(self, batch: PolicyMinibatch) -> int:
        """Make one step of the optimizer; returns how many env steps it used, over all learners."""
        assert isinstance(batch, TeamMinibatch), "minibatches come from minibatches()"
        super().update(batch)
        return batch.env_steps

    def _distribution(self, spaces: Spaces) -> TeamDistribution:
        """Give what the agents choose from, each for itself."""
        return TeamDistribution(spaces)

    def _build_rollout(self, observations: Observations, *, is_recurrent: bool) -> TeamRollout:  # noqa: ARG002 - none is
        """Build what shuffles env steps."""
        return TeamRollout(self.settings, observations)
