"""Settings of whatever trains a policy on rollouts: PPO and IMPALA. Imports no torch."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tianji_algos.optim.settings import AnyOptimizerSettings


class PolicySettings(AnyOptimizerSettings):
    """Hyperparameters beside those of the loss.

    Attributes:
        rollout_steps: env steps, over all actors of a learner, that are gathered for one round of updates.
        minibatch_size: samples per gradient update, about: a rollout is cut into equal minibatches.
        epochs: passes over each rollout.
        gamma: discount.
        reward_scale: rewards are multiplied by it before anything else.
        value_coef: weight of the value loss, half the squared error.
        entropy_coef: weight of the entropy bonus.
    """

    rollout_steps: int = Field(2048, ge=1)
    minibatch_size: int = Field(256, ge=1)
    epochs: int = Field(1, ge=1)
    gamma: float = Field(0.99, ge=0, le=1)
    reward_scale: float = Field(1.0, gt=0)
    value_coef: float = Field(0.5, ge=0)
    entropy_coef: float = Field(0.0, ge=0)
    adam_eps: float = Field(1e-5, gt=0)
    max_grad_norm: float = Field(0.5, gt=0)

    @model_validator(mode="after")
    def _filled(self) -> Self:
        if self.minibatch_size > self.rollout_steps:
            raise ValueError(
                f"minibatch_size ({self.minibatch_size}) can never be filled: "
                f"a rollout has rollout_steps = {self.rollout_steps} samples"
            )
        return self
