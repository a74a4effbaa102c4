"""Sample Factory's asynchronous PPO on CartPole-v1 with the command line of its CartPole example.

The example names no number of workers; Sample Factory starts one for each core.
With ``--recipe`` it trains by the recipe.
"""

from __future__ import annotations

import functools
import os
import tempfile
from typing import Any, Final

import gymnasium
from recipe import UNLIMITED, Recipe, add_recipe
from record import EpisodeLog, arguments, read_logs, report, write
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from watched import Watched

MAX_ENV_STEPS: Final = 4_000_000
FALLING: Final = "linear_decay"
"""Schedule of Sample Factory that falls to 0 at the end of training; its command line does not take it."""
COMMON: Final = {"algo": "APPO", "use_rnn": False, "recurrence": 1, "with_vtrace": False}
OF_EXAMPLE: Final = COMMON | {
    "num_envs_per_worker": 20,
    "policy_workers_per_policy": 2,
    "batch_size": 512,
    "reward_scale": 0.1,
    "save_every_sec": 10,
    "experiment_summaries_interval": 10,
}


def of_recipe(recipe: Recipe) -> dict[str, Any]:
    """Translate a recipe into Sample Factory's options, with a worker for each core."""
    workers = len(os.sched_getaffinity(0))
    each, rest = divmod(recipe.num_envs, 2 * workers)
    if rest:
        raise SystemExit(
            f"{recipe.num_envs} environments are no two equal parts for each of {workers} workers"
        )
    return COMMON | {
        "num_workers": workers,
        "num_envs_per_worker": 2 * each,
        "rollout": recipe.steps,
        "batch_size": recipe.minibatch_size,
        "num_batches_per_epoch": round(recipe.rollout_steps / recipe.minibatch_size),
        "num_epochs": recipe.epochs,
        "shuffle_minibatches": True,
        "learning_rate": recipe.learning_rate,
        "gamma": recipe.gamma,
        "gae_lambda": recipe.gae_lambda,
        "reward_scale": recipe.reward_scale,
        "value_bootstrap": True,
        "decorrelate_envs_on_one_worker": False,  # Decorrelation begins with random steps.
        "ppo_clip_ratio": recipe.clip_range,
        "ppo_clip_value": recipe.clip_range if recipe.clip_value else UNLIMITED,
        "value_loss_coeff": recipe.value_coef / 2,  # It weights the squared error, not half of it.
        "exploration_loss": "entropy",
        "exploration_loss_coeff": recipe.entropy_coef,
        "max_grad_norm": recipe.max_grad_norm,
        "adam_eps": recipe.adam_eps,
        "normalize_input": False,
        "normalize_returns": False,
        "encoder_mlp_layers": list(recipe.hidden),
        "nonlinearity": recipe.activation,
        "actor_critic_share_weights": recipe.shared,
    }


def differences(recipe: Recipe) -> list[str]:
    """List the differences between Sample Factory's training and the recipe."""
    differs = [
        "a ratio is clipped to 1 / (1 + epsilon) from below",
        "where an episode was cut off, what follows has the value of the last state but one",
        "weights go out after each minibatch, so a rollout is of several policies",
        "all layers' initial weights are orthogonal with a gain of 1",
    ]
    if recipe.normalize_advantage != "minibatch":
        differs.append("advantages are normalised over each minibatch")
    if recipe.learning_rate_schedule == "linear" and recipe.schedule_steps != recipe.env_steps:
        differs.append(f"the learning rate falls to 0 at {recipe.env_steps} env steps")
    if recipe.clip_range_schedule != "constant":
        differs.append("the clip range does not change")
    return [*differs, *recipe.left_out]


def command_line(settings: dict[str, Any]) -> list[str]:
    """Write settings as words of Sample Factory's command line; the items of a list follow its name."""
    words = []
    for name, value in settings.items():
        words += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    return words


def make_env(
    directory: str,
    name: str,
    _cfg: Any = None,
    _env_config: Any = None,
    render_mode: str | None = None,
) -> gymnasium.Env[Any, Any]:
    """Build an environment, with the arguments that Sample Factory passes."""
    return Watched(gymnasium.make(name, render_mode=render_mode), EpisodeLog(directory))


class StopWhenReached(AlgoObserver):
    """Ends the training when the last 100 episodes average 475."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        if training_iteration_since_resume % 10 == 0 and read_logs(self.directory)[1].reached_at is not None:
            runner.cfg.train_for_env_steps = 0


def main() -> None:
    options = add_recipe(arguments(__doc__)).parse_args()
    recipe: Recipe | None = options.recipe
    settings = OF_EXAMPLE if recipe is None else of_recipe(recipe)
    env_steps = MAX_ENV_STEPS if recipe is None else recipe.env_steps
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as train_dir:
        register_env("CartPole-v1", functools.partial(make_env, directory))
        argv = command_line(settings)
        argv += ["--env=CartPole-v1", "--experiment=cartpole", f"--train_dir={train_dir}", "--device=cpu"]
        argv += [f"--seed={options.seed}", f"--train_for_env_steps={env_steps}"]
        parser, _ = parse_sf_args(argv=argv)
        config = parse_full_cfg(parser, argv)
        if recipe is not None and recipe.learning_rate_schedule == "linear":
            config.lr_schedule = FALLING
        _, runner = make_runner(config)
        runner.register_observer(StopWhenReached(directory))
        runner.init()
        runner.run()
        first_step_s, window = read_logs(directory)
        made = sum(runner.env_steps.values())
        packages = ("sample-factory", "torch", "gymnasium", "numpy")
        settings = settings | {name: getattr(config, name) for name in ("num_workers", "lr_schedule")}
        result = report("sample-factory", options.seed, first_step_s, window, made, settings, packages)
    write(result | {"differs": [] if recipe is None else differences(recipe)}, options.json)


if __name__ == "__main__":
    main()
