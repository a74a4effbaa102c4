"""Settings of MAPPO and of its network. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tianji_algos.models.settings import Widths
from tianji_algos.ppo.settings import PPOSettings
from tianji_algos.settings import PolicyAgentSettings, Settings


class MAPPOAgentSettings(PolicyAgentSettings):
    """MAPPO's agent, which explores by sampling from its policies."""


class MAPPOSettings(PPOSettings):
    """Hyperparameters of MAPPO, with those of ``PPOSettings``; section ``[training]`` of a config.

    A sample is an env step: what all agents of a team did in it.

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
        """Only the team's can be normalised."""
        return self.rewards == "team"


class TeamActorCriticSettings(Settings):
    """A policy for each agent, of what it sees, and a value for each, of the state of the whole.

    Attributes:
        hidden: widths of the hidden layers, of policy and value networks.
        activation: after each hidden layer.
        share_parameters: one policy and one value network for all agents, which are told who they are.
        agent_specific_value: a value network also gets what the agent itself sees (Yu et al., 2022, section
            5.2: the agent-specific state).
        policy_gain: scale of the policy output's initial weights; small means nearly uniform at first.
        initial_log_std: of the Gaussian policy, for continuous actions.
    """

    hidden: Annotated[Widths, Field(min_length=1)] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    share_parameters: bool = True
    agent_specific_value: bool = False
    policy_gain: float = Field(0.01, gt=0)
    initial_log_std: float = 0.0
