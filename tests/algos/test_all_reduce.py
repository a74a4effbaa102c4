"""Learners in step, as threads that add up in memory: together they do what one would with all of it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.fragments import Fragment, random_fragment, random_rollout
from algos.in_step import Outcome, Table, assert_same, in_step, train
from algos.tiny_gru import TinyGRU
from algos.training import parameters

from tianji_algos.batch import Batch
from tianji_algos.core import ALONE, AllReduce, Embryo, ReplayEmbryo, RolloutEmbryo, Spaces, build_model
from tianji_algos.dqn.dqn import DQNEmbryo
from tianji_algos.dqn.settings import DQNSettings
from tianji_algos.errors import AlgorithmError
from tianji_algos.impala.impala import IMPALAEmbryo
from tianji_algos.impala.settings import IMPALASettings
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.mlp import MLPQ, MLPActorCritic
from tianji_algos.models.settings import MLPActorCriticSettings, MLPQSettings
from tianji_algos.ppo.ppo import PPOEmbryo
from tianji_algos.ppo.settings import PPOSettings

Floats = npt.NDArray[np.float32]
BUILDING = threading.Lock()
"""A model is built from torch's global random stream."""


def ppo(
    spaces: Spaces, seed: int = 0, model_type: type[ActorCritic] = MLPActorCritic, **settings: Any
) -> PPOEmbryo:
    with BUILDING:
        model = build_model(model_type, spaces, MLPActorCriticSettings(hidden=(8,)), 3)
    assert isinstance(model, ActorCritic)
    small = {"rollout_steps": 64, "minibatch_size": 16, "epochs": 3, "learning_rate": 1e-2}
    return PPOEmbryo(spaces, model, PPOSettings(**(small | settings)), seed)


def impala(
    spaces: Spaces, seed: int = 0, model_type: type[ActorCritic] = MLPActorCritic, **settings: Any
) -> IMPALAEmbryo:
    with BUILDING:
        model = build_model(model_type, spaces, MLPActorCriticSettings(hidden=(8,)), 3)
    assert isinstance(model, ActorCritic)
    small = {"rollout_steps": 64, "minibatch_size": 16, "epochs": 3, "learning_rate": 1e-2}
    return IMPALAEmbryo(spaces, model, IMPALASettings(**(small | settings)), seed)


def dqn(spaces: Spaces, **settings: Any) -> DQNEmbryo:
    with BUILDING:
        model = build_model(MLPQ, spaces, MLPQSettings(hidden=(8,)), 3)
    assert isinstance(model, MLPQ)
    small = {"batch_size": 24, "warmup_steps": 24, "learning_rate": 1e-2, "target_every": 2}
    return DQNEmbryo(spaces, model, DQNSettings(**(small | settings)), 0)


def train_in_step(
    spaces: Spaces,
    fragments: Sequence[Fragment],
    learners: int,
    rounds: int = 1,
    build: Callable[..., PPOEmbryo | IMPALAEmbryo] = ppo,
    **settings: Any,
) -> tuple[list[Outcome], Table]:
    def learn(group: AllReduce) -> Outcome:
        embryo = build(spaces, seed=group.index, **settings)
        embryo.join(group)
        return train(embryo, fragments[group.index :: learners], rounds)

    return in_step(learners, learn)


@pytest.fixture
def fragments(spaces: Spaces) -> list[Fragment]:
    """Six fragments with different numbers of samples; the second has few."""
    made = random_rollout(spaces, seed=7, fragments=6, state_size=8)
    made[1]["mask"][2:] = 0
    return made


