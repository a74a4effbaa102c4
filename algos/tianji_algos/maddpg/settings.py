"""Settings of MADDPG's agent and update rule. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tianji_algos.settings import ActorSettings, Settings, TorchAlone


class MADDPGAgentSettings(Settings):
    """Exploration of MADDPG's agents; section ``[agent]`` of a config.

    A config may also keep settings of the other kind of actions; they have no effect.

    Attributes:
        epsilon_start: discrete actions: share of random ones among those available at first; the others are
            drawn from the policy.
        epsilon_end: discrete actions: that share from ``exploration_steps`` on.
        noise_start: continuous actions: standard deviation of the noise added to them at first, in halves of
            the distance between their bounds.
        noise_end: continuous actions: that standard deviation from ``exploration_steps`` on.
        exploration_steps: env steps of the whole job over which both fall linearly, counted as the published
            policy knows them: during the warm-up none is published, and they stay.
    """

    epsilon_start: float = Field(0.3, ge=0, le=1)
    epsilon_end: float = Field(0.02, ge=0, le=1)
    noise_start: float = Field(0.3, ge=0)
    noise_end: float = Field(0.05, ge=0)
    exploration_steps: int = Field(100_000, ge=1)


class MADDPGSettings(ActorSettings):
    """Hyperparameters of MADDPG, with those of its optimizers, Adam; section ``[training]`` of a config.

    Attributes:
        replay_ratio: rho, mean number of uses of each sample.
        batch_size: samples per gradient update.
        warmup_steps: env steps in the replay before the first update.
        n_step: steps until the return is bootstrapped: one, since a transition has the agents' own rewards of
            its last step alone.
        gamma: discount.
        target_tau: share of the way that the target networks go with every update.
        temperature: discrete actions: temperature of the Gumbel-softmax that gradients go through.
        logits_penalty: weight of the mean squared output of the actors in their loss.
        reward_scale: rewards are multiplied by it.
        publish_every: updates from one policy that actors get to the next.
    """

    replay_ratio: float = Field(8.0, gt=0)
    batch_size: int = Field(1024, ge=1)
    warmup_steps: int = Field(10_000, ge=1)
    n_step: Literal[1] = 1
    gamma: float = Field(0.95, ge=0, le=1)
    target_tau: float = Field(0.01, gt=0, le=1)
    temperature: float = Field(1.0, gt=0)
    logits_penalty: float = Field(1e-3, ge=0)
    reward_scale: float = Field(1.0, gt=0)
    publish_every: int = Field(10, ge=1)
    backend: TorchAlone = "auto"
