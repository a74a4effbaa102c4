from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.in_step import in_step
from algos.team_episodes import random_batch, team_spaces
from algos.teams import bury, cut_off
from algos.training import flat_of, parameters

from tianji_algos.batch import SequenceBatch
from tianji_algos.core import AllReduce, Spaces, build_model
from tianji_algos.errors import (
    UnsupportedSpaceError,
)
from tianji_algos.models.settings import TeamQSettings
from tianji_algos.models.teams.q_network import NO_ACTION, TeamQ
from tianji_algos.qmix.qmix import QMIXEmbryo
from tianji_algos.qmix.settings import QMIXSettings

Floats = npt.NDArray[np.float32]

SPACES = team_spaces(agents=3, observation=4, actions=5, state=6, truncates=True)
MOST = 7
LENGTHS = (3, 7, 1, 5, 5)
TERMINATED = (True, False, True, True, False)
BUILDING = threading.Lock()
"""A model is built from torch's global random stream."""


def build(seed: int = 0, model: dict[str, Any] | None = None, **settings: Any) -> QMIXEmbryo:
    with BUILDING:
        network = build_model(TeamQ, SPACES, TeamQSettings(width=8, **(model or {})), seed)
    assert isinstance(network, TeamQ)
    return QMIXEmbryo(SPACES, network, QMIXSettings(**({"learning_rate": 1e-2} | settings)), seed)


def make_batch(seed: int = 0, *, deaths: bool = False, cuts: bool = False) -> SequenceBatch:
    """With deaths, agents have died one after another by times that differ from episode to episode.

    With cuts, those that would have died were cut off.
    """
    batch = random_batch(SPACES, LENGTHS, TERMINATED, MOST, seed)
    if deaths:
        died = np.array([[2, 9, 9], [9, 0, 4], [9, 1, 9], [0, 9, 3], [9, 5, 2]])
        dead = np.arange(MOST + 1)[:, None] >= died[:, None]
        cut = np.zeros_like(dead)
        if cuts:
            cut[:, 1:] = dead[:, 1:] & ~dead[:, :-1]
        bury(batch.observation, dead & ~cut)
        cut_off(batch.observation, cut)
        batch.observation["reward"][:, 1:][dead[:, :-1]] = 0.0
        batch.fields["action"][dead[:, :-1]] = 0
    return batch


def share(batch: SequenceBatch, episodes: slice) -> SequenceBatch:
    return SequenceBatch(
        batch.observation[episodes],
        {name: rows[episodes] for name, rows in batch.fields.items()},
        batch.reward[episodes],
        batch.length[episodes],
        batch.terminated[episodes],
    )


def q_of(model: TeamQ, batch: SequenceBatch, episode: int) -> torch.Tensor:
    """Q ``[length + 1, M, A]`` of one episode by itself."""
    length = int(batch.length[episode])
    seen = batch.observation[episode, : length + 1]
    action = batch.fields["action"][episode, :length].astype(np.int64)
    last = np.concatenate((np.full((1, 3), NO_ACTION), action))
    q: torch.Tensor = model(torch.from_numpy(model.rows()(seen, last)), [1] * (length + 1))
    return q


