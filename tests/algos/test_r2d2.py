"""R2D2 on made-up unrolls: its TD errors one step after the other, its agent, and its mistakes."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.in_step import in_step
from algos.training import parameters
from algos.unroll_batches import BURN_IN, LEARNT, SPACES, UNROLLS, build, make_batch
from hypothesis import given
from hypothesis import strategies as st

from tianji_algos.batch import UnrollBatch
from tianji_algos.core import AllReduce, Spaces, build_model
from tianji_algos.errors import UnsuitableModelError, UnsupportedSpaceError
from tianji_algos.models.mlp import MLPQ
from tianji_algos.models.recurrent import GatedQ
from tianji_algos.models.settings import MLPQSettings, RecurrentQSettings
from tianji_algos.normalization import Normalization, normalizer_of
from tianji_algos.r2d2.r2d2 import R2D2Agent, R2D2Embryo, rescale, restore
from tianji_algos.r2d2.settings import R2D2AgentSettings, R2D2Settings

Floats = npt.NDArray[np.float32]


def values_step_by_step(model: GatedQ, batch: UnrollBatch, one: int) -> Floats:
    """Action values of every row of an unroll; the state is forgotten after a step that is no experience."""
    state = torch.from_numpy(batch.fields["state"][one : one + 1])
    rows, nowhere = [], torch.zeros(1, 1, dtype=torch.bool)
    with torch.no_grad():
        for t, seen in enumerate(torch.from_numpy(batch.observation[one])):
            if t and not batch.mask[one, t - 1]:
                state = torch.zeros_like(state)
            q, state = model.unroll(seen[None, None], nowhere, state)
            rows.append(q[0].numpy())
    return np.stack(rows)


def reference_errors(embryo: R2D2Embryo, target: GatedQ, batch: UnrollBatch, one: int) -> dict[int, float]:
    """Absolute TD errors of an unroll's learnt steps, as the paper writes them."""
    settings = embryo.settings
    q, target_q = (values_step_by_step(model, batch, one) for model in (embryo.model, target))
    steps, errors = len(batch.reward[one]), {}
    for t in range(settings.burn_in, steps):
        if not batch.mask[one, t]:
            continue
        aim, discount, now = 0.0, 1.0, t
        for _ in range(settings.n_step):
            aim += discount * settings.reward_scale * batch.reward[one, now]
            discount *= 0.0 if batch.terminated[one, now] else settings.gamma
            now += 1
            if now == steps or not batch.mask[one, now]:
                break
        best = int((q if settings.double else target_q)[now].argmax())
        following = torch.tensor(target_q[now, best], dtype=torch.float64)
        if settings.value_rescaling:
            aim = float(rescale(aim + discount * restore(following)))
        else:
            aim += discount * float(following)
        errors[t] = abs(float(q[t, int(batch.fields["action"][one, t])]) - aim)
    return errors


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"double": False, "n_step": 1},
        {"value_rescaling": True, "reward_scale": 30.0},
        {"n_step": 20, "priority_mix": 0.5},
        {"burn_in": 0},
    ],
)
def test_priorities_are_of_td_errors_one_step_after_the_other(core: str, settings: dict[str, Any]) -> None:
    embryo = build(core, **settings)
    twin = build(core).model
    assert isinstance(twin, GatedQ)
    mix, width = embryo.settings.priority_mix, embryo.model.state_size
    for seed in range(3):  # from the second update on the networks differ
        batch = make_batch(seed, embryo.settings.burn_in, width)
        expected = []
        for one in range(UNROLLS):
            errors = list(reference_errors(embryo, twin, batch, one).values())
            expected.append(mix * max(errors) + (1 - mix) * float(np.mean(errors)))
        result = embryo.update(batch)
        assert result.uses == batch.mask[:, embryo.settings.burn_in :].sum()
        np.testing.assert_allclose(result.priorities, expected, rtol=2e-3, atol=1e-4)


