"""RLlib on CartPole-v1 with the settings of its own examples, cartpole_ppo.py and cartpole_dqn.py.

PPO: the example's four environment runners of 16 environments and its learner process share the two cores.
DQN: the example's main process learns and steps its one environment; with ``--env-runners 1`` another
process, on the other core, steps it. Steps and updates take turns either way.

With ``--recipe`` both train by the recipe, in the example's processes.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

# Ray sets this for all its processes but the main one, which learns DQN several times faster with one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env
from recipe import UNLIMITED, Handed, Recipe, ReplayRecipe
from record import EpisodeLog, arguments, read_logs, report, write
from watched import Watched

ENV: Final = "WatchedCartPole"
ADAM_EPS: Final = 1e-8


@dataclass(frozen=True)
class Example:
    """One of RLlib's examples, or the example with a recipe's settings.

    Attributes:
        config: builds the algorithm's config.
        max_env_steps: end of training; for an example about three times the env steps that it states.
        env_runners: processes that step environments beside the main one.
        envs_per_runner: environments of each runner.
        learners: processes that learn beside the main one.
        training: settings of the algorithm.
        model: settings of the network.
        reported: further settings to report, which have RLlib's defaults.
        fragment_steps: steps of each environment from one update, or round of updates, to the next.
        reward_scale: factor of the rewards that the algorithm gets.
        differs: differences between training and recipe.
    """

    config: Callable[[], AlgorithmConfig]
    max_env_steps: int
    env_runners: int
    envs_per_runner: int
    learners: int
    training: dict[str, Any]
    model: dict[str, Any]
    reported: tuple[str, ...]
    fragment_steps: int | str = "auto"
    reward_scale: float = 1.0
    differs: tuple[str, ...] = ()


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
"""Keys of a result that lead to the number of samples used in updates."""


def rate_of(recipe: Handed) -> Any:
    """Return the learning rate in RLlib's form: a number, or points of env steps and rates."""
    rate = recipe.learning_rate
    return [[0, rate], [recipe.schedule_steps, 0.0]] if recipe.learning_rate_schedule == "linear" else rate


def of_recipe(recipe: Recipe) -> Example:
    """Translate a recipe for PPO, as far as RLlib can, to the processes of its example."""
    example = EXAMPLES["ppo"]
    each, rest = divmod(recipe.num_envs, example.env_runners)
    if rest:
        raise SystemExit(
            f"{recipe.num_envs} environments are no equal parts for {example.env_runners} runners"
        )
    training = {
        "lr": rate_of(recipe),
        "train_batch_size_per_learner": recipe.rollout_steps,
        "minibatch_size": recipe.minibatch_size,
        "num_epochs": recipe.epochs,
        "gamma": recipe.gamma,
        "lambda_": recipe.gae_lambda,
        "clip_param": recipe.clip_range,
        "vf_clip_param": UNLIMITED,
        "vf_loss_coeff": recipe.value_coef / 2,  # RLlib weights the squared error, not half of it.
        "entropy_coeff": recipe.entropy_coef,
        "use_kl_loss": False,
        "grad_clip": recipe.max_grad_norm,
        "grad_clip_by": "global_norm",
    }
    model = {
        "fcnet_hiddens": list(recipe.hidden),
        "fcnet_activation": recipe.activation,
        "vf_share_layers": recipe.shared,
        "fcnet_kernel_initializer": "orthogonal_",
        "fcnet_kernel_initializer_kwargs": {"gain": 2**0.5},
        "fcnet_bias_initializer": "zeros_",
    }
    differs = [
        "acts and learns in turn",
        "initial weights of both outputs are torch's own",
        "minibatches of a rollout's first epoch are not shuffled",
        "a step is added to each episode, which counts in minibatches and in the spread of advantages",
    ]
    if recipe.normalize_advantage != "rollout":
        differs.append("advantages are normalised over each rollout")
    if recipe.clip_range_schedule != "constant":
        differs.append("the clip range does not change")
    if recipe.clip_value:
        differs.append("the value's change is not clipped")
    if recipe.adam_eps != ADAM_EPS:
        differs.append(f"Adam's epsilon is {ADAM_EPS:g}")
    return replace(
        example,
        max_env_steps=recipe.env_steps,
        envs_per_runner=each,
        training=training,
        model=model,
        reward_scale=recipe.reward_scale,
        differs=(*differs, *recipe.left_out),
    )


