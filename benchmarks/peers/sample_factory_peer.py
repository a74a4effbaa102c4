"""Sample Factory's asynchronous PPO on CartPole-v1 with the command line of its CartPole example.

The example names no number of workers; Sample Factory starts one for each core.
"""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import gymnasium
from record import EpisodeLog, arguments, read_logs, report, write
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

MAX_ENV_STEPS = 4_000_000
SETTINGS = {
    "algo": "APPO",
    "use_rnn": False,
    "num_envs_per_worker": 20,
    "policy_workers_per_policy": 2,
    "recurrence": 1,
    "with_vtrace": False,
    "batch_size": 512,
    "reward_scale": 0.1,
    "save_every_sec": 10,
    "experiment_summaries_interval": 10,
}


class Logged(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Logs the episodes of one environment."""

    def __init__(self, env: gymnasium.Env[Any, Any], directory: str) -> None:
        super().__init__(env)
        self.directory = directory
        self.log: EpisodeLog | None = None
        self.total, self.steps = 0.0, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.log is None:
            self.log = EpisodeLog(self.directory)
            self.log.started()
        seen, reward, terminated, truncated, info = super().step(action)
        self.total += float(reward)
        self.steps += 1
        if terminated or truncated:
            self.log.ended(self.total, self.steps)
            self.total, self.steps = 0.0, 0
        return seen, reward, terminated, truncated, info


def make_env(
    directory: str, name: str, _cfg: Any = None, _env_config: Any = None, render_mode: str | None = None
) -> gymnasium.Env[Any, Any]:
    return Logged(gymnasium.make(name, render_mode=render_mode), directory)


class StopWhenReached(AlgoObserver):
    """Ends the training when the last 100 episodes average 475."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        if training_iteration_since_resume % 10 == 0 and read_logs(self.directory)[1].reached_at is not None:
            runner.cfg.train_for_env_steps = 0


def main() -> None:
    options = arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as train_dir:
        register_env("CartPole-v1", functools.partial(make_env, directory))
        argv = [f"--{name}={value}" for name, value in SETTINGS.items()]
        argv += ["--env=CartPole-v1", "--experiment=cartpole", f"--train_dir={train_dir}", "--device=cpu"]
        argv += [f"--seed={options.seed}", f"--train_for_env_steps={MAX_ENV_STEPS}"]
        parser, _ = parse_sf_args(argv=argv)
        _, runner = make_runner(parse_full_cfg(parser, argv))
        runner.register_observer(StopWhenReached(directory))
        runner.init()
        runner.run()
        first_step_s, window = read_logs(directory)
        settings = SETTINGS | {"num_workers": runner.cfg.num_workers}
        env_steps = sum(runner.env_steps.values())
        packages = ("sample-factory", "torch", "gymnasium", "numpy")
        result = report("sample-factory", options.seed, first_step_s, window, env_steps, settings, packages)
    write(result, options.json)


if __name__ == "__main__":
    main()
