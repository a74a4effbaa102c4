"""Settings of QMIX's agent and update rule. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tianji_algos.settings import AnyOptimizerSettings, Settings, TargetSettings, TorchAlone


class QMIXAgentSettings(Settings):
    """Exploration of QMIX's agents; section ``[agent]`` of a config.

    Attributes:
        epsilon_start: share of random actions, among those available, at first.
        epsilon_end: share of random actions from ``epsilon_steps`` on.
        epsilon_steps: env steps of the whole job over which epsilon falls, counted as the published policy
            knows them: during the warm-up none is published, and epsilon stays.
        eval_epsilon: share of random actions in evaluations.
    """

    epsilon_start: float = Field(1.0, ge=0, le=1)
    epsilon_end: float = Field(0.05, ge=0, le=1)
    epsilon_steps: int = Field(50_000, ge=1)
    eval_epsilon: float = Field(0.0, ge=0, le=1)


class QMIXSettings(AnyOptimizerSettings, TargetSettings):
    """Hyperparameters of QMIX, its optimizer and its target networks; section ``[training]`` of a config.

    Attributes:
        replay_ratio: rho, mean number of uses of each step.
        batch_size: episodes per gradient update.
        sequence_steps: L, steps of an episode that one sequence holds; longer episodes are cut. Learning from
            a piece after a cut starts without state and last action, while acting agents have both: as many
            steps as an episode may have are best.
        warmup_steps: env steps in the replay before the first update.
        gamma: discount.
        td_lambda: weight of later values in a target: 0 bootstraps after one step, 1 at the end.
        double: the online network chooses the actions that the target network values (van Hasselt et al.,
            2016).
        rewards: mixer "none": agents learn from "individual" rewards up to their death, or from the "team"'s
            to the end of the episode.
        reward_scale: rewards are multiplied by it.
        publish_every: updates from one policy that actors get to the next.
    """

    replay_ratio: float = Field(8.0, gt=0)
    batch_size: int = Field(32, ge=1)
    sequence_steps: int = Field(100, ge=1)
    warmup_steps: int = Field(2000, ge=1)
    gamma: float = Field(0.99, ge=0, le=1)
    td_lambda: float = Field(0.0, ge=0, le=1)
    double: bool = True
    rewards: Literal["individual", "team"] = "individual"
    reward_scale: float = Field(1.0, gt=0)
    learning_rate: float = Field(5e-4, gt=0)
    publish_every: int = Field(10, ge=1)
    backend: TorchAlone = "auto"
