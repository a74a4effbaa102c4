"""Settings of PPO. Imports no torch."""

from __future__ import annotations

from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from tianji_algos.schedules import AdaptiveSchedule, Schedule
from tianji_algos.settings import PolicyAgentSettings, PolicySettings

SLOWEST: Final = 1e-6
FASTEST: Final = 1e-2
"""Bounds of an adaptive learning rate."""


class PPOAgentSettings(PolicyAgentSettings):
    """PPO's agent, which explores by sampling from its policy."""


class PPOSettings(PolicySettings):
    """Hyperparameters of PPO, with those of ``PolicySettings``; section ``[training]`` of a config.

    Attributes:
        minibatch_size: samples per gradient update, about: a rollout is cut into equal minibatches. With
            a recurrent network they are of whole sequences, ``send_size`` steps each, and have one at least.
        learning_rate_schedule: "linear" lets it fall to 0 at ``schedule_steps``; "adaptive" follows
            ``adaptive_kl``; or points, such as ``[[0, 1.0], [500_000, 0.3]]``: env steps and a factor.
        gae_lambda: of generalised advantage estimation (Schulman et al., 2016, equation 16).
        clip_range: epsilon, clip range of the probability ratio (Schulman et al., 2017, equation 7).
        clip_range_schedule: "linear" lets it fall to 0 at ``schedule_steps``; or points, likewise.
        clip_value: the value's loss is the larger of the squared errors with the value as it is and with
            the value kept within ``clip_range`` of the actor's.
        normalize_advantage: bring advantages to mean 0 and standard deviation 1, over each minibatch or
            rollout.
        adaptive_kl: divergence of the policy that ``learning_rate_schedule = "adaptive"`` aims at: after an
            epoch with more than twice this the learning rate is divided by 1.5, with less than half of it
            multiplied, between 1e-6 and 1e-2 (as in rl_games).
        target_kl: skip the rest of a rollout once the policy's divergence from the one that acted exceeds
            this; on a device the host then waits for each update.
    """

    adjustable: ClassVar[frozenset[str]] = PolicySettings.adjustable | {
        "adaptive_kl",
        "clip_range",
        "gae_lambda",
        "target_kl",
    }

    minibatch_size: int = Field(256, ge=2)
    epochs: int = Field(10, ge=1)
    learning_rate: float = Field(3e-4, gt=0)
    learning_rate_schedule: AdaptiveSchedule = "constant"  # type: ignore[assignment]
    gae_lambda: float = Field(0.95, ge=0, le=1)
    clip_range: float = Field(0.2, gt=0)
    clip_range_schedule: Schedule = "constant"
    clip_value: bool = False
    normalize_advantage: Literal["minibatch", "rollout", "none"] = "minibatch"
    adaptive_kl: float = Field(0.008, gt=0)
    target_kl: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _within_what_adapts(self) -> Self:
        if self.learning_rate_schedule == "adaptive" and not SLOWEST <= self.learning_rate <= FASTEST:
            raise ValueError(f"an adaptive learning_rate is from {SLOWEST:g} to {FASTEST:g}")
        return self

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """Schedules of learning rate and clip range."""
        return (*super().schedules, self.clip_range_schedule)
