"""Stable-Baselines3 PPO on CartPole-v1 with rl-zoo's hyperparameters; ends at rl-zoo's 1e5 steps.

Both schedules are at 0 by then, so a seed that has not reached 475 never will: its time is null.
"""

from __future__ import annotations

import time

from record import Episode, Window, arguments, report, write
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule

SETTINGS = {
    "n_envs": 8,
    "n_timesteps": 100_000,
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "ent_coef": 0.0,
    "learning_rate": "linear from 1e-3 to 0",
    "clip_range": "linear from 0.2 to 0",
    "policy": "MlpPolicy",
}


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


def main() -> None:
    options = arguments(__doc__).parse_args()
    watch = Watch()
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=options.seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        ent_coef=0.0,
        learning_rate=LinearSchedule(1e-3, 0.0, 1.0),
        clip_range=LinearSchedule(0.2, 0.0, 1.0),
        seed=options.seed,
        device="cpu",
    )
    model.learn(total_timesteps=100_000, callback=watch)
    packages = ("stable-baselines3", "torch", "gymnasium", "numpy")
    write(
        report(
            "sb3", options.seed, watch.first_step_s, watch.window, model.num_timesteps, SETTINGS, packages
        ),
        options.json,
    )


if __name__ == "__main__":
    main()
