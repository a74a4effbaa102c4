from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.maddpg_team import (
    CONTINUOUS,
    CONTINUOUS_CUT,
    CUT,
    DISCRETE,
    MODELS,
    build_embryo,
    make_batch,
    only_certain,
)
from algos.training import parameters
from pydantic import ValidationError

from tianji_algos.batch import Batch
from tianji_algos.core import Spaces
from tianji_algos.maddpg.maddpg import MADDPGEmbryo
from tianji_algos.maddpg.settings import MADDPGSettings
from tianji_algos.models.teams.deterministic import TeamDeterministic
from tianji_algos.team import cut_off

Floats = npt.NDArray[np.float32]

ROWS = 12
BOTH = pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
ALL_FOUR = pytest.mark.parametrize(
    "spaces",
    [DISCRETE, CONTINUOUS, CUT, CONTINUOUS_CUT],
    ids=["discrete", "continuous", "cut off one by one", "continuous, cut off one by one"],
)
EACH_MODEL = pytest.mark.parametrize("model", MODELS)


def done(embryo: MADDPGEmbryo, batch: Batch) -> torch.Tensor:
    """The recorded actions as critics see them: ``[B, M * A]``."""
    recorded = embryo._actions.done(torch.from_numpy(batch.fields["action"]))
    alive = torch.from_numpy(batch.observation["alive"]).T[..., None]
    return (recorded * alive).transpose(0, 1).flatten(1)


def naive_aims(embryo: MADDPGEmbryo, target: TeamDeterministic, batch: Batch) -> Floats:
    """The right values, ``[M, B]`` or ``[1, B]``: sample by sample, as the paper writes it."""
    after, scale = batch.next_observation, embryo.settings.reward_scale
    aims = np.zeros((1 if target.has_team_critic else 3, len(after)), np.float32)
    for b in range(len(after)):
        with torch.no_grad():
            outputs = target.act(torch.from_numpy(after["observation"][b])[:, None])
            available = None if not target.team.discrete else torch.from_numpy(after["available"][b])[:, None]
            chosen = embryo._actions.chosen(outputs, available)[:, 0]
            goes_on = after["alive"][b] | cut_off(after[b : b + 1])[0]
            chosen = chosen * torch.from_numpy(goes_on)[:, None]
            state = torch.from_numpy(target.team.state_of(after[b : b + 1]))
            values = target.value(state, chosen.reshape(1, -1))[:, 0].numpy()
        if target.has_team_critic:
            aims[0, b] = scale * batch.reward[b] + batch.discount[b] * values[0]
        else:
            aims[:, b] = scale * after["reward"][b] + batch.discount[b] * goes_on * values
    return aims


def counted(model: TeamDeterministic, batch: Batch) -> npt.NDArray[np.bool_]:
    """Whose errors count, ``[M, B]`` or ``[1, B]``."""
    alive: npt.NDArray[np.bool_] = batch.observation["alive"].T
    return ~cut_off(batch.observation).T.any(axis=0, keepdims=True) if model.has_team_critic else alive


@ALL_FOUR
@EACH_MODEL
def test_errors_are_the_naive_ones(spaces: Spaces, model: dict[str, Any]) -> None:
    embryo = build_embryo(
        spaces, model, reward_scale=0.5, learning_rate=1e-2, actor_learning_rate=0.1, target_tau=0.1
    )
    target = copy.deepcopy(embryo.model)
    for seed in range(5):  # from the second update on the networks differ
        batch = only_certain(make_batch(spaces, ROWS, seed))
        with torch.no_grad():
            state = torch.from_numpy(embryo.model.team.state_of(batch.observation))
            errors = embryo.model.value(state, done(embryo, batch)).numpy()
        errors -= naive_aims(embryo, target, batch)
        counts = counted(embryo.model, batch)
        expected = [np.abs(e[c]).mean() if c.any() else 0.0 for e, c in zip(errors.T, counts.T, strict=True)]
        before = target.flat_parameters().numpy()
        result = embryo.update(batch)
        assert result.uses == ROWS
        np.testing.assert_allclose(result.priorities, expected, rtol=1e-3, atol=1e-5)
        target.read_parameters(before + np.float32(0.1) * (parameters(embryo) - before))


@ALL_FOUR
@EACH_MODEL
def test_the_critics_gradient_is_the_naive_one(spaces: Spaces, model: dict[str, Any]) -> None:
    embryo = build_embryo(spaces, model, max_grad_norm=None)
    batch = only_certain(make_batch(spaces))
    own = copy.deepcopy(embryo.model)
    values = own.value(torch.from_numpy(own.team.state_of(batch.observation)), done(embryo, batch))
    errors = values - torch.from_numpy(naive_aims(embryo, own, batch))
    counts = torch.from_numpy(counted(own, batch) * batch.weight)
    loss = (0.5 * counts * errors**2).sum() / ROWS
    wanted = torch.autograd.grad(loss, list(own.critics.parameters()))
    embryo.update(batch)
    found = embryo._gradient[own.actor_parameter_count :]
    torch.testing.assert_close(found, torch.cat([g.reshape(-1) for g in wanted]), rtol=1e-4, atol=1e-6)


