"""RLlib's PPO on CartPole-v1 with the settings of its tuned example, examples/algorithms/ppo/cartpole_ppo.py.

The example's four environment runners of 16 environments and its learner process share the two cores.
"""

from __future__ import annotations

import tempfile
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from record import EpisodeLog, arguments, read_logs, report, write

MAX_ENV_STEPS = 1_000_000
"""More than three times what the example says it needs."""

ENV_RUNNERS, ENVS_PER_RUNNER, LEARNERS = 4, 16, 1
TRAINING: dict[str, Any] = {"lr": 0.0003, "num_epochs": 6, "vf_loss_coeff": 0.01}
MODEL: dict[str, Any] = {"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True}
REPORTED = (
    "num_env_runners",
    "num_envs_per_env_runner",
    "num_learners",
    "gamma",
    "lambda_",
    "clip_param",
    "train_batch_size_per_learner",
    "minibatch_size",
)


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


def main() -> None:
    options = arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as directory:
        # Logical CPUs: the example asks for more processes than there are cores.
        ray.init(num_cpus=ENV_RUNNERS + LEARNERS + 1, include_dashboard=False)
        config = (
            PPOConfig()
            .environment("CartPole-v1")
            .env_runners(num_env_runners=ENV_RUNNERS, num_envs_per_env_runner=ENVS_PER_RUNNER)
            .learners(num_learners=LEARNERS)
            .training(**TRAINING)
            .rl_module(model_config=DefaultModelConfig(**MODEL))
            .callbacks(type("WatchHere", (Watch,), {"directory": directory}))
            .debugging(seed=options.seed)
        )
        algorithm = config.build_algo()
        env_steps = 0
        while env_steps < MAX_ENV_STEPS:
            env_steps = int(algorithm.train()["num_env_steps_sampled_lifetime"])
            first_step_s, window = read_logs(directory)
            if window.reached_at is not None:
                break
        settings = TRAINING | MODEL
        settings |= {name: getattr(config, name) for name in REPORTED}
        packages = ("ray", "torch", "gymnasium", "numpy")
        result = report("rllib", options.seed, first_step_s, window, env_steps, settings, packages)
        algorithm.stop()
        ray.shutdown()
    write(result, options.json)


if __name__ == "__main__":
    main()
