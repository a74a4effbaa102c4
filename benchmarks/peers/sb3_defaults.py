"""Trains Stable-Baselines3 with its own defaults on one environment, plays, and reports.

Needs only Stable-Baselines3 and the environment; benchmarks/defaults.py calls this script.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.preprocessing import is_image_space

SMALLEST_IMAGE = 36
"""Least number of pixels of an image's smaller side for NatureCNN."""
PLAYED_AT_ONCE = 32


class TimeLimit(BaseCallback):
    """Ends training so many seconds after its start."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._began_s = 0.0

    def _on_training_start(self) -> None:
        self._began_s = time.monotonic()

    def _on_step(self) -> bool:
        return self.seconds < self._seconds

    @property
    def seconds(self) -> float:
        """Seconds since training began."""
        return time.monotonic() - self._began_s


def make(env: str) -> gymnasium.Env[Any, Any]:
    """Build an environment; MiniGrid's with only the image, since the mission is text."""
    if env.startswith("MinAtar/"):  # The package relies on a hook that gymnasium no longer has.
        from minatar.gym import register_envs  # noqa: PLC0415

        register_envs()
    built = gymnasium.make(env)
    if not env.startswith("minigrid:"):
        return built
    from minigrid.wrappers import ImgObsWrapper  # noqa: PLC0415

    return ImgObsWrapper(built)  # type: ignore[no-any-return]


def policy_for(observation: gymnasium.Space[Any]) -> str:
    """Choose the policy that Stable-Baselines3's documentation recommends for the observations."""
    large = isinstance(observation, spaces.Box) and min(observation.shape[:2], default=0) >= SMALLEST_IMAGE
    return "CnnPolicy" if large and is_image_space(observation) else "MlpPolicy"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", required=True)
    parser.add_argument("--agent", required=True, choices=("ppo", "dqn", "sac", "td3"))
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument(
        "--env-steps", type=int, required=True, help="ends training, too; schedules are over it"
    )
    parser.add_argument("--episodes", type=int, required=True)
    parser.add_argument("--eval-seed", type=int, required=True)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    training = make_vec_env(lambda: make(options.env), n_envs=1, seed=options.seed)
    algorithm = getattr(stable_baselines3, options.agent.upper())
    model = algorithm(policy_for(training.observation_space), training, seed=options.seed, device="cpu")
    limit = TimeLimit(60 * options.minutes)
    model.learn(total_timesteps=options.env_steps, callback=limit)
    train_s = limit.seconds
    playing = make_vec_env(lambda: make(options.env), n_envs=PLAYED_AT_ONCE, seed=options.eval_seed)
    returns, _ = evaluate_policy(
        model, playing, options.episodes, deterministic=True, return_episode_rewards=True
    )
    report = {
        "mean": statistics.fmean(returns),
        "episodes": len(returns),
        "env_steps": model.num_timesteps,
        "train_s": train_s,
        "version": version("stable-baselines3"),
    }
    options.json.write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
