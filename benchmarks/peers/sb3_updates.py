"""Makes updates of Stable-Baselines3's SAC or TD3 from a full replay of noise, for ``sac_update.py``.

Reads lines with a number of updates, makes the updates with one thread, and writes the number back.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

# numpy and torch read the variable when they are imported.
os.environ["OMP_NUM_THREADS"] = "1"

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.logger import Logger

ALGORITHMS = {"sac": SAC, "td3": TD3}
CAPACITY = 20_000


class Nowhere(gymnasium.Env[Any, Any]):
    """Environment with spaces only; the script never steps it."""

    def __init__(self, observations: int, actions: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (observations,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (actions,), np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="sac")
    parser.add_argument("--observations", type=int, default=11)
    parser.add_argument("--actions", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256])
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = ALGORITHMS[options.algorithm](
        "MlpPolicy",
        Nowhere(options.observations, options.actions),
        buffer_size=CAPACITY,
        policy_kwargs={"net_arch": options.hidden},
        seed=1,
        device="cpu",
    )
    model.set_logger(Logger(None, []))
    rng = np.random.default_rng(1)
    assert model.replay_buffer is not None
    for _ in range(CAPACITY):
        seen, following = rng.standard_normal((2, 1, options.observations), dtype=np.float32)
        action = rng.uniform(-1.0, 1.0, (1, options.actions)).astype(np.float32)
        model.replay_buffer.add(seen, following, action, rng.standard_normal(1), np.zeros(1), [{}])
    for line in sys.stdin:
        model.train(gradient_steps=int(line), batch_size=options.batch)
        print(int(line), flush=True)


if __name__ == "__main__":
    main()
