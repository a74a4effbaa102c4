"""How PPO is to train, in words that every peer can read: what ``compare.py --recipe ours`` hands them."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
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


def add_recipe(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Let a peer take a recipe; without, it has its own."""
    parser.add_argument("--recipe", type=Recipe.read, metavar="PATH", help="trains by this one, not its own")
    return parser
