"""Settings of IMPALA. Imports no torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tianji_algos.settings import Schedule, Settings


class IMPALAAgentSettings(Settings):
    """IMPALA's agent explores by sampling from its policy: there is nothing to set."""


class IMPALASettings(Settings):
    """Hyperparameters of IMPALA; section ``[training]`` of a config.

    The defaults are those of the paper's Atari experiments (Espeholt et al., 2018, appendix D), whose losses
    are summed over a batch; but it has 32 sequences of 20 steps there, and of a default ``send_size`` here.

    Attributes:
        rollout_steps: env steps, over all actors of a learner, that are gathered for one round of updates.
        minibatch_size: steps per gradient update, about: a rollout is cut into equal minibatches of whole
            sequences, the ``send_size`` steps of one environment in one fragment.
        epochs: passes over each rollout; the targets are computed anew with every update.
        correction: "vtrace"; "none" takes samples as if the current policy had made them.
        rho_bar: truncation of the importance weights that say which policy's value is learned (section 4.1).
        c_bar: truncation of those that say how far back a temporal difference reaches.
        pg_rho_bar: truncation of those of the policy gradient (section 4.2).
        vtrace_lambda: factor of ``c`` (remark 2); 1 looks as far ahead as the sequence does.
        gamma: discount.
        optimizer: "rmsprop" or "adam".
        learning_rate: of the optimizer.
        learning_rate_schedule: "linear" lets it fall to 0 at ``schedule_steps``.
        schedule_steps: env steps after which a linear schedule has reached 0.
        rmsprop_decay: of the mean square of the gradient.
        rmsprop_eps: RMSProp's term against division by zero.
        adam_eps: Adam's term against division by zero.
        max_grad_norm: gradients are scaled down to this norm.
        reduction: losses are the "sum" over the steps of a minibatch, or their "mean". It is the scale that
            ``max_grad_norm`` and ``rmsprop_eps`` are held against.
        value_coef: weight of the value loss, half the squared error.
        entropy_coef: weight of the entropy bonus.
        reward_scale: rewards are multiplied by it before anything else.
    """

    rollout_steps: int = Field(1024, ge=1)
    minibatch_size: int = Field(1024, ge=1)
    epochs: int = Field(1, ge=1)
    correction: Literal["vtrace", "none"] = "vtrace"
    rho_bar: float = Field(1.0, gt=0)
    c_bar: float = Field(1.0, ge=0)
    pg_rho_bar: float = Field(1.0, gt=0)
    vtrace_lambda: float = Field(1.0, ge=0, le=1)
    gamma: float = Field(0.99, ge=0, le=1)
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    learning_rate: float = Field(6e-4, gt=0)
    learning_rate_schedule: Schedule = "constant"
    schedule_steps: int | None = Field(None, ge=1)
    rmsprop_decay: float = Field(0.99, ge=0, lt=1)
    rmsprop_eps: float = Field(0.1, gt=0)
    adam_eps: float = Field(1e-5, gt=0)
    max_grad_norm: float = Field(40.0, gt=0)
    reduction: Literal["sum", "mean"] = "sum"
    value_coef: float = Field(0.5, ge=0)
    entropy_coef: float = Field(0.01, ge=0)
    reward_scale: float = Field(1.0, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.minibatch_size > self.rollout_steps:
            raise ValueError(
                f"minibatch_size ({self.minibatch_size}) can never be filled: "
                f"a rollout has rollout_steps = {self.rollout_steps} samples"
            )
        if self.c_bar > self.rho_bar:
            raise ValueError(
                f"c_bar ({self.c_bar:g}) is above rho_bar ({self.rho_bar:g}), and V-trace converges only "
                "where it is not (Espeholt et al., 2018, theorem 1)"
            )
        if self.learning_rate_schedule == "linear" and self.schedule_steps is None:
            raise ValueError("a linear schedule needs schedule_steps, the env steps after which it reaches 0")
        return self
