"""Trains Stable-Baselines3 with its own defaults on eight MuJoCo tasks, and stores the results for good.

    ENV/bin/python benchmarks/peers/sb3_mujoco.py                       # all that is not there yet, in turns
    ENV/bin/python benchmarks/peers/sb3_mujoco.py --agent sac --env Hopper-v5 --env-steps 100000 300000

PPO has observations and rewards that ``VecNormalize`` scales, and otherwise the algorithm's defaults, in one
environment; SAC has its defaults. Each training that ends adds a line of JSON to
``benchmarks/data/sb3_mujoco.jsonl``: agent, environment and env steps, the greedy returns of the last policy
with the statistics of its training, and the versions. The program skips trainings that have a line, so it may
be killed at any time and started again. Before any training it adds the returns of random actions.
``benchmarks/defaults.py --mujoco`` reads the file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

TASKS: Final = (
    "Hopper",
    "HalfCheetah",
    "Walker2d",
    "Ant",
    "Swimmer",
    "Reacher",
    "Pusher",
    "InvertedPendulum",
)
STEPS: Final = {"ppo": 400_000, "sac": 100_000}
DATA: Final = Path(__file__).resolve().parents[1] / "data" / "sb3_mujoco.jsonl"
EVAL_SEED: Final = 1_000_003
"""Seed of the environments in which policies play; trainings have small seeds."""
PLAYED_AT_ONCE: Final = 10
SHORT: Final = {"Reacher": 300, "Pusher": 100}
"""Episodes of an evaluation in tasks whose episodes have 50 and 100 steps; other tasks have 50 episodes."""
PACKAGES: Final = ("stable-baselines3", "torch", "gymnasium", "mujoco", "numpy")
HYPERPARAMETERS: Final = {
    "ppo": (
        "learning_rate",
        "n_steps",
        "batch_size",
        "n_epochs",
        "gamma",
        "gae_lambda",
        "ent_coef",
        "vf_coef",
    ),
    "sac": ("learning_rate", "buffer_size", "learning_starts", "batch_size", "tau", "gamma", "ent_coef"),
}

Row = dict[str, Any]


def episodes_of(env: str) -> int:
    """Number of episodes of an evaluation."""
    return SHORT.get(env.partition("-")[0], 50)


def known(path: Path) -> set[tuple[str, str, int, int]]:
    """Read which trainings have a line; a line that a kill cut off does not count."""
    found = set()
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found.add((row["env"], row["agent"], row["env_steps"], row["seed"]))
    return found


def add(path: Path, row: Row) -> None:
    """Append a row as one line of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    sys.stderr.write(f"{row['env']} {row['agent']} seed {row['seed']}: {row['mean']:.1f}\n")


def summary_of(returns: list[float]) -> Row:
    """Mean, standard deviation and number of returns."""
    return {
        "mean": round(statistics.fmean(returns), 3),
        "std": round(statistics.pstdev(returns), 3),
        "episodes": len(returns),
    }


def versions() -> Mapping[str, str]:
    """Versions of Python and of the packages."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def play_at_random(env: str) -> Row:
    """Play an evaluation's episodes with actions drawn from the action space."""
    playing = make_vec_env(env, n_envs=1, seed=EVAL_SEED)
    playing.action_space.seed(EVAL_SEED)
    returns: list[float] = []
    playing.reset()
    while len(returns) < episodes_of(env):
        _, _, done, infos = playing.step([playing.action_space.sample()])
        if done[0]:
            returns.append(float(infos[0]["episode"]["r"]))
    return {"env": env, "agent": "random", "seed": 0, "env_steps": 0} | summary_of(returns)


def train(env: str, agent: str, seed: int, env_steps: Sequence[int]) -> Iterator[Row]:
    """Train once, and play greedily after each of ``env_steps``."""
    training: VecEnv = make_vec_env(env, n_envs=1, seed=seed)
    if agent == "ppo":
        training = VecNormalize(training)
    model = {"ppo": PPO, "sac": SAC}[agent]("MlpPolicy", training, seed=seed, device="cpu")
    train_s = 0.0
    for steps in sorted(env_steps):
        began_s = time.monotonic()
        model.learn(steps - model.num_timesteps, reset_num_timesteps=not model.num_timesteps)
        train_s += time.monotonic() - began_s
        yield {
            "env": env,
            "agent": agent,
            "seed": seed,
            "env_steps": steps,
            **summary_of(play(model, env, training)),
            "trained_steps": model.num_timesteps,
            "train_s": round(train_s, 1),
            "hyperparameters": {name: getattr(model, name) for name in HYPERPARAMETERS[agent]}
            | {"normalize": agent == "ppo"},
            "versions": versions(),
        }


def play(model: BaseAlgorithm, env: str, training: VecEnv) -> list[float]:
    """Play greedily, with the training's statistics of observations; returns the episodes' returns."""
    playing: VecEnv = make_vec_env(env, n_envs=PLAYED_AT_ONCE, seed=EVAL_SEED)
    if isinstance(training, VecNormalize):
        playing = VecNormalize(playing, training=False, norm_reward=False)
        playing.obs_rms = training.obs_rms
    returns, _ = evaluate_policy(
        model, playing, episodes_of(env), deterministic=True, return_episode_rewards=True
    )
    return [float(total) for total in returns]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--env", nargs="+", default=[f"{task}-v5" for task in TASKS], metavar="ID")
    parser.add_argument("--agent", nargs="+", choices=tuple(STEPS), default=list(STEPS))
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 1 on")
    parser.add_argument("--env-steps", type=int, nargs="+", help=f"after which it plays (default: {STEPS})")
    parser.add_argument("--data", type=Path, default=DATA, help="the file of lines")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    done = known(options.data)
    for env in options.env:
        if (env, "random", 0, 0) not in done:
            add(options.data, play_at_random(env))
    for agent, seed, env in itertools.product(options.agent, range(1, options.seeds + 1), options.env):
        steps = options.env_steps or [STEPS[agent]]
        if all((env, agent, each, seed) in done for each in steps):
            continue
        for row in train(env, agent, seed, steps):
            if (env, agent, row["env_steps"], seed) not in done:
                add(options.data, row)


if __name__ == "__main__":
    main()