@BOTH
@EACH_MODEL
def test_each_loss_moves_its_own_networks_alone(spaces: Spaces, model: dict[str, Any]) -> None:
    """A change of one loss changes nothing in the gradient of the other's networks."""
    batch = make_batch(spaces)
    moved = {}
    for name, settings in (
        ("both", {}),
        ("other rewards", {"reward_scale": 7.0}),
        ("other penalty", {"logits_penalty": 0.5}),
    ):
        embryo = build_embryo(spaces, model, max_grad_norm=None, **settings)
        before, actors = parameters(embryo), embryo.model.actor_parameter_count
        embryo.update(batch)
        after = parameters(embryo)
        assert (after[:actors] != before[:actors]).any()
        assert (after[actors:] != before[actors:]).any()
        moved[name] = np.split(embryo._gradient.numpy().copy(), [actors])
    np.testing.assert_array_equal(moved["other rewards"][0], moved["both"][0])
    assert (moved["other rewards"][1] != moved["both"][1]).any()
    np.testing.assert_array_equal(moved["other penalty"][1], moved["both"][1])
    assert (moved["other penalty"][0] != moved["both"][0]).any()


@EACH_MODEL
def test_the_actors_gradient_is_the_naive_one(model: dict[str, Any]) -> None:
    """Agent by agent and sample by sample: the others do what they did."""
    embryo = build_embryo(CONTINUOUS, model, max_grad_norm=None, logits_penalty=0.0)
    batch = make_batch(CONTINUOUS, alive=0.7)
    own = copy.deepcopy(embryo.model)
    seen, loss = batch.observation, torch.zeros(())
    state = torch.from_numpy(own.team.state_of(seen))
    recorded = done(embryo, batch).reshape(ROWS, 3, -1)
    for b in range(ROWS):
        outputs = own.act(torch.from_numpy(seen["observation"][b])[:, None])
        chosen = embryo._actions.chosen(outputs, None)[:, 0]
        for m in np.flatnonzero(seen["alive"][b]):
            joint = recorded[b].clone()
            joint[m] = chosen[m]
            values = own.value(state[b : b + 1], joint.reshape(1, -1))
            loss = loss - values[min(m, len(values) - 1), 0] * float(batch.weight[b])
    wanted = torch.autograd.grad(loss / ROWS, list(own.actors.parameters()))
    embryo.update(batch)
    found = embryo._gradient[: own.actor_parameter_count]
    torch.testing.assert_close(found, torch.cat([g.reshape(-1) for g in wanted]), rtol=1e-4, atol=1e-7)
    assert found.abs().sum() > 0.0


@BOTH
def test_who_is_not_alive_is_no_sample(spaces: Spaces) -> None:
    batch = make_batch(spaces)
    batch.observation["alive"][:, 1] = batch.next_observation["alive"][:, 1] = False
    undisturbed, disturbed = build_embryo(spaces), build_embryo(spaces)
    before = undisturbed.state()[0]
    undisturbed.update(batch)
    for name, tensor in undisturbed.state()[0].items():  # neither actor nor critic of its own moves
        if name.startswith("model."):
            assert torch.equal(tensor[1], before[name][1]), name
            assert (tensor[0] != before[name][0]).any(), name
    batch.next_observation["reward"][:, 1] = 1e3
    batch.fields["action"][:, 1] = 0 if spaces is DISCRETE else 0.25
    disturbed.update(batch)
    np.testing.assert_array_equal(parameters(disturbed), parameters(undisturbed))


def test_what_follows_an_agents_death_is_worth_nothing_to_it() -> None:
    batch = make_batch(DISCRETE, alive=1.0)
    batch.next_observation["alive"][:, 0] = False
    batch.discount[:] = 0.9
    other = copy.deepcopy(batch)
    other.discount[:] = 0.5
    errors = []
    for each in (batch, other):
        embryo = build_embryo(DISCRETE)
        embryo.update(only_certain(each))
        errors.append(embryo._gradient[embryo.model.actor_parameter_count :].clone())
    weight = embryo.model.critics.weights[0].numel()
    first, second = (gradient[:weight].reshape(3, -1) for gradient in errors)
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])


