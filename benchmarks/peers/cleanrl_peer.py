"""CleanRL's ppo.py on CartPole-v1 with its own settings, or by ``--recipe``.

    git clone https://github.com/vwxyzjn/cleanrl
    python benchmarks/peers/cleanrl_peer.py --script cleanrl/cleanrl/ppo.py

The script runs unchanged, from top to bottom; a wrapper of its environments counts the episodes. The script
has no options for its networks.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import gymnasium
from recipe import Recipe, add_recipe
from record import Episode, Window, arguments, report, write
from watched import Watched

HIDDEN: Final = (64, 64)
ACTIVATION: Final = "tanh"
POLICY_GAIN: Final = 0.01
ADAM_EPS: Final = 1e-5
"""Constants of the script for which it has no options."""


class Reached(Exception):  # noqa: N818 - it is no error
    """The last 100 episodes average 475."""


class Watch:
    """Notes the episodes of all environments of the script, and ends it when they reach the mean return."""

    def __init__(self) -> None:
        self.window = Window()
        self.first_step_s: float | None = None
        self.environments: list[Watched] = []

    def started(self) -> None:
        """Note the time of the first step."""
        if self.first_step_s is None:
            self.first_step_s = time.monotonic()

    def ended(self, total: float, steps: int) -> None:
        """Note an episode.

        Raises:
            Reached: the mean return has been reached.
        """
        if self.window.add(Episode(time.monotonic(), total, steps)):
            raise Reached


def options_of(recipe: Recipe) -> dict[str, Any]:
    """Translate a recipe into the script's options."""
    falls = recipe.learning_rate_schedule == "linear"
    steps = recipe.schedule_steps if falls and recipe.schedule_steps is not None else recipe.env_steps
    return {
        "total-timesteps": steps,  # Falling schedules are at 0 there.
        "learning-rate": recipe.learning_rate,
        "anneal-lr": falls,
        "num-envs": recipe.num_envs,
        "num-steps": recipe.steps,
        "num-minibatches": round(recipe.rollout_steps / recipe.minibatch_size),
        "update-epochs": recipe.epochs,
        "gamma": recipe.gamma,
        "gae-lambda": recipe.gae_lambda,
        "norm-adv": recipe.normalize_advantage != "none",
        "clip-coef": recipe.clip_range,
        "clip-vloss": recipe.clip_value,
        "ent-coef": recipe.entropy_coef,
        "vf-coef": recipe.value_coef,  # It weights half the squared error, as here.
        "max-grad-norm": recipe.max_grad_norm,
    }


def differences(recipe: Recipe) -> list[str]:
    """List the differences between the script's training and the recipe."""
    differs = ["acts and learns in turn", "nothing follows where an episode was cut off"]
    if recipe.shared or (recipe.hidden, recipe.activation) != (HIDDEN, ACTIVATION):
        differs.append(f"two networks of {' and '.join(map(str, HIDDEN))} with {ACTIVATION}")
    if recipe.normalize_advantage == "rollout":
        differs.append("advantages are normalised over each minibatch, not over each rollout")
    if recipe.clip_range_schedule != "constant":
        differs.append("the clip range does not change")
    if recipe.policy_gain != POLICY_GAIN:
        differs.append(f"the policy output's initial weights are scaled by {POLICY_GAIN:g}")
    if recipe.adam_eps != ADAM_EPS:
        differs.append(f"Adam's epsilon is {ADAM_EPS:g}")
    return [*differs, *recipe.left_out]


def command_line(options: dict[str, Any]) -> list[str]:
    """Write options as words of the script's command line; a switch that is off begins with "no"."""
    words = []
    for name, value in options.items():
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{name}")
        else:
            words += [f"--{name}", str(value)]
    return words


def run(script: Path, options: dict[str, Any], watch: Watch, reward_scale: float) -> None:
    """Run the script to its end, or until it reaches the mean return."""
    make = gymnasium.make

    def watched(*args: Any, **keywords: Any) -> Watched:
        watch.environments.append(Watched(make(*args, **keywords), watch, reward_scale))
        return watch.environments[-1]

    gymnasium.make = watched  # type: ignore[assignment] # The script calls gymnasium.make.
    sys.argv = [str(script), *command_line(options)]
    with (
        tempfile.TemporaryDirectory() as directory,
        contextlib.chdir(directory),  # It writes its logs to the working directory.
        contextlib.redirect_stdout(sys.stderr),
        contextlib.suppress(Reached),
    ):
        runpy.run_path(str(script), run_name="__main__")


def main() -> None:
    parser = add_recipe(arguments(__doc__))
    parser.add_argument("--script", type=Path, required=True, help="cleanrl/ppo.py of a checkout")
    options = parser.parse_args()
    recipe: Recipe | None = options.recipe
    told = {"env-id": "CartPole-v1", "seed": options.seed, "cuda": False}
    told |= {} if recipe is None else options_of(recipe)
    watch = Watch()
    run(options.script.resolve(), told, watch, 1.0 if recipe is None else recipe.reward_scale)
    settings = told if recipe is None else asdict(recipe)
    packages = ("torch", "gymnasium", "numpy")
    assert watch.first_step_s is not None
    made = sum(environment.env_steps for environment in watch.environments)
    record = report("cleanrl", options.seed, watch.first_step_s, watch.window, made, settings, packages)
    write(record | {"differs": () if recipe is None else differences(recipe)}, options.json)


if __name__ == "__main__":
    main()
