"""Losses in torch, where the network is: nothing is read to the host inside an update.

A device without a memory stands in for a GPU: torch computes shapes there, and refuses to read a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from algos import continuous, dqn_batches, maddpg_team, team_episodes, unroll_batches
from algos.fragments import Fragment, random_rollout
from algos.team_episodes import random_batch
from algos.teams import random_team_rollout, team_spaces
from algos.training import parameters
from pydantic import ValidationError

from tianji_algos import registry
from tianji_algos.batch import Batch
from tianji_algos.core import Embryo, Model, Spaces, build_model, complete_results
from tianji_algos.device import Uploads
from tianji_algos.errors import DivergedError, UnsuitableModelError

NOWHERE = torch.device("meta")

Case = tuple[Callable[..., Embryo], Callable[[Any], Iterable[Any]]]
"""Builds an update rule, and gives batches of one."""


def embryo_of(
    rule: str, spaces: Spaces, model: str | None = None, settings: dict[str, Any] | None = None
) -> Callable[..., Embryo]:
    def build(device: torch.device | str = "cpu", **training: Any) -> Embryo:
        name = model or registry.agent_defaults(rule).model
        model_type = registry.load("model", name)
        network: Model = build_model(model_type, spaces, model_type.settings_type(**(settings or {})), 3)
        chosen = registry.settings_type("embryo", rule)(**training)
        embryo: Embryo = registry.load("embryo", rule)(spaces, network.to(device), chosen, 5)
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
TEAMS = {"team": team_spaces(), "continuous team": team_spaces((2, 1, 2), continuous=True)}
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


CASES: dict[str, Case] = {
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
EVERY = pytest.mark.parametrize(("build", "batches"), CASES.values(), ids=CASES)

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


@pytest.mark.parametrize(
    ("build", "batches"), (CASES | IN_TORCH_ALONE).values(), ids=[*CASES, *IN_TORCH_ALONE]
)
def test_nothing_is_read_to_the_host_inside_an_update(build: Any, batches: Any) -> None:
    embryo = build(NOWHERE)
    complete_results(embryo, prioritised=False)
    updates = 0
    for batch in batches(embryo):
        result = embryo.update(batch)
        assert result.uses > 0
        assert result.priorities is None
        updates += 1
    assert updates > 1
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        embryo.metrics()


@pytest.mark.parametrize(
    ("case", "once", "each"),
    [
        # The columns but advantages; by epoch the order and the advantages in it.
        ("ppo, discrete", ["action", "log_prob", "value", "target"], ["order", "advantage"]),
        ("ppo, cnn_actor_critic", ["action", "log_prob", "value", "target"], ["order", "advantage"]),
        # By minibatch which sequences, and which of their steps are samples.
        ("impala, discrete", ["action", "log_prob", "reward", "terminated", "mask"], ["columns", "samples"]),
    ],
)
@pytest.mark.parametrize("device", ["cpu", NOWHERE], ids=str)
def test_a_rollout_goes_to_the_device_once(
    case: str, once: list[str], each: list[str], device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []
    stage = Uploads._stage

    def counted(uploads: Uploads, array: Any) -> Any:
        copies.append(array.size)
        return stage(uploads, array)

    monkeypatch.setattr(Uploads, "_stage", counted)
    build, batches = CASES[case]
    embryo = build(device, backend="torch")
    before: list[int] = []
    for batch in batches(embryo):
        before.append(len(copies))
        copies.clear()
        embryo.update(batch)
        assert copies == [], "nothing goes up inside an update"
    # Elsewhere each fragment's observations go there, too, and the rows of each minibatch.
    fragments, rows = (0, 0) if device == "cpu" else (2, 1)
    first = fragments + len(once) + len(each) + rows
    if case.startswith("ppo"):
        a_minibatch = [rows] * 2
        assert before == [first, *a_minibatch, len(each) + rows, *a_minibatch]
    else:
        assert before == [first, *[len(each) + rows] * (len(before) - 1)]


@EVERY
def test_derivatives_by_hand_are_refused_to_a_device(build: Any, batches: Any) -> None:
    with pytest.raises(UnsuitableModelError, match=r"on a CPU, and this is \w+ on meta; backend = \"auto\""):
        build(NOWHERE, backend="numpy")


@EVERY
def test_updates_are_the_same_by_hand_and_in_torch(build: Any, batches: Any) -> None:
    found, metrics = [], []
    for backend in ("auto", "numpy", "torch"):
        embryo = build(backend=backend)
        begun = parameters(embryo)
        for batch in batches(embryo):
            embryo.update(batch)
        found.append(parameters(embryo))
        metrics.append(embryo.metrics())
    assert not np.allclose(found[0], begun, atol=1e-4)
    np.testing.assert_array_equal(found[1], found[0])
    assert (found[2] != found[0]).any(), "they are two ways"
    np.testing.assert_allclose(found[2], found[0], rtol=1e-3, atol=2e-5)
    assert metrics[1] == metrics[0]
    assert metrics[2] == pytest.approx(metrics[0], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("build", "batches"), (CASES | IN_TORCH_ALONE).values(), ids=[*CASES, *IN_TORCH_ALONE]
)
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_frozen_parameters_stay_as_they_are_bit_by_bit(build: Any, batches: Any, backend: str) -> None:
    embryo = build(backend=backend)
    for batch in batches(embryo):
        embryo.update(batch)  # What is remembered of gradients would go on to move them.
    before = {name: parameter.detach().clone() for name, parameter in embryo.model.named_parameters()}
    frozen = [name for place, name in enumerate(before) if place % 2 == 0 and name != "log_temperature"]
    embryo.freeze(frozen)
    for batch in batches(embryo):
        embryo.update(batch)
    moved = [name for name, now in embryo.model.named_parameters() if not torch.equal(now, before[name])]
    assert not set(moved) & set(frozen)
    assert moved
    assert len(moved) >= (len(before) - len(frozen)) // 2


@EVERY
@pytest.mark.parametrize("read", ["metrics", "state"])
def test_a_loss_that_diverged_is_found_when_it_is_read(build: Any, batches: Any, read: str) -> None:
    embryo = build(backend="torch")
    for batch in batches(embryo):
        embryo.update(batch)
    embryo.metrics()
    with torch.no_grad():
        next(iter(embryo.model.parameters())).fill_(torch.nan)
    for batch in batches(embryo):
        embryo.update(batch)
    with pytest.raises(DivergedError, match=r"not finite after \d+ updates: the loss has diverged"):
        getattr(embryo, read)()


@pytest.mark.parametrize("rule", ["qmix", "maddpg"])
def test_losses_without_derivatives_by_hand_say_so(rule: str) -> None:
    settings = registry.settings_type("embryo", rule)
    assert settings(backend="torch").backend == "torch"
    with pytest.raises(ValidationError, match='no derivatives by hand; "auto" or "torch" would be right'):
        settings(backend="numpy")