@pytest.mark.parametrize("rewards", ["individual", "team"])
def test_an_agent_that_was_cut_off_is_worth_what_it_would_go_on_to_do(rewards: str) -> None:
    embryo, batch = build_embryo(CUT, {"rewards": rewards}), make_batch(CUT, rows=1)
    after = batch.next_observation
    after["alive"], after["truncated"] = [True, False, True], [False, True, False]
    after["observation"] = np.arange(9).reshape(3, 3)
    after["available"] = [True, False, False, False]
    after["reward"], batch.reward[:], batch.discount[:] = [1.0, 20.0, 300.0], 321.0, 0.9
    first_of_each = torch.tensor([[1.0, 0.0, 0.0, 0.0] * 3])
    with torch.no_grad():
        value = embryo.model.value(torch.arange(9.0)[None], first_of_each)[:, 0]
    paid = [321.0] if rewards == "team" else [1.0, 20.0, 300.0]
    torch.testing.assert_close(embryo._targets(batch)[:, 0], torch.tensor(paid) + 0.9 * value)


@EACH_MODEL
def test_samples_after_which_an_episode_terminated_are_worth_their_reward(model: dict[str, Any]) -> None:
    batch = make_batch(DISCRETE)
    batch.discount[:] = 0.0
    embryo, disturbed = build_embryo(DISCRETE, model), build_embryo(DISCRETE, model)
    embryo.update(batch)
    batch.next_observation["observation"] = 1e3
    disturbed.update(batch)
    np.testing.assert_array_equal(parameters(embryo), parameters(disturbed))


@pytest.mark.parametrize("rewards", ["individual", "team"])
def test_critics_learn_from_the_rewards_of_the_settings(rewards: str) -> None:
    batch = make_batch(DISCRETE)
    changed = {
        "individual": dataclasses.replace(batch, reward=batch.reward + 1.0),
        "team": dataclasses.replace(batch, next_observation=batch.next_observation.copy()),
    }
    changed["team"].next_observation["reward"] += 1.0
    for name, other in changed.items():
        first, second = (build_embryo(DISCRETE, {"rewards": rewards}) for _ in range(2))
        priorities = first.update(batch).priorities, second.update(other).priorities
        assert np.array_equal(*priorities) == (name == rewards)


def test_weights_count_a_sample_as_often() -> None:
    batch = only_certain(make_batch(DISCRETE, rows=2))
    which = [0, 0, 1]
    twice = Batch(
        observation=batch.observation[which],
        fields={"action": batch.fields["action"][which]},
        reward=batch.reward[which],
        next_observation=batch.next_observation[which],
        discount=batch.discount[which],
        weight=np.ones(3, np.float32),
    )
    once = dataclasses.replace(batch, weight=np.array([2.0, 1.0], np.float32))
    gradients = []
    for each, rows in ((once, 2), (twice, 3)):
        embryo = build_embryo(DISCRETE, max_grad_norm=None)
        embryo.update(each)
        gradients.append(embryo._gradient * rows)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


def test_target_networks_follow_softly_with_every_update() -> None:
    embryo = build_embryo(DISCRETE, target_tau=0.25, learning_rate=1e-2)
    expected = parameters(embryo)
    for update in range(4):
        embryo.update(make_batch(DISCRETE, seed=update))
        expected = 0.75 * expected + 0.25 * parameters(embryo)
        tensors, _ = embryo.state()
        found = [t.reshape(-1).numpy() for name, t in tensors.items() if name.startswith("target.")]
        np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-4, atol=1e-6)


def test_entropy_is_of_those_who_live() -> None:
    batch = make_batch(DISCRETE, alive=1.0)
    batch.observation["available"] = np.arange(4) < 2
    batch.observation["alive"][: ROWS // 2] = False
    embryo = build_embryo(DISCRETE)
    embryo.update(batch)
    assert embryo.metrics()["entropy"] == pytest.approx(np.log(2.0), rel=1e-3)


def test_learning_rates_of_actors_and_critics_fall_together() -> None:
    settings = {"learning_rate": 1e-2, "learning_rate_schedule": "linear", "schedule_steps": 1000}
    rates = []
    for actors in (None, 1e-3):
        embryo = build_embryo(DISCRETE, actor_learning_rate=actors, **settings)
        for env_steps in (0, 750):
            embryo.schedule(env_steps)
            rates.append((embryo._actors_adam.learning_rate, embryo._optimizer.learning_rate))
    assert np.ravel(rates) == pytest.approx([1e-2, 1e-2, 2.5e-3, 2.5e-3, 1e-3, 1e-2, 2.5e-4, 2.5e-3])


def test_a_transition_has_one_step() -> None:
    with pytest.raises(ValidationError, match="n_step"):
        MADDPGSettings(n_step=3)
