"""Settings of TD3 and DDPG. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tianji_algos.settings import ActorQSettings, ContinuousAgentSettings


class TD3AgentSettings(ContinuousAgentSettings):
    """Exploration of TD3's agent by normally distributed noise; section ``[agent]`` of a config.

    Deviations are in halves of the distance between an action's bounds.

    Attributes:
        noise_schedule: "linear" goes over training from ``noise_start`` to ``noise_end``, alike in every
            environment; "per_actor" stays, and goes from one to the other over the job's environments, in
            equal ratios (after Horgan et al., 2018, section 4.1).
        noise_start: "linear": standard deviation at first; "per_actor": that of the first environment.
        noise_end: "linear": standard deviation from ``noise_steps`` on; "per_actor": in the last environment.
        noise_steps: "linear": env steps of the whole job over which it changes, counted as the published
            policy knows them.
    """

    noise_schedule: Literal["linear", "per_actor"] = "linear"
    noise_start: float = Field(0.1, gt=0)
    noise_end: float = Field(0.1, gt=0)
    noise_steps: int = Field(100_000, ge=1)


class TD3Settings(ActorQSettings):
    """Hyperparameters of TD3; section ``[training]`` of a config.

    DDPG has ``policy_delay = 1`` and ``target_noise = 0.0``, and its model ``critics = 1``.

    Attributes:
        policy_delay: updates of the critics to one of the actor and of the target networks.
        target_noise: standard deviation of the noise on the target policy's actions, as an agent's is.
        target_noise_clip: bound of that noise.
    """

    policy_delay: int = Field(2, ge=1)
    target_noise: float = Field(0.2, ge=0)
    target_noise_clip: float = Field(0.5, ge=0)
