"""Recipes for PPO and DQN: settings of a config in a form that peers can read, for ``--recipe ours``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

UNLIMITED: Final = 1e9
"""Clipping range for peers that always clip a value's change or error; no change or error is as large."""


@dataclass(frozen=True, kw_only=True)
class Handed:
    """Settings that all recipes have.

    Attributes:
        env_steps: length of a training, all environments together.
        schedule_steps: env steps after which linear schedules are at 0.
        hidden: widths of the layers, each followed by ``activation``.
        left_out: settings of the config that a recipe does not have, as text.
    """

    env_steps: int
    num_envs: int
    learning_rate: float
    learning_rate_schedule: str = "constant"
    schedule_steps: int | None = None
    gamma: float
    max_grad_norm: float
    adam_eps: float
    reward_scale: float = 1.0
    hidden: tuple[int, ...]
    activation: str = "tanh"
    left_out: tuple[str, ...] = ()

    def remaining(self, env_steps: int) -> float:
        """Share of its initial value that a linear schedule has after so many env steps."""
        if self.schedule_steps is None:
            raise SystemExit("what falls linearly needs schedule_steps")
        return max(0.0, 1.0 - env_steps / self.schedule_steps)

    def write(self, path: Path) -> None:
        """Write the recipe as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: str) -> Self:
        """Read a recipe that ``write`` wrote."""
        found: dict[str, Any] = json.loads(Path(path).read_text())
        return cls(**found | {"hidden": tuple(found["hidden"]), "left_out": tuple(found["left_out"])})


@dataclass(frozen=True, kw_only=True)
class Recipe(Handed):
    """Settings of PPO, with the names of tianji's configs.

    Attributes:
        rollout_steps: steps of a rollout, all environments together.
        value_coef: weight of half the squared error.
        shared: whether one network has a policy and a value output, in place of two networks.
        policy_gain: scale of the policy output's initial weights.
        initial_log_std: initial log standard deviation of the Gaussian policy, for continuous actions.
    """

    rollout_steps: int
    minibatch_size: int
    epochs: int
    gae_lambda: float
    clip_range: float
    clip_range_schedule: str = "constant"
    clip_value: bool = False
    normalize_advantage: str = "minibatch"
    value_coef: float
    entropy_coef: float = 0.0
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5
    shared: bool = False
    policy_gain: float = 0.01
    initial_log_std: float = 0.0
    normalize_observations: bool = False
    normalize_rewards: bool = False

    @property
    def steps(self) -> int:
        """Steps of each environment in a rollout."""
        steps, rest = divmod(self.rollout_steps, self.num_envs)
        if rest:
            raise SystemExit(
                f"{self.rollout_steps} steps of a rollout are no multiple of {self.num_envs} environments"
            )
        return steps


@dataclass(frozen=True, kw_only=True)
class ReplayRecipe(Handed):
    """Settings of DQN, with the names of tianji's configs.

    Attributes:
        replay_ratio: samples that updates use for each env step.
        capacity: size of the replay, in env steps.
        target_every: updates from one copy of the target network to the next.
    """

    replay_ratio: float
    batch_size: int
    warmup_steps: int
    capacity: int
    n_step: int
    double: bool
    dueling: bool
    target_every: int
    epsilon_start: float
    epsilon_end: float
    epsilon_steps: int


def recipe_of(config: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a config of PPO with fully connected layers; exits if a recipe cannot express it."""
    job, told, defaults = _read(config, overrides, "ppo", "mlp_actor_critic")
    if not {told["learning_rate_schedule"], told["clip_range_schedule"]} <= {"constant", "linear"}:
        sys.exit(f"{config}: --recipe ours takes schedules that are constant or linear")
    normalises = {name: told[name] for name in ("normalize_observations", "normalize_rewards")}
    if "auto" in normalises.values():
        sys.exit(f"{config}: --recipe ours takes {' and '.join(normalises)} that are true or false")
    return Recipe(**_common(job), **_known(Recipe, told, defaults))


def replay_recipe_of(config: str, overrides: Sequence[str] = ()) -> ReplayRecipe:
    """Read a config of DQN with fully connected layers and a uniform replay; exits if it is another one."""
    job, told, defaults = _read(config, overrides, "dqn", "mlp_q")
    if not isinstance(told["learning_rate_schedule"], str):
        sys.exit(f"{config}: --recipe ours takes a learning rate that is constant or falls linearly")
    if (told["epsilon_schedule"], told["target_update"], told["loss"]) != ("linear", "hard", "huber"):
        sys.exit(f"{config}: --recipe ours takes a linear epsilon, hard copies and a Huber loss")
    if job.distribution.buffer.sampler != "uniform":
        sys.exit(f"{config}: --recipe ours takes a uniform replay")
    told["capacity"] = job.distribution.buffer.capacity
    return ReplayRecipe(**_common(job), **_known(ReplayRecipe, told, defaults))


def _read(
    config: str, overrides: Sequence[str], agent: str, model: str
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Read a config; returns the job, the settings of agent, update rule and model, and their defaults."""
    from tianji_cli.config.loader import load_config  # noqa: PLC0415 - peers have no tianji

    job = load_config(config, overrides)
    learners = job.distribution.groups * job.distribution.learner.num
    if (job.agent.type, job.model.type, learners) != (agent, model, 1):
        sys.exit(f"{config}: --recipe ours takes {agent} with {model} and one learner")
    if job.experiment.stop.env_steps is None:
        sys.exit(f"{config}: --recipe ours takes an experiment.stop with env_steps, for peers to end at")
    told: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for part in (job.agent.settings, job.training.settings, job.model.settings):
        told |= part.model_dump()
        defaults |= type(part)().model_dump()
    return job, told, defaults


def _common(job: Any) -> dict[str, Any]:
    num_envs = job.environment.num_envs * job.distribution.actor.num.max
    return {"env_steps": job.experiment.stop.env_steps, "num_envs": num_envs}


def _known(kind: type[Handed], told: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Choose the settings that a recipe has; ``left_out`` names others that differ from their defaults."""
    names = {field.name for field in fields(kind)}
    left_out = sorted(
        f"without {name} = {value!r}"
        for name, value in told.items()
        if name not in names and value != defaults[name]
    )
    known = {name: value for name, value in told.items() if name in names}
    return known | {"left_out": tuple(left_out)}


def add_recipe(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the option ``--recipe``; without it, a peer has its own settings."""
    parser.add_argument("--recipe", type=Recipe.read, metavar="PATH", help="trains by this one, not its own")
    return parser
