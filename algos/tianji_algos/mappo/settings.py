"""Settings of MAPPO. Imports no torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from tianji_algos.ppo.settings import PPOSettings
from tianji_algos.settings import PolicyAgentSettings


class MAPPOAgentSettings(PolicyAgentSettings):
    """MAPPO's agent, which explores by sampling from its policies."""


class MAPPOSettings(PPOSettings):
    """Hyperparameters of MAPPO, with those of ``PPOSettings``; section ``[training]`` of a config.

    A sample is an env step, with the actions of all agents of a team.

    Attributes:
        minibatch_size: env steps per gradient update, about: a rollout is cut into equal minibatches.
        rewards: "team": every agent learns from the team's reward; "individual": each from its own, which
            is not normalised.
    """

    rewards: Literal["team", "individual"] = "team"

    @model_validator(mode="after")
    def _of_the_team(self) -> Self:
        if self.normalize_rewards is True and self.rewards == "individual":
            raise ValueError(
                'normalize_rewards scales by the returns of the team; rewards = "team" would be right, or '
                "normalize_values in its place"
            )
        return self

    @property
    def may_scale_rewards(self) -> bool:
        """Whether rewards can be normalised: only the team's can."""
        return self.rewards == "team"
