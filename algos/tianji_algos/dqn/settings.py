"""Settings of DQN. Imports no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tianji_algos.settings import ObservationSettings, OptimizerSettings, Settings, TargetSettings


class EpsilonSettings(Settings):
    """Settings of an agent that explores by random actions.

    A config may keep settings of the other schedule, so that ``--set`` can choose it.

    Attributes:
        epsilon_schedule: "linear" falls over training, alike in every environment; "per_actor" stays, and
            differs from one environment of the job to the next (Horgan et al., 2018, section 4.1).
        epsilon_start: "linear": share of random actions at first.
        epsilon_end: "linear": share of random actions from ``epsilon_steps`` on.
        epsilon_steps: "linear": env steps of the whole job over which epsilon falls, counted as the published
            policy knows them: during the warm-up none is published, and epsilon stays.
        epsilon_base: "per_actor": epsilon of the first environment.
        epsilon_alpha: "per_actor": environment i of n explores with
            ``epsilon_base ** (1 + epsilon_alpha * i / (n - 1))``.
        eval_epsilon: share of random actions in evaluations, where a policy without any may repeat itself for
            ever; 0.05 in Mnih et al. (2015, "Evaluation procedure").
    """

    adjustable: ClassVar[frozenset[str]] = frozenset(
        {"epsilon_start", "epsilon_end", "epsilon_steps", "epsilon_base", "epsilon_alpha"}
    )

    epsilon_schedule: Literal["linear", "per_actor"] = "linear"
    epsilon_start: float = Field(1.0, ge=0, le=1)
    epsilon_end: float = Field(0.05, ge=0, le=1)
    epsilon_steps: int = Field(10_000, ge=1)
    epsilon_base: float = Field(0.4, gt=0, lt=1)
    epsilon_alpha: float = Field(7.0, ge=0)
    eval_epsilon: float = Field(0.0, ge=0, le=1)


class DQNAgentSettings(EpsilonSettings):
    """Settings of DQN's agent: exploration and recorded priorities; section ``[agent]`` of a config.

    Attributes:
        priorities: record the absolute one-step TD error as the field ``priority``, so that a replay need
            not treat new samples as the most surprising of all (Horgan et al., 2018, algorithm 1).
        priority_gamma: discount of that error, as ``gamma`` is in ``[training]``.
        priority_reward_scale: factor of its rewards, as ``reward_scale`` is in ``[training]``.
    """

    priorities: bool = False
    priority_gamma: float = Field(0.99, ge=0, le=1)
    priority_reward_scale: float = Field(1.0, gt=0)


class DQNSettings(OptimizerSettings, TargetSettings, ObservationSettings):
    """Hyperparameters of DQN, its optimizer (Adam) and target network; section ``[training]`` of a config.

    A config may keep settings of the other loss, so that ``--set`` can choose it.

    Attributes:
        replay_ratio: rho, mean number of uses of each sample.
        batch_size: samples per gradient update.
        warmup_steps: env steps in the replay before the first update.
        n_step: steps until the return is bootstrapped.
        gamma: discount.
        double: the online network chooses the action that the target network values (van Hasselt et al.,
            2016).
        loss: "huber", or "mse" for half the squared error.
        huber_delta: "huber": TD error from which the Huber loss is linear.
        reward_scale: rewards are multiplied by it.
        publish_every: updates from one policy that actors get to the next.
    """

    adjustable: ClassVar[frozenset[str]] = OptimizerSettings.adjustable | TargetSettings.adjustable

    replay_ratio: float = Field(1.0, gt=0)
    batch_size: int = Field(256, ge=1)
    warmup_steps: int = Field(1000, ge=1)
    n_step: int = Field(1, ge=1)
    gamma: float = Field(0.99, ge=0, le=1)
    double: bool = True
    loss: Literal["huber", "mse"] = "huber"
    huber_delta: float = Field(1.0, gt=0)
    reward_scale: float = Field(1.0, gt=0)
    publish_every: int = Field(10, ge=1)

    @property
    def linear_from(self) -> float | None:
        """TD error from which the loss is linear; None for half the squared error everywhere."""
        return self.huber_delta if self.loss == "huber" else None
