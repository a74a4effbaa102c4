"""Trains Stable-Baselines3 on a MuJoCo task for --env-steps, then plays greedily with its last policy.

PPO has rl-zoo's hyperparameters of the task (tuned for its v3) and normalised observations and rewards, in
one environment, or trains by ``--recipe``; SAC has its defaults.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from recipe import Recipe, add_recipe
from record import arguments, write
from sb3 import networks, of_recipe
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

NETWORKS: Mapping[str, Any] = {
    "log_std_init": -2,
    "ortho_init": False,
    "activation_fn": nn.ReLU,
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}
ZOO: Mapping[str, Mapping[str, Any]] = {
    "Hopper": {
        "n_steps": 512,
        "batch_size": 32,
        "n_epochs": 5,
        "gamma": 0.999,
        "learning_rate": 9.80828e-05,
        "ent_coef": 0.00229519,
        "clip_range": 0.2,
        "gae_lambda": 0.99,
        "max_grad_norm": 0.7,
        "vf_coef": 0.835671,
        "policy_kwargs": NETWORKS,
    },
    "HalfCheetah": {
        "n_steps": 512,
        "batch_size": 64,
        "n_epochs": 20,
        "gamma": 0.98,
        "learning_rate": 2.0633e-05,
        "ent_coef": 0.000401762,
        "clip_range": 0.1,
        "gae_lambda": 0.92,
        "max_grad_norm": 0.8,
        "vf_coef": 0.58096,
        "policy_kwargs": NETWORKS,
    },
    "Walker2d": {
        "n_steps": 512,
        "batch_size": 32,
        "n_epochs": 20,
        "gamma": 0.99,
        "learning_rate": 5.05041e-05,
        "ent_coef": 0.000585045,
        "clip_range": 0.1,
        "gae_lambda": 0.95,
        "max_grad_norm": 1.0,
        "vf_coef": 0.871923,
    },
    "Ant": {"gamma": 0.99},  # rl-zoo has the defaults here, too, but normalises observations and rewards.
}
EVALUATION_SEED = 10_000
"""Sum of this and the training's seed is the evaluation's seed, whose episodes are new to the policy."""


def of_zoo(task: str) -> Mapping[str, Any]:
    """Return rl-zoo's hyperparameters of PPO for a task; exits if they are not here."""
    name = task.partition("-")[0]
    if name not in ZOO:
        raise SystemExit(f"{task}: rl-zoo's hyperparameters are here for {', '.join(ZOO)}")
    return ZOO[name]


def set_up(options: argparse.Namespace) -> tuple[VecEnv, Mapping[str, Any], Sequence[str]]:
    """Make the environments; returns them, the algorithm's arguments, and differences from the recipe."""
    recipe: Recipe | None = options.recipe
    num_envs = 1 if recipe is None else recipe.num_envs
    environments: VecEnv = make_vec_env(options.task, n_envs=num_envs, seed=options.seed)
    if options.algorithm == "sac":
        if recipe is not None:
            raise SystemExit("--recipe is for --algorithm ppo")
        return environments, {}, ()
    if recipe is None:
        told = of_zoo(options.task)
        return VecNormalize(environments, gamma=told["gamma"]), told, ()
    setup = of_recipe(recipe)
    scaled = (f"rewards are not multiplied by {recipe.reward_scale:g}",) * (recipe.reward_scale != 1.0)
    policy = networks(recipe) | {"log_std_init": recipe.initial_log_std}
    environments = VecNormalize(
        environments,
        norm_obs=recipe.normalize_observations,
        norm_reward=recipe.normalize_rewards,
        gamma=recipe.gamma,
    )
    return environments, setup.told | {"policy_kwargs": policy}, (*setup.differs, *scaled)


def evaluate(model: BaseAlgorithm, trained: VecEnv, options: argparse.Namespace) -> list[float]:
    """Play greedily, with the training's normalisation of observations; returns the episodes' returns."""
    environment: VecEnv = make_vec_env(options.task, seed=options.seed + EVALUATION_SEED)
    if isinstance(trained, VecNormalize):
        shown = VecNormalize(
            environment, training=False, norm_obs=trained.norm_obs, norm_reward=False, gamma=trained.gamma
        )
        shown.obs_rms = trained.obs_rms
        environment = shown
    returns, _ = evaluate_policy(
        model, environment, options.episodes, deterministic=True, return_episode_rewards=True
    )
    assert isinstance(returns, list)
    return [float(total) for total in returns]


def main() -> None:
    parser = add_recipe(arguments(__doc__))
    parser.add_argument("--task", default="Hopper-v5")
    parser.add_argument("--algorithm", choices=("ppo", "sac"), default="ppo")
    parser.add_argument("--env-steps", type=int, default=1_000_000)
    parser.add_argument("--episodes", type=int, default=100, help="of the evaluation")
    options = parser.parse_args()
    environment, told, differs = set_up(options)
    algorithm = {"ppo": PPO, "sac": SAC}[options.algorithm]
    model = algorithm("MlpPolicy", environment, seed=options.seed, device="cpu", **told)
    began_s = time.monotonic()
    model.learn(total_timesteps=options.env_steps)
    train_s = time.monotonic() - began_s
    packages = ("stable-baselines3", "torch", "gymnasium", "mujoco", "numpy")
    record = {
        "env_steps": model.num_timesteps,
        "train_s": train_s,
        "returns": evaluate(model, environment, options),
        "differs": differs,
        "settings": {name: str(value) for name, value in told.items()},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
    }
    write(record, options.json)


if __name__ == "__main__":
    main()