@pytest.mark.parametrize("learners", [2, 3])
@pytest.mark.parametrize("normalize", ["minibatch", "rollout", "none"])
@pytest.mark.parametrize("model_type", [MLPActorCritic, TinyGRU])
def test_learners_on_shares_of_a_rollout_make_the_update_of_one_on_all_of_it(
    spaces: Spaces, fragments: list[Fragment], model_type: type[ActorCritic], normalize: str, learners: int
) -> None:
    whole: dict[str, Any] = {"minibatch_size": 10**4, "rollout_steps": 10**4, "model_type": model_type}
    settings = {**whole, "epochs": 1, "normalize_advantage": normalize}
    alone = train(ppo(spaces, **settings), fragments)
    outcomes, _ = train_in_step(spaces, fragments, learners, **settings)
    assert_same(outcomes)
    assert (outcomes[0].uses, outcomes[0].updates) == (alone.uses, alone.updates)
    np.testing.assert_allclose(outcomes[0].moments, alone.moments, rtol=1e-4, atol=1e-8)
    np.testing.assert_allclose(outcomes[0].parameters, alone.parameters, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"normalize_advantage": "rollout"},
        {"minibatch_size": 2},
        {"optimizer": "rmsprop"},
        {"model_type": TinyGRU},
        {"model_type": TinyGRU, "normalize_advantage": "rollout", "minibatch_size": 8},
        {"backend": "torch"},
        {"model_type": TinyGRU, "backend": "torch"},
        {"build": impala, "backend": "torch"},
    ],
)
def test_learners_with_unequal_shares_make_the_same_updates_with_the_same_bits(
    spaces: Spaces, fragments: list[Fragment], settings: dict[str, Any]
) -> None:
    build, settings = settings.get("build", ppo), {k: v for k, v in settings.items() if k != "build"}
    alone = train(build(spaces, **settings), fragments, rounds=2)
    outcomes, _ = train_in_step(spaces, fragments, 3, rounds=2, build=build, **settings)
    assert_same(outcomes)
    assert outcomes[0].uses == alone.uses
    assert outcomes[0].updates <= alone.updates


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_learner_whose_share_has_no_sample_keeps_step(
    spaces: Spaces, fragments: list[Fragment], backend: str
) -> None:
    fragments[1]["mask"][:] = 0
    alone = train(ppo(spaces, backend=backend), fragments[:1])
    outcomes, _ = train_in_step(spaces, fragments[:2], 2, backend=backend)
    assert_same(outcomes)
    assert (outcomes[0].uses, outcomes[0].updates) == (alone.uses, alone.updates)
    assert np.isfinite(outcomes[0].parameters).all()


@pytest.mark.parametrize("normalize", ["minibatch", "rollout"])
def test_learners_leave_the_same_minibatches_out_where_none_has_a_sample(
    spaces: Spaces, fragments: list[Fragment], normalize: str
) -> None:
    for fragment in fragments[1:]:
        fragment["mask"][:] = 0
    settings = {"model_type": TinyGRU, "minibatch_size": 16, "normalize_advantage": normalize}
    outcomes, _ = train_in_step(spaces, fragments[:4], 2, **settings)
    assert_same(outcomes)
    assert np.isfinite(outcomes[0].parameters).all()
    assert outcomes[0].uses == 3 * fragments[0]["mask"].sum()
    assert 0 < outcomes[0].updates < 3 * 8
    nothing, _ = train_in_step(spaces, fragments[1:3], 2, **settings)
    assert (nothing[0].uses, nothing[0].updates) == (0, 0)