def test_the_loss_is_the_weighted_mean_over_all_steps_that_are_learnt_from() -> None:
    embryo = build(loss="mse")
    twin = build().model
    assert isinstance(twin, GatedQ)
    batch = make_batch(4)
    total, number = 0.0, 0
    for one in range(UNROLLS):
        errors = reference_errors(embryo, twin, batch, one)
        total += float(batch.weight[one]) * sum(0.5 * error**2 for error in errors.values())
        number += len(errors)
    embryo.update(batch)
    assert embryo.metrics()["loss"] == pytest.approx(total / number, rel=1e-3)


def test_an_update_is_that_of_observations_normalised_by_what_was_drawn() -> None:
    asked = Normalization.of(R2D2Settings(normalize_observations=True), SPACES)
    ours, plain = build(asked=asked), build()
    drawn = []
    for seed in range(3):
        batch = make_batch(seed)
        shift, scale = np.array([-500, 0, 3, 700]), np.array([0.1, 1.0, 30.0, 300.0])
        far = (batch.observation * scale + shift).astype(np.float32)
        drawn.append(far.reshape(-1, 4).astype(np.float64))
        so_far = np.concatenate(drawn)
        seen = ((far - so_far.mean(axis=0)) / so_far.std(axis=0)).astype(np.float32)
        found = ours.update(dataclasses.replace(batch, observation=far))
        expected = plain.update(dataclasses.replace(batch, observation=seen))
        np.testing.assert_allclose(found.priorities, expected.priorities, rtol=1e-2, atol=1e-3)
    normalizer = normalizer_of(ours.model)
    assert normalizer is not None
    learnt = parameters(ours)[: -normalizer.size]
    np.testing.assert_allclose(learnt, parameters(plain), rtol=2e-2, atol=2e-3)
    assert np.abs(learnt - parameters(build())).max() > 5e-3


def test_the_burn_in_is_not_learnt_from() -> None:
    one, other = build(), build()
    batch = make_batch(1)
    one.update(batch)
    batch.reward[:, :BURN_IN] += 100.0
    batch.fields["action"][:, :BURN_IN] = 0
    other.update(batch)
    np.testing.assert_array_equal(parameters(one), parameters(other))


def test_what_was_remembered_matters_until_an_episode_ends() -> None:
    batch = make_batch(1)
    batch.mask[:] = True
    batch.terminated[:] = False
    before = build().update(batch).priorities
    batch.fields["state"][:] += 1.0
    after = build().update(batch).priorities
    assert before is not None
    assert after is not None
    assert (before != after).all()
    batch.mask[:, BURN_IN - 1] = False
    forgets = build().update(batch).priorities
    batch.fields["state"][:] = 0.0
    np.testing.assert_array_equal(build().update(batch).priorities, forgets)


@given(st.floats(-1e4, 1e4))
def test_rescaled_values_come_back(value: float) -> None:
    there = rescale(torch.tensor(value, dtype=torch.float64))
    assert float(restore(there)) == pytest.approx(value, rel=1e-6, abs=1e-6)
    assert abs(float(there)) <= abs(value) + 1e-12