def reference_loss(embryo: QMIXEmbryo, target: TeamQ, batch: SequenceBatch) -> float:
    """Go through episodes one by one and step by step, as the paper writes it."""
    settings, total, count = embryo.settings, 0.0, 0.0
    mixer, agents = embryo.model.settings.mixer, torch.arange(3)
    own = mixer == "none" and settings.rewards == "individual"
    cuts = torch.from_numpy(batch.observation["truncated"].copy())
    cuts = cuts if mixer == "none" else cuts.any(dim=2, keepdim=True)
    for e, length in enumerate(batch.length.tolist()):
        seen = batch.observation[e]
        with torch.no_grad():
            online, later = q_of(embryo.model, batch, e), q_of(target, batch, e)
        follows = torch.empty(0)
        for t in reversed(range(length)):
            action = torch.from_numpy(batch.fields["action"][e, t].astype(np.int64))
            state = torch.from_numpy(seen["state"][t : t + 2].copy())
            available = torch.from_numpy(seen["available"][t + 1].copy())
            chooser = online[t + 1] if settings.double else later[t + 1]
            best = chooser.masked_fill(~available, -torch.inf).argmax(dim=1)
            with torch.no_grad():
                value = embryo.model.mixer(online[t, agents, action][None], state[:1])[0]
                bootstrap = target.mixer(later[t + 1, agents, best][None], state[1:])[0]
            reward = torch.from_numpy(seen["reward"][t + 1].copy()) if own else float(batch.reward[e, t])
            lived, lives = ~cuts[e, t], torch.ones(1)
            if own:
                lived = torch.from_numpy(seen["alive"][t].copy())
                lives = torch.from_numpy(seen["alive"][t + 1] | seen["truncated"][t + 1])
            is_last = t == length - 1
            share = settings.td_lambda * ~cuts[e, t + 1]
            to_come = bootstrap if is_last else (1.0 - share) * bootstrap + share * follows
            goes_on = lives * float(not (is_last and batch.terminated[e]))
            follows = settings.reward_scale * reward + settings.gamma * goes_on * to_come
            total += float((lived * (value - follows) ** 2).sum()) / 2.0
            count += float(lived.expand_as(value).sum())
    return total / count


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ({}, {}),
        ({}, {"double": False, "reward_scale": 0.5}),
        ({"mixer": "vdn"}, {}),
        ({"mixer": "none"}, {}),
        ({"mixer": "none"}, {"rewards": "team"}),
        ({}, {"td_lambda": 0.7}),
        ({"mixer": "none"}, {"td_lambda": 0.7}),
        ({"share_parameters": False}, {}),
        ({"agent_id": False, "last_action": False}, {}),
    ],
)
@pytest.mark.parametrize("ends", [{}, {"deaths": True}, {"deaths": True, "cuts": True}])
def test_the_loss_is_the_naive_one(
    model: dict[str, Any], settings: dict[str, Any], ends: dict[str, bool]
) -> None:
    embryo, twin = build(model=model, **settings), build(model=model)
    for seed in range(3):  # from the second update on the networks differ
        batch = make_batch(seed, **ends)
        expected = reference_loss(embryo, twin.model, batch)
        assert embryo.update(batch).uses == sum(LENGTHS)
        assert embryo.metrics()["loss"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("mixer", ["qmix", "vdn", "none"])
@pytest.mark.parametrize("td_lambda", [0.0, 0.7])
def test_what_follows_an_episodes_end_changes_nothing(mixer: str, td_lambda: float) -> None:
    clean, dirty = (build(model={"mixer": mixer}, td_lambda=td_lambda) for _ in range(2))
    for seed in range(2):
        clean.update(make_batch(seed))
        batch = make_batch(seed)
        for e, length in enumerate(LENGTHS):
            batch.observation["observation"][e, length + 1 :] = np.nan
            batch.observation["state"][e, length + 1 :] = np.nan
            batch.observation["reward"][e, length + 1 :] = np.nan
            batch.observation["available"][e, length + 1 :] = False
            batch.reward[e, length:] = np.nan
            batch.fields["action"][e, length:] = 255
        dirty.update(batch)
        np.testing.assert_array_equal(parameters(clean), parameters(dirty))


@pytest.mark.parametrize("td_lambda", [0.0, 0.7])
def test_a_terminated_episodes_last_observation_is_worth_nothing_and_a_cut_ones_something(
    td_lambda: float,
) -> None:
    def after(episode: int) -> Floats:
        embryo, batch = build(model={"mixer": "none"}, td_lambda=td_lambda, rewards="team"), make_batch()
        batch.observation["observation"][episode, LENGTHS[episode] :] += 1.0
        embryo.update(batch)
        return parameters(embryo)

    plain = build(model={"mixer": "none"}, td_lambda=td_lambda, rewards="team")
    plain.update(make_batch())
    for episode, terminated in enumerate(TERMINATED):
        assert np.array_equal(after(episode), parameters(plain)) == terminated


@pytest.mark.parametrize("mixer", ["qmix", "vdn"])
@pytest.mark.parametrize("cuts", [False, True])
def test_from_the_step_after_an_agent_was_cut_off_a_team_learns_nothing(mixer: str, cuts: bool) -> None:
    """It is rewarded without the agent; after a death that is as it should be."""

    def after(reward: float) -> Floats:
        embryo, batch = build(model={"mixer": mixer}, td_lambda=0.7), make_batch()
        dead = np.zeros((*batch.observation.shape, 3), np.bool_)
        dead[1, 3:, 2] = True
        cut = dead & cuts
        cut[1, 4:] = False
        bury(batch.observation, dead & ~cut)
        cut_off(batch.observation, cut)
        batch.reward[1, 3] = reward
        embryo.update(batch)
        return parameters(embryo)

    assert np.array_equal(after(1.0), after(-100.0)) == cuts


def test_an_unavailable_action_is_nothing_to_hope_for() -> None:
    plain, tempted = (build(model={"mixer": "vdn"}, double=False) for _ in range(2))
    batch = make_batch()
    batch.observation["available"][:, 1:] = [False, True, True, True, True]
    batch.fields["action"][...] = 1
    for embryo in (plain, tempted):
        bias = embryo._target.model.get_parameter("head.biases.0")
        with torch.no_grad():
            bias[..., 0] = 0.0 if embryo is plain else 1000.0
        embryo.update(batch)
    np.testing.assert_array_equal(parameters(plain), parameters(tempted))


def test_the_state_reaches_the_mixer_alone() -> None:
    mixed, summed = build(), build(model={"mixer": "vdn"})
    others = build(), build(model={"mixer": "vdn"})
    batch = make_batch()
    for embryo in (mixed, summed):
        embryo.update(batch)
    batch.observation["state"] += 1.0
    for embryo in others:
        embryo.update(batch)
    assert (parameters(mixed) != parameters(others[0])).any()
    np.testing.assert_array_equal(parameters(summed), parameters(others[1]))


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_learning_one_batch_by_heart_lowers_its_loss(optimizer: str) -> None:
    embryo = build(optimizer=optimizer, learning_rate=1e-2, gamma=0.0)
    losses = []
    for _ in range(100):
        embryo.update(make_batch())
        losses.append(embryo.metrics()["loss"])
    assert losses[-1] < 0.5 * losses[0]


def test_the_target_networks_are_copied_every_so_many_updates() -> None:
    embryo = build(target_every=3)
    for update in range(1, 8):
        embryo.update(make_batch(update))
        tensors, _ = embryo.state()
        same = all(
            torch.equal(t, tensors[f"model.{n[7:]}"]) for n, t in tensors.items() if n[:7] == "target."
        )
        assert same == (update % 3 == 0)


def test_the_target_networks_follow_softly() -> None:
    embryo = build(target_update="soft", target_tau=0.25)
    expected = parameters(embryo)
    for update in range(3):
        embryo.update(make_batch(update))
        expected = 0.75 * expected + 0.25 * parameters(embryo)
        np.testing.assert_allclose(flat_of(embryo._target.model), expected, rtol=1e-4, atol=1e-6)


def test_an_agent_that_learns_for_itself_learns_nothing_while_it_is_dead() -> None:
    def gradient(batch: SequenceBatch) -> torch.Tensor:
        embryo = build(model={"mixer": "none", "share_parameters": False}, max_grad_norm=None)
        embryo.update(batch)
        found = embryo.model.get_parameter("encoder.weights.0").grad
        assert found is not None
        return found

    batch = make_batch()
    dead = np.zeros((*batch.observation.shape, 3), np.bool_)
    dead[:, :, 1] = True
    bury(batch.observation, dead)
    batch.fields["action"][:, :, 1] = 0
    alone = gradient(make_batch())
    with_dead = gradient(batch)
    assert alone[1].abs().max() > 0.0
    assert with_dead[1].abs().max() == 0.0
    # Each of the living is one of two now, and not of three.
    torch.testing.assert_close(with_dead[[0, 2]], 1.5 * alone[[0, 2]])


@pytest.mark.parametrize(("mixer", "deaths"), [("qmix", False), ("none", False), ("none", True)])
def test_learners_with_shares_of_a_batch_learn_what_one_would_of_all(mixer: str, deaths: bool) -> None:
    batches = [make_batch(seed, deaths=deaths) for seed in range(3)]
    cuts = (0, 2, 5)  # Of four steps and of seventeen: every step counts alike, wherever it is learnt from.

    def learn(embryo: QMIXEmbryo, own: slice) -> tuple[Floats, list[int], list[float]]:
        used, losses = [], []
        for batch in batches:
            used.append(embryo.update(share(batch, own)).uses)
            losses.append(embryo.metrics()["loss"])
        return parameters(embryo), used, losses

    def learn_together(group: AllReduce) -> tuple[Floats, list[int], list[float]]:
        embryo = build(model={"mixer": mixer}, td_lambda=0.5)
        embryo.join(group)
        return learn(embryo, slice(*cuts[group.index : group.index + 2]))

    alone = learn(build(model={"mixer": mixer}, td_lambda=0.5), slice(None))
    (first, second), _ = in_step(2, learn_together)
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_allclose(first[0], alone[0], rtol=1e-3, atol=1e-4)
    assert first[1] == second[1] == alone[1] == [sum(LENGTHS)] * 3
    for batch, *losses in zip(batches, first[2], second[2], alone[2], strict=True):
        own = [counted(share(batch, slice(*cuts[k : k + 2])), deaths) for k in range(2)]
        assert np.average(losses[:2], weights=own) == pytest.approx(losses[2], rel=1e-3)


def counted(batch: SequenceBatch, deaths: bool) -> int:
    """Steps of living agents, or steps."""
    steps = np.arange(MOST) < batch.length[:, None]
    return int(batch.observation["alive"][:, :-1][steps].sum()) if deaths else int(steps.sum())


def test_a_batch_is_not_written_to() -> None:
    batch = make_batch()
    for field in dataclasses.fields(batch):
        found = getattr(batch, field.name)
        for array in found.values() if field.name == "fields" else (found,):
            array.setflags(write=False)
    build(td_lambda=0.5).update(batch)


def test_what_does_not_fit_is_refused(cartpole_spaces: Spaces) -> None:
    with pytest.raises(UnsupportedSpaceError, match="single agent"):
        QMIXEmbryo(cartpole_spaces, build().model, QMIXSettings(), 0)
