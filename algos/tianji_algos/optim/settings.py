"""Settings of optimizers and of target networks. Imports no torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tianji_algos.settings import Schedule, Settings


class OptimizerSettings(Settings):
    """Of Adam, and how its learning rate changes over training.

    Attributes:
        learning_rate: of the optimizer.
        learning_rate_schedule: "linear" lets it fall to 0 at ``schedule_steps``.
        schedule_steps: env steps after which a linear schedule has reached 0.
        adam_eps: Adam's term against division by zero, added to a root.
        max_grad_norm: gradients are scaled down to this norm; None leaves them as they are.
    """

    learning_rate: float = Field(1e-3, gt=0)
    learning_rate_schedule: Schedule = "constant"
    schedule_steps: int | None = Field(None, ge=1)
    adam_eps: float = Field(1e-8, gt=0)
    max_grad_norm: float | None = Field(10.0, gt=0)

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """How each hyperparameter that may change over training does."""
        return (self.learning_rate_schedule,)

    def remaining(self, schedule: Schedule, env_steps: int) -> float:
        """Give the share of a hyperparameter that a schedule leaves after so many env steps."""
        if schedule == "constant" or self.schedule_steps is None:
            return 1.0
        return max(0.0, 1.0 - env_steps / self.schedule_steps)

    @model_validator(mode="after")
    def _scheduled(self) -> Self:
        if "linear" in self.schedules and self.schedule_steps is None:
            raise ValueError("a linear schedule needs schedule_steps, the env steps after which it reaches 0")
        return self


class AnyOptimizerSettings(OptimizerSettings):
    """Of Adam or RMSProp.

    Attributes:
        optimizer: "adam" or "rmsprop".
        rmsprop_decay: how much of its mean square RMSProp keeps from update to update.
        rmsprop_eps: RMSProp's term against division by zero, added inside the root.
    """

    optimizer: Literal["adam", "rmsprop"] = "adam"
    rmsprop_decay: float = Field(0.99, ge=0, lt=1)
    rmsprop_eps: float = Field(1e-5, gt=0)


class TargetSettings(Settings):
    """How a target network keeps up with the online network.

    Settings of what was not chosen may stand here, so that another can be chosen with ``--set``.

    Attributes:
        target_update: "hard" copies the online network now and then, "soft" follows it with every update.
        target_every: "hard": updates from one copy to the next.
        target_tau: "soft": share of the way that the target network goes with every update.
    """

    target_update: Literal["hard", "soft"] = "hard"
    target_every: int = Field(200, ge=1)
    target_tau: float = Field(0.005, gt=0, lt=1)