def share(whole: UnrollBatch, index: int) -> UnrollBatch:
    """One of two halves."""
    names = ("observation", "reward", "terminated", "mask", "weight")
    mine = slice(index * UNROLLS // 2, (index + 1) * UNROLLS // 2)
    fields = {name: field[mine] for name, field in whole.fields.items()}
    return UnrollBatch(fields=fields, **{name: getattr(whole, name)[mine] for name in names})


@pytest.mark.parametrize("nothing", [False, True], ids=["both", "one has nothing to learn from"])
def test_learners_on_shares_make_the_update_of_one_on_all(nothing: bool) -> None:
    wholes = [make_batch(seed) for seed in range(2)]
    if nothing:
        wholes[1].mask[: UNROLLS // 2, BURN_IN:] = False
    alone = build()
    uses = [alone.update(whole).uses for whole in wholes]
    losses = alone.metrics()

    def learn(group: AllReduce) -> tuple[list[int], Floats]:
        embryo = embryos[group.index]
        embryo.join(group)
        results = [embryo.update(share(whole, group.index)) for whole in wholes]
        return [result.uses for result in results], parameters(embryo)

    embryos = [build(), build()]
    (one, other), _ = in_step(2, learn)
    assert one[0] == other[0] == uses
    np.testing.assert_array_equal(one[1], other[1])
    np.testing.assert_allclose(one[1], parameters(alone), rtol=1e-4, atol=1e-5)
    found = [embryo.metrics() for embryo in embryos]
    assert np.isfinite([list(said.values()) for said in found]).all()
    if not nothing:  # Each says the mean of its own steps, and they have about as many.
        mean = np.mean([said["loss"] for said in found])
        assert mean == pytest.approx(losses["loss"], rel=0.2)


def test_it_learns_what_was_seen_long_before() -> None:
    """The reward is for naming what was seen in the first of eight observations, and in none after it."""
    embryo = build(core="gru", network={"width": 16, "hidden": 16}, burn_in=0, gamma=0.0, n_step=1)
    rng = np.random.default_rng(0)
    for _ in range(300):
        batch = make_batch(0, 0, 16, 32)
        cue, action = rng.integers(3, size=32), rng.integers(3, size=(32, LEARNT))
        batch.observation[:] = 0.0
        batch.observation[np.arange(32), 0, cue] = 1.0
        batch.mask[:], batch.terminated[:], batch.fields["state"][:] = True, False, 0.0
        batch.fields["action"][:], batch.weight[:] = action, 1.0
        batch.reward[:] = action == cue[:, None]
        embryo.update(batch)
    q, _ = embryo.model.unroll(
        torch.from_numpy(batch.observation.swapaxes(0, 1).copy()),
        torch.zeros(LEARNT + 1, 32, dtype=torch.bool),
        torch.zeros(32, 16),
    )
    chosen = q.view(LEARNT + 1, 32, 3)[LEARNT - 1].argmax(dim=1).numpy()
    np.testing.assert_array_equal(chosen, cue)


def test_actions_may_be_many() -> None:
    spaces = Spaces(SPACES.observation, gym.spaces.Discrete(300))
    model = build_model(GatedQ, spaces, RecurrentQSettings(hidden=5, width=4), 3)
    assert isinstance(model, GatedQ)
    embryo = R2D2Embryo(spaces, model, R2D2Settings(burn_in=BURN_IN, unroll_steps=LEARNT), 0)
    batch = make_batch()
    action = np.full(batch.reward.shape, 299, np.uint16)
    embryo.update(dataclasses.replace(batch, fields={**batch.fields, "action": action}))
    head = embryo.model.get_parameter("actions.0.bias").grad
    assert head is not None
    assert head[299] != 0.0
    assert not head[:299].any()


def agent(num_envs: int = 2) -> R2D2Agent:
    model = build_model(GatedQ, SPACES, RecurrentQSettings(hidden=5, width=4), 3)
    assert isinstance(model, GatedQ)
    settings = R2D2AgentSettings(epsilon_start=0.0, epsilon_end=0.0)
    return R2D2Agent(SPACES, model, settings, num_envs, 0)


def test_the_agent_records_what_is_remembered_and_forgets_where_an_episode_begins() -> None:
    acting = agent()
    state, into = np.ones((1, 2, 8), np.float32), {"action": np.zeros(2, np.uint8)}
    acting.begin({"state": state})
    assert not state.any()
    acting.act(np.ones((2, 4), np.float32), into)
    acting.begin_episodes(np.array([True, False]))
    acting.begin({"state": state})
    assert not state[0, 0].any()
    assert state[0, 1].all()


def test_a_network_that_forgets_is_refused() -> None:
    model = build_model(MLPQ, SPACES, MLPQSettings(), 0)
    with pytest.raises(UnsuitableModelError, match="MLPQ is no RecurrentQNetwork, which R2D2 works with"):
        R2D2Embryo(SPACES, model, R2D2Settings(), 0)  # type: ignore[arg-type]
    with pytest.raises(UnsuitableModelError, match="'recurrent_q' would be right"):
        R2D2Agent(SPACES, model, R2D2AgentSettings(), 1, 0)


def test_continuous_actions_are_refused() -> None:
    spaces = Spaces(SPACES.observation, gym.spaces.Box(-1, 1, (2,)))
    with pytest.raises(UnsupportedSpaceError, match="let the environment number its actions"):
        build_model(GatedQ, spaces, RecurrentQSettings(), 0)
