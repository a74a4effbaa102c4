"""RLlib on CartPole-v1 with the settings of its own examples, cartpole_ppo.py and cartpole_dqn.py.

PPO: the example's four environment runners of 16 environments and its learner process share the two cores.
DQN: the example's main process learns and steps its one environment; with ``--env-runners 1`` a process of
its own, on the other core, steps it. The two take turns either way.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Ray does so for all its processes but the main one, which is several times faster at DQN with one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from record import EpisodeLog, arguments, read_logs, report, write


@dataclass(frozen=True)
class Example:
    """One of RLlib's examples.

    Attributes:
        config: builds what trains it.
        max_env_steps: about three times what the example says it needs.
        env_runners: processes that step environments beside the main one.
        envs_per_runner: environments of each of them.
        learners: processes that learn beside the main one.
        training: what the example sets of the algorithm.
        model: what it sets of the network.
        reported: further settings worth knowing, which the example leaves as they are.
    """

    config: Callable[[], AlgorithmConfig]
    max_env_steps: int
    env_runners: int
    envs_per_runner: int
    learners: int
    training: dict[str, Any]
    model: dict[str, Any]
    reported: tuple[str, ...]


EXAMPLES = {
    "ppo": Example(
        PPOConfig,
        max_env_steps=1_000_000,
        env_runners=4,
        envs_per_runner=16,
        learners=1,
        training={"lr": 0.0003, "num_epochs": 6, "vf_loss_coeff": 0.01},
        model={"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True},
        reported=("gamma", "lambda_", "clip_param", "train_batch_size_per_learner", "minibatch_size"),
    ),
    "dqn": Example(
        DQNConfig,
        max_env_steps=600_000,
        env_runners=0,
        envs_per_runner=1,
        learners=0,
        training={
            "lr": 0.0005,
            "train_batch_size_per_learner": 32,
            "replay_buffer_config": {
                "type": "PrioritizedEpisodeReplayBuffer",
                "capacity": 50_000,
                "alpha": 0.6,
                "beta": 0.4,
            },
            "n_step": (2, 5),
            "double_q": True,
            "dueling": True,
            "epsilon": [(0, 1.0), (25_000, 0.02)],
        },
        model={
            "fcnet_hiddens": [256],
            "fcnet_activation": "tanh",
            "fcnet_bias_initializer": "zeros_",
            "head_fcnet_hiddens": [256],
            "head_fcnet_bias_initializer": "zeros_",
        },
        reported=("gamma", "target_network_update_freq", "num_steps_sampled_before_learning_starts"),
    ),
}
PROCESSES = ("num_env_runners", "num_envs_per_env_runner", "num_learners")
USED = ("learners", "default_policy", "num_module_steps_trained_lifetime")
"""Where the samples that updates have used are counted."""


class Watch(RLlibCallback):
    """Logs the episodes of one environment runner."""

    directory = ""

    def __init__(self) -> None:
        self.log: EpisodeLog | None = None

    def on_episode_start(self, **_kwargs: Any) -> None:
        if self.log is None:
            self.log = EpisodeLog(self.directory)
            self.log.started()

    def on_episode_end(self, *, episode: Any, prev_episode_chunks: list[Any], **_kwargs: Any) -> None:
        # An episode is cut wherever a sampling round ends; only all its chunks make its return.
        chunks = [*prev_episode_chunks, episode]
        assert self.log is not None
        self.log.ended(sum(chunk.get_return() for chunk in chunks), sum(len(chunk) for chunk in chunks))


def options_of_this_run() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--algorithm", choices=EXAMPLES, default="ppo")
    parser.add_argument(
        "--env-runners", type=int, help="processes that step environments, if not the example's"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="end after so long, reached or not"
    )
    return parser.parse_args()


def used_by(result: dict[str, Any]) -> int:
    """Samples used in updates so far; 0 before the first."""
    found: Any = result
    for key in USED:
        found = found.get(key, {})
    return int(found or 0)


def main() -> None:
    options = options_of_this_run()
    example = EXAMPLES[options.algorithm]
    env_runners = example.env_runners if options.env_runners is None else options.env_runners
    with tempfile.TemporaryDirectory() as directory:
        # Logical CPUs: an example may ask for more processes than there are cores.
        ray.init(num_cpus=env_runners + example.learners + 1, include_dashboard=False)
        config = (
            example.config()
            .environment("CartPole-v1")
            .env_runners(num_env_runners=env_runners, num_envs_per_env_runner=example.envs_per_runner)
            .learners(num_learners=example.learners)
            .training(**example.training)
            .rl_module(model_config=DefaultModelConfig(**example.model))
            .callbacks(type("WatchHere", (Watch,), {"directory": directory}))
            .debugging(seed=options.seed)
        )
        algorithm = config.build_algo()
        env_steps = used = 0
        ends_s = time.monotonic() + options.seconds
        while env_steps < example.max_env_steps and time.monotonic() < ends_s:
            result = algorithm.train()
            env_steps, used = int(result["num_env_steps_sampled_lifetime"]), used_by(result)
            first_step_s, window = read_logs(directory)
            if window.reached_at is not None:
                break
        settings = example.training | example.model
        settings |= {name: getattr(config, name) for name in (*PROCESSES, *example.reported)}
        packages = ("ray", "torch", "gymnasium", "numpy")
        written = report("rllib", options.seed, first_step_s, window, env_steps, settings, packages, used)
        algorithm.stop()
        ray.shutdown()
    write(written | {"algorithm": options.algorithm}, options.json)


if __name__ == "__main__":
    main()
