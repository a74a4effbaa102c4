"""Each update rule, small and ready to learn from a few batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from algos import continuous, dqn_batches, maddpg_team, team_episodes, unroll_batches
from algos.fragments import Fragment, random_rollout
from algos.team_episodes import random_batch
from algos.teams import random_team_rollout, team_spaces

from tianji_algos import registry
from tianji_algos.batch import Batch
from tianji_algos.core import Embryo, Model, Spaces, build_model

Case = tuple[Callable[..., Embryo], Callable[[Any], Iterable[Any]]]
"""Builds an update rule, and gives batches of one."""


def embryo_of(
    rule: str, spaces: Spaces, model: str | None = None, settings: dict[str, Any] | None = None
) -> Callable[..., Embryo]:
    def build(device: torch.device | str = "cpu", seed: int = 5, **training: Any) -> Embryo:
        name = model or registry.agent_defaults(rule).model
        model_type = registry.load("model", name)
        network: Model = build_model(model_type, spaces, model_type.settings_type(**(settings or {})), 3)
        chosen = registry.settings_type("embryo", rule)(**training)
        embryo: Embryo = registry.load("embryo", rule)(spaces, network.to(device), chosen, seed)
        return embryo

    return build


def of_rollouts(
    rule: str,
    spaces: Spaces,
    fragments: Sequence[Fragment],
    model: str | None = None,
    settings: dict[str, Any] | None = None,
) -> Case:
    """Minibatches of a few hundred samples, which are not in proportion."""
    build = embryo_of(rule, spaces, model, settings)
    small = {"rollout_steps": 128, "minibatch_size": 32, "epochs": 2, "learning_rate": 1e-3}
    return partial(build, **small), lambda embryo: embryo.minibatches(fragments)


ACTIONS: dict[str, gym.Space[Any]] = {
    "discrete": gym.spaces.Discrete(2),
    "several": gym.spaces.MultiDiscrete([3, 2]),
    "continuous": gym.spaces.Box(-2.0, 2.0, (2,), np.float32),
}
ROWS = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
IMAGES = Spaces(gym.spaces.Box(0, 255, (2, 36, 36), np.uint8), ACTIONS["discrete"])
SINGLE = {name: Spaces(ROWS, space) for name, space in ACTIONS.items()}
TEAMS = {
    "team": team_spaces(),
    "continuous team": team_spaces((2, 1, 2), continuous=True),
    "team with a state": team_spaces((3, 2), state=7),
    "team cut off one by one": team_spaces((3, 2, 2), truncates=True),
}
GATED = {"encoder": "mlp", "hidden": (8,), "width": 8}


EPISODES = team_episodes.team_spaces()


def team_batches(spaces: Spaces, _: Embryo) -> Iterable[Batch]:
    return (maddpg_team.make_batch(spaces, seed=seed) for seed in range(3))


def images(fragments: list[Fragment]) -> list[Fragment]:
    rng = np.random.default_rng(1)
    for fragment in fragments:
        shape = *fragment["observation"].shape[:2], *IMAGES.observation.shape
        fragment["observation"] = rng.integers(0, 256, shape).astype(np.uint8)
    return fragments


BY_HAND: dict[str, Case] = {
    **{
        f"{rule}, {name}": of_rollouts(rule, spaces, random_rollout(spaces, 1, steps=16))
        for rule in ("ppo", "impala")
        for name, spaces in SINGLE.items()
    },
    **{
        f"{rule}, {model}": of_rollouts(rule, spaces, fragments, model, settings)
        for rule in ("ppo", "impala")
        for model, spaces, fragments, settings in (
            (
                "recurrent_actor_critic",
                SINGLE["discrete"],
                random_rollout(SINGLE["discrete"], 2, steps=16, state_size=16),
                GATED,
            ),
            ("cnn_actor_critic", IMAGES, images(random_rollout(IMAGES, 3, steps=16)), {"hidden": 16}),
        )
    },
    **{
        f"mappo, {name}": of_rollouts("mappo", spaces, random_team_rollout(spaces, 4, steps=16))
        for name, spaces in TEAMS.items()
    },
    "dqn": (
        embryo_of("dqn", dqn_batches.SPACES),
        lambda _: (dqn_batches.make_batch(seed) for seed in range(3)),
    ),
    "sac": (
        embryo_of("sac", continuous.SPACES),
        lambda _: (continuous.make_batch(seed) for seed in range(3)),
    ),
    "td3": (
        embryo_of("td3", continuous.SPACES),
        lambda _: (continuous.make_batch(seed) for seed in range(3)),
    ),
}
"""Update rules with derivatives by hand, too."""

IN_TORCH_ALONE: dict[str, Case] = {
    "qmix": (
        embryo_of("qmix", EPISODES),
        lambda _: (random_batch(EPISODES, [5, 3, 5], [True, False, True], 5, seed) for seed in range(3)),
    ),
    "r2d2": (
        partial(embryo_of("r2d2", unroll_batches.SPACES, settings={"width": 4}), **unroll_batches.SMALL),
        lambda _: (unroll_batches.make_batch(seed) for seed in range(3)),
    ),
    **{
        f"maddpg, {name}": (embryo_of("maddpg", spaces), partial(team_batches, spaces))
        for name, spaces in (("discrete", maddpg_team.DISCRETE), ("continuous", maddpg_team.CONTINUOUS))
    },
}
"""Update rules whose losses are in torch alone."""

CASES = BY_HAND | IN_TORCH_ALONE
