"""How PPO is to train, in words that every peer can read: what a benchmark's ``--recipe ours`` hands them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

UNLIMITED: Final = 1e9
"""For a peer that cannot be told not to clip a value's change, or its error: none is as large."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of PPO as tianji's configs name them.

    Attributes:
        env_steps: after which training ends, all environments together.
        rollout_steps: of all environments together.
        schedule_steps: env steps after which what falls linearly is at 0.
        value_coef: weight of half the squared error.
        hidden: widths of the layers, followed by ``activation``.
        shared: one network with a policy and a value output in place of two networks.
        policy_gain: scale of the policy output's initial weights.
        initial_log_std: of the Gaussian policy, for continuous actions.
        left_out: settings of the config that have no place here, as text.
    """

    env_steps: int
    num_envs: int
    rollout_steps: int
    minibatch_size: int
    epochs: int
    learning_rate: float
    learning_rate_schedule: str = "constant"
    schedule_steps: int | None = None
    gamma: float
    gae_lambda: float
    clip_range: float
    clip_range_schedule: str = "constant"
    clip_value: bool = False
    normalize_advantage: str = "minibatch"
    value_coef: float
    entropy_coef: float = 0.0
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5
    reward_scale: float = 1.0
    hidden: tuple[int, ...]
    activation: str = "tanh"
    shared: bool = False
    policy_gain: float = 0.01
    initial_log_std: float = 0.0
    normalize_observations: bool = False
    normalize_rewards: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Of each environment in a rollout."""
        steps, rest = divmod(self.rollout_steps, self.num_envs)
        if rest:
            raise SystemExit(
                f"{self.rollout_steps} steps of a rollout are no multiple of {self.num_envs} environments"
            )
        return steps

    def remaining(self, env_steps: int) -> float:
        """How much is left after so many env steps of what falls linearly."""
        if self.schedule_steps is None:
            raise SystemExit("what falls linearly needs schedule_steps")
        return max(0.0, 1.0 - env_steps / self.schedule_steps)

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: str) -> Recipe:
        """Read what ``write`` wrote."""
        found: dict[str, Any] = json.loads(Path(path).read_text())
        return cls(**found | {"hidden": tuple(found["hidden"]), "left_out": tuple(found["left_out"])})


def recipe_of(config: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a config of PPO with fully connected layers; its defaults are those of tianji."""
    from tianji_cli.config.loader import load_config  # noqa: PLC0415 - peers, which read recipes, have no tianji

    job = load_config(config, overrides)
    training, model = job.training.settings, job.model.settings
    learners = job.distribution.groups * job.distribution.learner.num
    if (job.agent.type, job.model.type, learners) != ("ppo", "mlp_actor_critic", 1):
        sys.exit(f"{config}: --recipe ours takes PPO with mlp_actor_critic and one learner")
    if not {training.learning_rate_schedule, training.clip_range_schedule} <= {"constant", "linear"}:
        sys.exit(f"{config}: --recipe ours takes schedules that are constant or linear")
    if job.experiment.stop.env_steps is None:
        sys.exit(f"{config}: --recipe ours takes an experiment.stop with env_steps, for peers to end at")
    told = {**training.model_dump(), **model.model_dump()}
    defaults = {**type(training)().model_dump(), **type(model)().model_dump()}
    normalises = {name: bool(told[name]) for name in ("normalize_observations", "normalize_rewards")}
    known = {field.name for field in fields(Recipe)}
    left_out = sorted(
        f"without {name} = {told[name]!r}" for name in told.keys() - known if told[name] != defaults[name]
    )
    return Recipe(
        env_steps=job.experiment.stop.env_steps,
        num_envs=job.environment.num_envs * job.distribution.actor.num,
        left_out=tuple(left_out),
        **{name: value for name, value in told.items() if name in known} | normalises,
    )


def add_recipe(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Let a peer take a recipe; without, it has its own."""
    parser.add_argument("--recipe", type=Recipe.read, metavar="PATH", help="trains by this one, not its own")
    return parser
