"""Observations of a replay's batches: networks see them normalised by what was drawn so far."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from algos import continuous, dqn_batches
from algos.in_step import in_step
from algos.training import parameters

from tianji_algos import registry
from tianji_algos.batch import Batch
from tianji_algos.core import AllReduce, Embryo, Model, Spaces, build_model
from tianji_algos.errors import DivergedError, UnsupportedSpaceError
from tianji_algos.normalization import FILTER, Normalization, build_normalizer, normalizer_of

Floats = npt.NDArray[np.float32]
RULES: dict[str, tuple[Spaces, Any]] = {
    "dqn": (dqn_batches.SPACES, dqn_batches.make_batch),
    "sac": (continuous.SPACES, continuous.make_batch),
    "td3": (continuous.SPACES, continuous.make_batch),
}
EVERY = pytest.mark.parametrize("rule", RULES)
BACKENDS = pytest.mark.parametrize("backend", ["numpy", "torch"])


def build(rule: str, backend: str = "auto", *, normalizes: bool = True) -> Any:
    spaces, _ = RULES[rule]
    chosen = registry.settings_type("embryo", rule)(
        backend=backend, normalize_observations=normalizes, learning_rate=1e-2
    )
    model_type = registry.load("model", registry.agent_defaults(rule).model)
    model: Model = build_model(model_type, spaces, model_type.settings_type(hidden=(8,)), 3)
    build_normalizer(model, spaces, Normalization.of(chosen, spaces))
    return registry.load("embryo", rule)(spaces, model, chosen, 5)


def far_away(rule: str, seed: int = 0) -> Batch:
    """Observations that are far from 0, each number in its own way."""
    batch: Batch = RULES[rule][1](seed)
    size = batch.observation.shape[1]
    shift, scale = np.linspace(-500, 700, size), np.geomspace(0.1, 300, size)
    observation, following = (
        (each * scale + shift).astype(np.float32) for each in (batch.observation, batch.next_observation)
    )
    return dataclasses.replace(batch, observation=observation, next_observation=following)


def weights(embryo: Any) -> Floats:
    """Parameters without the statistics, which follow them."""
    normalizer = normalizer_of(embryo.model)
    flat = parameters(embryo)
    return flat if normalizer is None else flat[: -normalizer.size]


@EVERY
@BACKENDS
def test_an_update_is_that_of_normalised_observations(rule: str, backend: str) -> None:
    ours, plain = build(rule, backend), build(rule, backend, normalizes=False)
    drawn: list[Floats] = []
    for seed in range(3):
        batch = far_away(rule, seed)
        drawn.append(batch.observation)
        so_far = np.concatenate(drawn).astype(np.float64)
        mean, deviation = so_far.mean(axis=0), so_far.std(axis=0)
        observation, following = (
            np.clip((each - mean) / deviation, -10, 10).astype(np.float32)
            for each in (batch.observation, batch.next_observation)
        )
        ours.update(batch)
        plain.update(dataclasses.replace(batch, observation=observation, next_observation=following))
    np.testing.assert_allclose(weights(ours), weights(plain), rtol=2e-2, atol=2e-3)
    assert np.abs(weights(ours) - weights(build(rule, backend))).max() > 5e-3, "it has learnt"


@EVERY
def test_a_policy_sees_what_its_learner_sees(rule: str) -> None:
    embryo, (spaces, _) = build(rule), RULES[rule]
    batch = far_away(rule)
    embryo.update(batch)
    flat = np.empty(embryo.model.parameter_count, np.float32)
    embryo.model.write_parameters(flat)
    agent_type = registry.load("agent", rule)
    quiet = {"uniform_warmup": False} if rule != "dqn" else {"epsilon_start": 0.0, "epsilon_end": 0.0}
    rows = len(batch.observation)

    def greedy(model: Model, observation: Floats) -> Any:
        agent = agent_type(spaces, model, agent_type.settings_type(**quiet), rows, 0)
        agent.adopt(flat[: model.parameter_count])
        agent.begin({})  # A replay's fragments do not say what was seen through.
        return agent.act_greedily(observation).copy()

    normalizer = normalizer_of(embryo.model)
    assert normalizer is not None
    assert normalizer.observations is not None
    assert int(normalizer.observations.count) == rows
    mean, deviation = batch.observation.mean(axis=0), batch.observation.std(axis=0)
    seen = ((batch.observation - mean) / deviation).astype(np.float32)
    np.testing.assert_allclose(
        greedy(build(rule).model, batch.observation),
        greedy(build(rule, normalizes=False).model, seen),
        rtol=1e-3,
        atol=1e-3,
    )


@EVERY
def test_learners_on_shares_have_the_statistics_of_one(rule: str) -> None:
    batch = far_away(rule)
    alone = build(rule)
    alone.update(batch)
    embryos = [build(rule), build(rule)]

    def learn(group: AllReduce) -> Floats:
        embryo: Embryo = embryos[group.index]
        embryo.join(group)
        mine = slice(group.index, None, 2)
        names = ("observation", "reward", "next_observation", "discount", "weight")
        fields = {name: field[mine] for name, field in batch.fields.items()}
        embryo.update(Batch(fields=fields, **{name: getattr(batch, name)[mine] for name in names}))
        return parameters(embryo)

    (one, other), _ = in_step(2, learn)
    np.testing.assert_array_equal(one, other)
    size = normalizer_of(alone.model).size
    np.testing.assert_allclose(one[-size:], parameters(alone)[-size:], rtol=1e-6)


@EVERY
def test_statistics_are_part_of_what_is_saved(rule: str) -> None:
    one, other = build(rule), build(rule)
    one.update(far_away(rule))
    other.load_state(*one.state())
    for seed in (1, 2):
        one.update(far_away(rule, seed))
        other.update(far_away(rule, seed))
    np.testing.assert_array_equal(parameters(one), parameters(other))


def test_what_is_not_finite_ends_the_training_with_its_cause() -> None:
    batch = far_away("sac")
    batch.observation[0, 0] = np.inf
    with pytest.raises(DivergedError, match="the statistics of observations are not finite"):
        build("sac").update(batch)


def test_fragments_of_a_replay_say_nothing_of_it() -> None:
    settings = registry.settings_type("embryo", "dqn")(normalize_observations=True)
    asked = Normalization.of(settings, dqn_batches.SPACES)
    assert asked is not None
    assert (asked.observations, asked.rewards, asked.values) == (True, False, False)
    assert FILTER not in [
        field.name
        for field in registry.load("agent", "dqn").fields(
            dqn_batches.SPACES, registry.settings_type("agent", "dqn")()
        )
    ]


def test_images_are_refused() -> None:
    spaces = Spaces(gym.spaces.Box(0, 255, (2, 36, 36), np.uint8), gym.spaces.Discrete(2))
    settings = registry.settings_type("embryo", "dqn")(normalize_observations=True)
    model_type = registry.load("model", "cnn_q")
    model = build_model(model_type, spaces, model_type.settings_type(hidden=16), 0)
    with pytest.raises(UnsupportedSpaceError, match="normalize_observations = false would be right"):
        build_normalizer(model, spaces, Normalization.of(settings, spaces))