def of_replay_recipe(recipe: ReplayRecipe) -> Example:
    """Translate a recipe for DQN, as far as RLlib can, to one process for everything, as in its example."""
    env_steps_per_update = recipe.batch_size / recipe.replay_ratio
    each, rest = divmod(env_steps_per_update, recipe.num_envs)
    if rest or not each:
        raise SystemExit(
            f"an update every {env_steps_per_update:g} env steps goes with {recipe.num_envs} environments "
            "if it is a multiple of them"
        )
    updates = math.ceil(recipe.n_step / each)  # RLlib needs at least n steps from one round to the next.
    training = {
        "lr": rate_of(recipe),
        "gamma": recipe.gamma,
        "training_intensity": recipe.replay_ratio,
        "train_batch_size_per_learner": recipe.batch_size,
        "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": recipe.capacity},
        "num_steps_sampled_before_learning_starts": recipe.warmup_steps,
        "n_step": recipe.n_step,
        "double_q": recipe.double,
        "dueling": recipe.dueling,
        "target_network_update_freq": round(recipe.target_every * env_steps_per_update),
        "epsilon": [(0, recipe.epsilon_start), (recipe.epsilon_steps, recipe.epsilon_end)],
        "grad_clip": recipe.max_grad_norm,
        "grad_clip_by": "global_norm",
    }
    model = {
        "fcnet_hiddens": list(recipe.hidden[:-1]),
        "fcnet_activation": recipe.activation,
        "head_fcnet_hiddens": list(recipe.hidden[-1:]),
        "head_fcnet_activation": recipe.activation,
    }
    differs = [
        f"acts and learns in turn, {updates} updates after {round(updates * env_steps_per_update)} env steps",
        "initial weights are torch's own",
    ]
    if recipe.adam_eps != ADAM_EPS:
        differs.append(f"Adam's epsilon is {ADAM_EPS:g}")
    return replace(
        EXAMPLES["dqn"],
        max_env_steps=recipe.env_steps,
        envs_per_runner=recipe.num_envs,
        fragment_steps=updates * int(each),
        training=training,
        model=model,
        reward_scale=recipe.reward_scale,
        differs=(*differs, *recipe.left_out),
    )


def options_of_this_run() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--recipe", metavar="PATH", help="trains by this one, not its own")
    parser.add_argument("--algorithm", choices=EXAMPLES, default="ppo")
    parser.add_argument(
        "--env-runners", type=int, help="processes that step environments, if not the example's"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="end after so long, reached or not"
    )
    options = parser.parse_args()
    if options.recipe is not None and options.env_runners is not None:
        parser.error("--recipe trains in the example's processes: without --env-runners")
    return options


def example_of(options: argparse.Namespace) -> Example:
    """Choose RLlib's own example, or the example with a recipe's settings."""
    if options.recipe is None:
        return EXAMPLES[options.algorithm]
    if options.algorithm == "dqn":
        return of_replay_recipe(ReplayRecipe.read(options.recipe))
    return of_recipe(Recipe.read(options.recipe))


def used_by(result: dict[str, Any]) -> int:
    """Samples used in updates so far; 0 before the first update."""
    found: Any = result
    for key in USED:
        found = found.get(key, {})
    return int(found or 0)


def main() -> None:
    options = options_of_this_run()
    example = example_of(options)
    env_runners = example.env_runners if options.env_runners is None else options.env_runners
    with tempfile.TemporaryDirectory() as directory:

        def watched(_context: Any) -> Watched:
            return Watched(gymnasium.make("CartPole-v1"), EpisodeLog(directory), example.reward_scale)

        register_env(ENV, watched)
        # These are Ray's logical CPUs: an example may have more processes than there are cores.
        ray.init(num_cpus=env_runners + example.learners + 1, include_dashboard=False)
        config = (
            example.config()
            .environment(ENV)
            .env_runners(
                num_env_runners=env_runners,
                num_envs_per_env_runner=example.envs_per_runner,
                rollout_fragment_length=example.fragment_steps,
            )
            .learners(num_learners=example.learners)
            .training(**example.training)
            .rl_module(model_config=DefaultModelConfig(**example.model))
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
        settings = example.training | example.model | {"reward_scale": example.reward_scale}
        settings |= {name: getattr(config, name) for name in (*PROCESSES, *example.reported)}
        packages = ("ray", "torch", "gymnasium", "numpy")
        written = report("rllib", options.seed, first_step_s, window, env_steps, settings, packages, used)
        algorithm.stop()
        ray.shutdown()
    write(written | {"algorithm": options.algorithm, "differs": example.differs}, options.json)


if __name__ == "__main__":
    main()
