"""Stable-Baselines3 PPO on CartPole-v1 with rl-zoo's hyperparameters; ends at rl-zoo's 1e5 steps.

Both schedules are at 0 by then, so a seed that has not reached 475 never will: its time is null.
With ``--recipe`` it trains by the recipe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium
import torch
from recipe import Recipe, add_recipe
from record import Episode, Window, arguments, report, write
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}
POLICY_GAIN = 0.01
"""Scale of the policy output's initial weights, also in SBX."""


@dataclass(frozen=True)
class Setup:
    """Settings that Stable-Baselines3 and SBX have in common.

    Attributes:
        told: arguments of ``PPO``.
        settings: description of the settings for the record.
        differs: differences between training and recipe.
    """

    num_envs: int
    env_steps: int
    reward_scale: float
    told: dict[str, Any]
    settings: dict[str, Any]
    differs: tuple[str, ...] = ()


def of_zoo() -> Setup:
    """Make the setup of rl-zoo."""
    told = {
        "n_steps": 32,
        "batch_size": 256,
        "n_epochs": 20,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "ent_coef": 0.0,
    }
    schedules = {
        "learning_rate": LinearSchedule(1e-3, 0.0, 1.0),
        "clip_range": LinearSchedule(0.2, 0.0, 1.0),
    }
    said = {"learning_rate": "linear from 1e-3 to 0", "clip_range": "linear from 0.2 to 0"}
    settings = {"n_envs": 8, "n_timesteps": 100_000, "policy": "MlpPolicy"} | told | said
    return Setup(8, 100_000, 1.0, told | schedules, settings)


def of_recipe(recipe: Recipe) -> Setup:
    """Translate a recipe, as far as both can; each builds its own networks."""

    def scheduled(value: float, schedule: str) -> float | Callable[[float], float]:
        if schedule == "constant":
            return value
        return lambda left: value * recipe.remaining(round((1.0 - left) * recipe.env_steps))

    clip_range = scheduled(recipe.clip_range, recipe.clip_range_schedule)
    told = {
        "n_steps": recipe.steps,
        "batch_size": recipe.minibatch_size,
        "n_epochs": recipe.epochs,
        "learning_rate": scheduled(recipe.learning_rate, recipe.learning_rate_schedule),
        "gamma": recipe.gamma,
        "gae_lambda": recipe.gae_lambda,
        "clip_range": clip_range,
        "clip_range_vf": clip_range if recipe.clip_value else None,
        "normalize_advantage": recipe.normalize_advantage != "none",
        "ent_coef": recipe.entropy_coef,
        "vf_coef": recipe.value_coef / 2,  # Stable-Baselines3 weights the squared error, not half of it.
        "max_grad_norm": recipe.max_grad_norm,
    }
    differs = ["acts and learns in turn"]
    if recipe.normalize_advantage == "rollout":
        differs.append("advantages are normalised over each minibatch, not over each rollout")
    if recipe.policy_gain != POLICY_GAIN:
        differs.append(f"the policy output's initial weights are scaled by {POLICY_GAIN:g}")
    return Setup(
        recipe.num_envs,
        recipe.env_steps,
        recipe.reward_scale,
        told,
        asdict(recipe),
        (*differs, *recipe.left_out),
    )


class Trunk(BaseFeaturesExtractor):
    """Hidden layers that the policy and the value share."""

    def __init__(
        self, observation_space: gymnasium.spaces.Box, hidden: Sequence[int], activation: type[nn.Module]
    ) -> None:
        super().__init__(observation_space, hidden[-1])
        widths = (*observation_space.shape, *hidden)
        layers = [(nn.Linear(*widths[k : k + 2]), activation()) for k in range(len(hidden))]
        self.layers = nn.Sequential(*(module for layer in layers for module in layer))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Compute the features ``[B, width]``."""
        outputs: torch.Tensor = self.layers(observations)
        return outputs


def networks(recipe: Recipe) -> dict[str, Any]:
    """Return the ``policy_kwargs`` of the recipe's networks."""
    activation = ACTIVATIONS[recipe.activation]
    common = {"activation_fn": activation, "optimizer_kwargs": {"eps": recipe.adam_eps}}
    if not recipe.shared:
        return common | {"net_arch": list(recipe.hidden)}
    trunk = {"hidden": recipe.hidden, "activation": activation}
    return common | {"net_arch": [], "features_extractor_class": Trunk, "features_extractor_kwargs": trunk}


class Watch(BaseCallback):
    """Stops training when the last 100 episodes average 475."""

    def __init__(self) -> None:
        super().__init__()
        self.window = Window()
        self.first_step_s = 0.0

    def _on_training_start(self) -> None:
        self.first_step_s = time.monotonic()

    def _on_step(self) -> bool:
        reached = False
        for info in self.locals["infos"]:
            if "episode" in info:
                ended = info["episode"]
                reached = self.window.add(Episode(time.monotonic(), float(ended["r"]), int(ended["l"])))
        return not reached


def train(
    peer: str,
    algorithm: type[BaseAlgorithm],
    setup: Setup,
    policy: dict[str, Any],
    seed: int,
    packages: Sequence[str],
) -> tuple[dict[str, Any], Watch]:
    """Train; returns the record, and the callback with the episodes."""

    def scaled(env: Any) -> Any:  # This wrapper is outside the Monitor, which records unscaled returns.
        return gymnasium.wrappers.TransformReward(env, lambda reward: setup.reward_scale * reward)

    watch = Watch()
    wrapper = None if setup.reward_scale == 1.0 else scaled
    environments = make_vec_env("CartPole-v1", n_envs=setup.num_envs, seed=seed, wrapper_class=wrapper)
    model = algorithm("MlpPolicy", environments, policy_kwargs=policy, seed=seed, device="cpu", **setup.told)
    model.learn(total_timesteps=setup.env_steps, callback=watch)
    record = report(
        peer, seed, watch.first_step_s, watch.window, model.num_timesteps, setup.settings, packages
    )
    return record | {"differs": setup.differs}, watch


def main() -> None:
    options = add_recipe(arguments(__doc__)).parse_args()
    recipe: Recipe | None = options.recipe
    setup, policy = (of_zoo(), {}) if recipe is None else (of_recipe(recipe), networks(recipe))
    packages = ("stable-baselines3", "torch", "gymnasium", "numpy")
    record, _ = train("sb3", PPO, setup, policy, options.seed, packages)
    write(record, options.json)


if __name__ == "__main__":
    main()
