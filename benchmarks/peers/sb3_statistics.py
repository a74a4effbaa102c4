"""Trains Stable-Baselines3's PPO in Swimmer-v5 with statistics of observations that change less often.

    ENV/bin/python benchmarks/peers/sb3_statistics.py --every 2048 --seeds 1 2 3 4
    ENV/bin/python benchmarks/peers/sb3_statistics.py --every 1 --num-envs 4 --seeds 1 2 3

``VecNormalize`` updates its statistics after each step; this script does so after every ``--every`` steps of
an environment. Everything else is as in ``sb3_mujoco.py``: 400,000 env steps, rollouts of 2,048.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
import torch
from sb3_mujoco import STEPS, play
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

TASK = "Swimmer-v5"


class SlowNormalize(VecNormalize):
    """Updates its statistics once every ``every`` steps."""

    def __init__(self, venv: VecEnv, every: int) -> None:
        super().__init__(venv, training=False)  # The superclass updates no statistics, also at a reset.
        self._every = every
        self._seen: list[np.ndarray] = []
        self._returned: list[np.ndarray] = []
        self._running = np.zeros(venv.num_envs)

    def step_wait(self) -> VecEnvStepReturn:
        """Step, and normalise by the statistics so far."""
        observation, reward, done, infos = super().step_wait()
        self._running = self._running * self.gamma + self.old_reward
        self._seen.append(self.old_obs.copy())
        self._returned.append(self._running.copy())
        self._running[done] = 0.0
        if len(self._seen) == self._every:
            self.obs_rms.update(np.concatenate(self._seen))
            self.ret_rms.update(np.concatenate(self._returned))
            self._seen.clear()
            self._returned.clear()
        return observation, reward, done, infos


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--every", type=int, default=2048, help="steps of an environment")
    parser.add_argument("--num-envs", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds:
        training = SlowNormalize(make_vec_env(TASK, n_envs=options.num_envs, seed=seed), options.every)
        model = PPO("MlpPolicy", training, n_steps=2048 // options.num_envs, seed=seed, device="cpu")
        model.learn(STEPS["ppo"])
        print(f"seed {seed}: {statistics.fmean(play(model, TASK, training)):.1f}", flush=True)


if __name__ == "__main__":
    main()
