from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from algos.fragments import Fragment, random_fragment, random_rollout
from algos.training import parameters, train
from pydantic import ValidationError

from tianji_algos.core import Spaces, build_model
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.mlp import MLPActorCritic
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.ppo.ppo import PPOEmbryo
from tianji_algos.ppo.settings import PPOSettings

SMALL: dict[str, Any] = {"rollout_steps": 64, "minibatch_size": 16, "epochs": 3, "learning_rate": 1e-2}


def build(
    spaces: Spaces,
    seed: int = 0,
    model_type: type[ActorCritic] = MLPActorCritic,
    hidden: tuple[int, ...] = (8,),
    **settings: Any,
) -> PPOEmbryo:
    model = build_model(model_type, spaces, MLPActorCriticSettings(hidden=hidden), seed)
    assert isinstance(model, ActorCritic)
    return PPOEmbryo(spaces, model, PPOSettings(**(SMALL | settings)), seed)


@pytest.fixture
def fragments(spaces: Spaces) -> list[Fragment]:
    return random_rollout(spaces, seed=5)


def test_every_experience_is_seen_once_an_epoch_and_reset_steps_never(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    embryo = build(spaces)
    experience = sorted(x for f in fragments for x in f["log_prob"][f["mask"] == 1].tolist())
    batches = [batch.log_prob.copy() for batch in embryo.minibatches(fragments)]
    assert 0 < len(experience) < 64
    assert sorted(np.concatenate(batches).tolist()) == sorted(experience * 3)
    sizes = {len(batch) for batch in batches}
    assert max(sizes) - min(sizes) <= 1
    assert train(embryo, fragments) == 3 * len(experience)
    assert embryo.uses_per_sample == 3.0


@pytest.mark.parametrize("normalize", ["minibatch", "rollout", "none"])
def test_a_rollout_of_reset_steps_makes_no_update(
    spaces: Spaces, fragments: list[Fragment], normalize: str
) -> None:
    embryo = build(spaces, normalize_advantage=normalize)
    experience = [fragment["mask"].copy() for fragment in fragments]
    for fragment in fragments:
        fragment["mask"][:] = 0
    assert list(embryo.minibatches(fragments)) == []
    for fragment, mask in zip(fragments, experience, strict=True):
        fragment["mask"][:] = mask
    assert train(embryo, fragments) == 3 * sum(int(mask.sum()) for mask in experience)


def test_each_sample_has_the_observation_of_its_step(spaces: Spaces, fragments: list[Fragment]) -> None:
    seen_by = {
        log_prob: observation
        for fragment in fragments
        for log_prob, observation in zip(
            fragment["log_prob"].flat,
            fragment["observation"][:-1].reshape(-1, *fragment["observation"].shape[2:]),
            strict=True,
        )
    }
    for batch in build(spaces).minibatches(fragments):
        expected = [seen_by[log_prob] for log_prob in batch.log_prob]
        np.testing.assert_array_equal(batch.observation, expected)


def test_what_is_in_reset_steps_and_after_terminations_changes_nothing(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    clean = build(spaces)
    train(clean, fragments)
    for fragment in fragments:
        resets = fragment["mask"] == 0
        fragment["observation"][:-1][resets] = 1e6
        fragment["action"][resets] = 0
        fragment["log_prob"][resets] = -1e6
    disturbed = build(spaces)
    train(disturbed, fragments)
    np.testing.assert_array_equal(parameters(clean), parameters(disturbed))


@pytest.mark.parametrize("normalize", ["minibatch", "rollout", "none"])
def test_advantages_are_normalised_as_asked(
    spaces: Spaces, fragments: list[Fragment], normalize: str
) -> None:
    embryo = build(spaces, normalize_advantage=normalize, epochs=1)
    batches = [batch.advantage.copy() for batch in embryo.minibatches(fragments)]
    over_minibatch = [(a.mean(), a.std()) for a in batches]
    over_rollout = (np.concatenate(batches).mean(), np.concatenate(batches).std())
    is_normal = {
        "minibatch": np.allclose(over_minibatch, (0.0, 1.0), atol=1e-3),
        "rollout": np.allclose(over_rollout, (0.0, 1.0), atol=1e-3),
    }
    assert is_normal == {
        "minibatch": normalize == "minibatch",
        "rollout": normalize in ("minibatch", "rollout"),
    }


@pytest.mark.parametrize(
    "saved", [{}, {"learning_rate": 1e-2, "clip_range": 0.2}], ids=["as saved now", "as once saved"]
)
def test_a_resumed_run_learns_as_its_settings_say(
    spaces: Spaces, fragments: list[Fragment], saved: dict[str, float]
) -> None:
    tensors, rest = build(spaces, learning_rate=1e-2, clip_range=0.2).state()
    careful = build(spaces, learning_rate=1e-3, clip_range=0.1)
    careful.load_state(tensors, {**rest, **saved})
    careful.schedule(500)
    train(careful, fragments)
    metrics = careful.metrics()
    assert (metrics["learning_rate"], metrics["clip_range"]) == (1e-3, 0.1)


def test_linear_schedules_fall_to_zero_and_constant_ones_do_not(cartpole_spaces: Spaces) -> None:
    linear = build(
        cartpole_spaces,
        learning_rate_schedule="linear",
        clip_range_schedule="linear",
        clip_range=0.4,
        schedule_steps=1000,
    )
    constant = build(cartpole_spaces, clip_range=0.4)
    seen = []
    for env_steps in (0, 250, 1000, 5000):
        for embryo in (linear, constant):
            embryo.schedule(env_steps)
            seen.append((embryo._optimizer.learning_rate, embryo._loss.clip_range))
    start = (1e-2, 0.4)
    assert seen == [start, start, pytest.approx((7.5e-3, 0.3)), start, (0.0, 0.0), start, (0.0, 0.0), start]


def test_scheduled_points_are_factors_of_where_learning_rate_and_clip_range_start(
    cartpole_spaces: Spaces,
) -> None:
    embryo = build(
        cartpole_spaces,
        learning_rate_schedule=((0, 0.0), (100, 1.0), (300, 0.5)),
        clip_range_schedule=((200, 1.0), (300, 0.0)),
        clip_range=0.4,
    )
    seen = []
    for env_steps in (0, 50, 200, 250, 10**6):
        embryo.schedule(env_steps)
        seen.append((embryo._optimizer.learning_rate / 1e-2, embryo._loss.clip_range))
    assert seen == [pytest.approx(at) for at in [(0, 0.4), (0.5, 0.4), (0.75, 0.4), (0.625, 0.2), (0.5, 0)]]


def test_updates_stop_beyond_the_target_divergence(cartpole_spaces: Spaces) -> None:
    fragment = random_fragment(np.random.default_rng(0), 16, 4, cartpole_spaces)
    embryo = build(cartpole_spaces, target_kl=1e-6, epochs=50)
    assert train(embryo, [fragment]) < 50 * int(fragment["mask"].sum())


@pytest.mark.parametrize(("wanted", "factor"), [(1e-9, 1 / 1.5), (1e9, 1.5)])
def test_an_adaptive_learning_rate_falls_where_the_policy_moves_too_far_and_rises_where_it_hardly_moves(
    cartpole_spaces: Spaces, wanted: float, factor: float
) -> None:
    fragment = random_fragment(np.random.default_rng(0), 16, 4, cartpole_spaces)
    adaptive = {"learning_rate_schedule": "adaptive", "adaptive_kl": wanted, "learning_rate": 1e-3}
    embryo = build(cartpole_spaces, epochs=3, **adaptive)
    embryo.schedule(10**6)
    train(embryo, [fragment])
    reached = embryo.metrics()["learning_rate"]
    assert reached == pytest.approx(1e-3 * factor**3), "once an epoch"
    resumed = build(cartpole_spaces, epochs=3, **adaptive)
    resumed.load_state(*embryo.state())
    resumed.schedule(10**6)
    for _ in range(20):
        train(resumed, [fragment])
    bound = 1e-6 if factor < 1 else 1e-2
    assert resumed.metrics()["learning_rate"] == pytest.approx(bound)


def test_an_adaptive_learning_rate_goes_on_from_where_it_was(cartpole_spaces: Spaces) -> None:
    fragment = random_fragment(np.random.default_rng(0), 16, 4, cartpole_spaces)
    whole, resumed = (build(cartpole_spaces, learning_rate_schedule="adaptive") for _ in range(2))
    train(whole, [fragment])
    resumed.load_state(*whole.state())
    for embryo in (whole, resumed):
        embryo.schedule(64)
        train(embryo, [fragment])
    np.testing.assert_array_equal(parameters(whole), parameters(resumed))


@pytest.mark.parametrize(("rate", "goes_on"), [(2e-3, False), (1e-3, True)])
def test_an_adaptive_learning_rate_begins_anew_with_another_one_than_its_own_began_with(
    cartpole_spaces: Spaces, rate: float, goes_on: bool
) -> None:
    fragment = random_fragment(np.random.default_rng(0), 16, 4, cartpole_spaces)
    better = build(cartpole_spaces, learning_rate_schedule="adaptive", learning_rate=1e-3, adaptive_kl=1e-9)
    worse = build(cartpole_spaces, learning_rate_schedule="adaptive", learning_rate=2e-3)
    train(better, [fragment])
    adapted = better.metrics()["learning_rate"]
    assert adapted < 1e-3
    worse.load_state(*better.state())
    worse.adopt_settings(worse.settings.model_copy(update={"learning_rate": rate}))
    worse.schedule(0)
    assert worse._optimizer.learning_rate == (adapted if goes_on else rate)


def test_a_rollout_that_is_left_early_lets_an_adaptive_learning_rate_fall(cartpole_spaces: Spaces) -> None:
    fragment = random_fragment(np.random.default_rng(0), 16, 4, cartpole_spaces)
    adaptive = {"learning_rate_schedule": "adaptive", "adaptive_kl": 1e-9, "learning_rate": 1e-3}
    embryo = build(cartpole_spaces, target_kl=1e-6, epochs=50, **adaptive)
    train(embryo, [fragment])
    assert embryo.metrics()["learning_rate"] < 1e-3


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate_schedule": "adaptive", "learning_rate": 1e-3},
        {"learning_rate_schedule": "adaptive", "adaptive_kl": 1e-6, "learning_rate": 1e-3},
        {"target_kl": 1e-4, "epochs": 20},
        {"clip_range_schedule": "linear", "schedule_steps": 100, "clip_value": True},
        {"normalize_advantage": "rollout"},
        {"normalize_advantage": "none"},
    ],
)
def test_what_depends_on_the_updates_is_the_same_by_hand_and_in_torch(
    cartpole_spaces: Spaces, settings: dict[str, Any]
) -> None:
    fragment = random_fragment(np.random.default_rng(0), 16, 4, cartpole_spaces)
    found = []
    for backend in ("numpy", "torch"):
        embryo = build(cartpole_spaces, backend=backend, **settings)
        embryo.schedule(50)
        used = [train(embryo, [fragment]) for _ in range(3)]
        found.append((used, embryo.metrics(), parameters(embryo)))
    assert found[1][0] == found[0][0]
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-3, abs=1e-4)
    np.testing.assert_allclose(found[1][2], found[0][2], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rate", [1e-7, 0.05])
def test_an_adaptive_learning_rate_begins_within_its_bounds(rate: float) -> None:
    with pytest.raises(ValidationError, match="is from 1e-06 to"):
        PPOSettings(learning_rate_schedule="adaptive", learning_rate=rate)


def test_values_that_foretell_their_targets_explain_all_variance(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    embryo = build(spaces, gae_lambda=0.0, gamma=0.0, normalize_advantage="rollout")
    assert embryo.metrics() == {}
    for fragment in fragments:  # With a discount of 0 the target is the reward.
        fragment["value"][:-1] = fragment["reward"]
    train(embryo, fragments)
    assert embryo.metrics()["explained_variance"] == pytest.approx(1.0)
    mean = np.mean(np.concatenate([fragment["reward"][fragment["mask"] == 1] for fragment in fragments]))
    for fragment in fragments:
        fragment["value"][...] = mean
    train(embryo, fragments)
    assert embryo.metrics()["explained_variance"] == pytest.approx(0.0, abs=1e-5)
