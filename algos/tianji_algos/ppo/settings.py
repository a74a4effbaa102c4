"""Settings of PPO. Imports no torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tianji_algos.settings import Schedule, Settings


class PPOAgentSettings(Settings):
    """PPO's agent explores by sampling from its policy: there is nothing to set."""


class PPOSettings(Settings):
    """Hyperparameters of PPO; section ``[training]`` of a config.

    Attributes:
        rollout_steps: env steps, over all actors of a learner, that are gathered for one round of updates.
        minibatch_size: samples per gradient update, about: a rollout is cut into equal minibatches; of whole
            sequences, ``send_size`` steps each, if the network remembers.
        epochs: passes over each rollout.
        optimizer: "adam" or "rmsprop".
        learning_rate: of the optimizer.
        learning_rate_schedule: "linear" lets it fall to 0 at ``schedule_steps``.
        adam_eps: Adam's term against division by zero, added to a root.
        rmsprop_decay: how much of its mean square RMSProp keeps from update to update.
        rmsprop_eps: RMSProp's term against division by zero, added inside the root.
        gamma: discount.
        gae_lambda: of generalised advantage estimation (Schulman et al., 2016, equation 16).
        clip_range: of the probability ratio (Schulman et al., 2017, equation 7).
        clip_range_schedule: "linear" lets it fall to 0 at ``schedule_steps``.
        clip_value: clip the value function's change like the policy's.
        schedule_steps: env steps after which a linear schedule has reached 0.
        value_coef: weight of the value loss, half the squared error.
        entropy_coef: weight of the entropy bonus.
        max_grad_norm: gradients are scaled down to this norm.
        normalize_advantage: to mean 0 and standard deviation 1, over each minibatch or rollout.
        reward_scale: rewards are multiplied by it before anything else.
        target_kl: skip the rest of a rollout once the policy is this far from the one that acted.
    """

    rollout_steps: int = Field(2048, ge=1)
    minibatch_size: int = Field(256, ge=2)
    epochs: int = Field(10, ge=1)
    optimizer: Literal["adam", "rmsprop"] = "adam"
    learning_rate: float = Field(3e-4, gt=0)
    learning_rate_schedule: Schedule = "constant"
    adam_eps: float = Field(1e-5, gt=0)
    rmsprop_decay: float = Field(0.99, ge=0, lt=1)
    rmsprop_eps: float = Field(1e-5, gt=0)
    gamma: float = Field(0.99, ge=0, le=1)
    gae_lambda: float = Field(0.95, ge=0, le=1)
    clip_range: float = Field(0.2, gt=0)
    clip_range_schedule: Schedule = "constant"
    clip_value: bool = False
    schedule_steps: int | None = Field(None, ge=1)
    value_coef: float = Field(0.5, ge=0)
    entropy_coef: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(0.5, gt=0)
    normalize_advantage: Literal["minibatch", "rollout", "none"] = "minibatch"
    reward_scale: float = Field(1.0, gt=0)
    target_kl: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.minibatch_size > self.rollout_steps:
            raise ValueError(
                f"minibatch_size ({self.minibatch_size}) can never be filled: "
                f"a rollout has rollout_steps = {self.rollout_steps} samples"
            )
        scheduled = "linear" in (self.learning_rate_schedule, self.clip_range_schedule)
        if scheduled and self.schedule_steps is None:
            raise ValueError("a linear schedule needs schedule_steps, the env steps after which it reaches 0")
        return self