def test_the_divergence_of_all_learners_decides_when_a_rollout_is_left(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    settings = {"target_kl": 0.02, "learning_rate": 0.05, "epochs": 20}
    outcomes, _ = train_in_step(spaces, fragments, 2, **settings)
    assert_same(outcomes)
    endless, _ = train_in_step(spaces, fragments, 2, **(settings | {"target_kl": None}))
    assert outcomes[0].updates < endless[0].updates


def test_the_divergence_of_all_learners_decides_on_an_adaptive_learning_rate(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    adaptive = {"learning_rate_schedule": "adaptive", "learning_rate": 1e-3, "epochs": 4}
    # Who has this one is further from the policy that acted: by themselves they would not agree.
    fragments[0]["log_prob"] += 0.3
    wanted = np.geomspace(1e-5, 1e3, 33).tolist()
    results = [train_in_step(spaces, fragments, 2, adaptive_kl=kl, **adaptive)[0] for kl in wanted]
    for outcomes in results:
        assert_same(outcomes)
    assert not np.array_equal(results[0][0].parameters, results[-1][0].parameters)


def test_advantages_are_normalised_over_all_learners_once_an_epoch(cartpole_spaces: Spaces) -> None:
    fragments = [random_fragment(np.random.default_rng(k), 8, 4, cartpole_spaces) for k in range(2)]
    outcomes, table = train_in_step(cartpole_spaces, fragments, 2, epochs=3)
    assert table.additions == 1 + 3 + outcomes[0].updates, "sizes once, sums an epoch, gradients an update"


@pytest.mark.parametrize("learners", [2, 3])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("model_type", [MLPActorCritic, TinyGRU])
def test_learners_of_impala_on_shares_of_a_rollout_make_the_update_of_one_on_all_of_it(
    spaces: Spaces, fragments: list[Fragment], model_type: type[ActorCritic], reduction: str, learners: int
) -> None:
    settings: dict[str, Any] = {"minibatch_size": 10**4, "rollout_steps": 10**4, "reduction": reduction}
    settings |= {"epochs": 2, "model_type": model_type}
    alone = train(impala(spaces, **settings), fragments)
    outcomes, _ = train_in_step(spaces, fragments, learners, build=impala, **settings)
    assert_same(outcomes)
    assert (outcomes[0].uses, outcomes[0].updates) == (alone.uses, alone.updates)
    np.testing.assert_allclose(outcomes[0].moments, alone.moments, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(outcomes[0].parameters, alone.parameters, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam"}, {"minibatch_size": 2}])
def test_learners_of_impala_with_unequal_shares_make_the_same_updates_with_the_same_bits(
    spaces: Spaces, fragments: list[Fragment], settings: dict[str, Any]
) -> None:
    fragments[1]["mask"][:] = 0
    alone = train(impala(spaces, **settings), fragments, rounds=2)
    outcomes, _ = train_in_step(spaces, fragments[:4], 3, rounds=2, build=impala, **settings)
    assert_same(outcomes)
    assert np.isfinite(outcomes[0].parameters).all()
    uses = sum(int(fragment["mask"].sum()) for fragment in fragments[:4])
    assert outcomes[0].uses == 2 * 3 * uses < alone.uses


def make_batch(rows: int) -> Batch:
    rng = np.random.default_rng(4)
    return Batch(
        observation=rng.standard_normal((rows, 4)).astype(np.float32),
        fields={"action": rng.integers(2, size=rows).astype(np.uint8)},
        reward=rng.standard_normal(rows).astype(np.float32),
        next_observation=rng.standard_normal((rows, 4)).astype(np.float32),
        discount=rng.choice([0.0, 0.99], rows).astype(np.float32),
        weight=rng.random(rows).astype(np.float32),
    )


def rows_of(batch: Batch, rows: slice) -> Batch:
    arrays = {
        field.name: getattr(batch, field.name)[rows]
        for field in dataclasses.fields(batch)
        if field.name != "fields"
    }
    return Batch(fields={name: array[rows] for name, array in batch.fields.items()}, **arrays)


@pytest.mark.parametrize("learners", [2, 3])
@pytest.mark.parametrize("target", ["hard", "soft"])
def test_learners_on_shares_of_a_batch_make_the_update_of_one_on_all_of_it(
    cartpole_spaces: Spaces, learners: int, target: str
) -> None:
    batch = make_batch(24)

    def learn(group: AllReduce) -> tuple[Outcome, Floats]:
        embryo = dqn(cartpole_spaces, target_update=target)
        own = batch
        if group is not ALONE:
            embryo.join(group)
            each = 24 // group.number
            own = rows_of(batch, slice(group.index * each, (group.index + 1) * each))
        results = [embryo.update(own) for _ in range(5)]
        moments = torch.cat(list(embryo.averaged_state())).numpy()
        priorities = results[-1].priorities
        assert priorities is not None
        return Outcome(parameters(embryo), moments, sum(results), len(results)), priorities.copy()

    alone, priorities = learn(ALONE)
    outcomes, _ = in_step(learners, learn)
    assert_same([outcome for outcome, _ in outcomes])
    assert outcomes[0][0].uses == alone.uses == 5 * 24
    np.testing.assert_allclose(outcomes[0][0].parameters, alone.parameters, rtol=1e-4, atol=1e-6)
    shares = np.concatenate([share for _, share in outcomes])
    np.testing.assert_allclose(shares, priorities, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [RolloutEmbryo, ReplayEmbryo])
def test_an_update_rule_that_cannot_share_an_update_says_so(kind: type[Embryo]) -> None:
    class OwnRule(kind):  # type: ignore[misc, valid-type]
        """A user's."""

    OwnRule.__abstractmethods__ = frozenset()
    with pytest.raises(AlgorithmError, match=r"OwnRule does not average gradients.*one learner a group"):
        OwnRule().join(ALONE)
    assert OwnRule().averaged_state() == ()
