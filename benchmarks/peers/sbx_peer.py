"""SBX's PPO (Stable-Baselines3 in JAX) on CartPole-v1, with rl-zoo's hyperparameters or by ``--recipe``.

``compile_s`` is the part of ``seconds`` in which XLA compiled.
"""

from __future__ import annotations

import dataclasses
import time
from itertools import pairwise
from typing import Any

import jax
from flax import linen
from recipe import Recipe, add_recipe
from record import arguments, write
from sb3 import Setup, of_recipe, of_zoo, train
from sbx import PPO

ACTIVATIONS = {"tanh": linen.tanh, "relu": linen.relu}


class Compiling:
    """Records when JAX traced and compiled."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def seconds(self, begins_s: float, ends_s: float) -> float:
        """Seconds of tracing and compiling between two times; nested traces count once."""
        edges = sorted(
            {begins_s, ends_s} | {edge for span in self._spans for edge in span if begins_s < edge < ends_s}
        )
        return sum(
            after - before
            for before, after in pairwise(edges)
            if any(start <= before and after <= end for start, end in self._spans)
        )

    def _heard(self, event: str, duration_s: float, **_details: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            now = time.monotonic()
            self._spans.append((now - duration_s, now))


def networks(recipe: Recipe) -> dict[str, Any]:
    """Return the ``policy_kwargs`` of the recipe's networks."""
    return {
        "net_arch": list(recipe.hidden),
        "activation_fn": ACTIVATIONS[recipe.activation],
        "optimizer_kwargs": {"eps": recipe.adam_eps},
        "ortho_init": True,
    }


def of_ours(recipe: Recipe) -> Setup:
    """Translate a recipe for SBX, and add its own differences from the recipe."""
    setup = of_recipe(recipe)
    differs = [
        "initial weights of all but the policy's output are LeCun's, not orthogonal",
        "the policy's and the value's gradients are clipped apart, each to the norm",
    ]
    if recipe.shared:
        differs.insert(0, "two networks of these widths, not one with two outputs")
    if recipe.clip_value:
        differs.append("the value's change is not clipped")
    return dataclasses.replace(
        setup, told=setup.told | {"clip_range_vf": None}, differs=(*setup.differs, *differs)
    )


def main() -> None:
    options = add_recipe(arguments(__doc__)).parse_args()
    recipe: Recipe | None = options.recipe
    setup, policy = (of_zoo(), {}) if recipe is None else (of_ours(recipe), networks(recipe))
    packages = ("sbx-rl", "stable-baselines3", "jax", "gymnasium", "numpy")
    compiling = Compiling()
    record, watch = train("sbx", PPO, setup, policy, options.seed, packages)
    reached = watch.window.reached_at
    ends_s = watch.first_step_s + record["train_s"] if reached is None else reached.ended_s
    write(record | {"compile_s": compiling.seconds(watch.first_step_s, ends_s)}, options.json)


if __name__ == "__main__":
    main()
