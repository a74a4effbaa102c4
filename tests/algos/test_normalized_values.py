"""Normalised values: a network gives them in units of its targets, and returns are what they stand for."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from algos.fragments import Fragment, random_rollout
from algos.in_step import in_step
from algos.teams import random_team_rollout, team_spaces
from algos.training import flat_of, train
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tianji_algos.core import ALONE, AllReduce, Spaces, build_model
from tianji_algos.impala.impala import IMPALAEmbryo
from tianji_algos.impala.settings import IMPALASettings
from tianji_algos.mappo.mappo import MAPPOEmbryo
from tianji_algos.mappo.settings import MAPPOSettings
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.mlp import MLPActorCritic
from tianji_algos.models.settings import MLPActorCriticSettings, TeamActorCriticSettings
from tianji_algos.models.teams.actor_critic import TeamActorCritic
from tianji_algos.normalization import Moments, Normalization, ValueUnits, build_normalizer, normalizer_of
from tianji_algos.ppo.ppo import PPOAgent, PPOEmbryo
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings

CARTPOLE = Spaces(gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(2))
TEAM = team_spaces()
ENVS = 4
ONE: dict[str, Any] = {"rollout_steps": 64, "minibatch_size": 64, "epochs": 1, "learning_rate": 1e-3}
FAR: dict[str, Any] = {
    **ONE,
    "normalize_values": True,
    "reward_scale": 300.0,
    "normalize_advantage": "none",
    "clip_value": True,
}


def model_of(spaces: Spaces, settings: Any) -> ActorCritic:
    made = build_model(MLPActorCritic, spaces, MLPActorCriticSettings(hidden=(8,)), 0)
    assert isinstance(made, ActorCritic)
    build_normalizer(made, spaces, Normalization.of(settings, spaces, able=False))
    return made


def ppo(spaces: Spaces, **settings: Any) -> PPOEmbryo:
    chosen = PPOSettings(**(FAR | settings))
    return PPOEmbryo(spaces, model_of(spaces, chosen), chosen, 0)


def impala(spaces: Spaces, **settings: Any) -> IMPALAEmbryo:
    chosen = IMPALASettings(**(ONE | {"normalize_values": True, "reward_scale": 300.0} | settings))
    return IMPALAEmbryo(spaces, model_of(spaces, chosen), chosen, 0)


def mappo(spaces: Spaces, **settings: Any) -> MAPPOEmbryo:
    model = build_model(TeamActorCritic, spaces, TeamActorCriticSettings(hidden=(8,)), 0)
    assert isinstance(model, TeamActorCritic)
    chosen = MAPPOSettings(**(FAR | settings))
    build_normalizer(model, spaces, Normalization.of(chosen, spaces, able=False))
    return MAPPOEmbryo(spaces, model, chosen, 0)


def moments_of(model: Any) -> Moments:
    normalizer = normalizer_of(model)
    assert normalizer is not None
    assert normalizer.values is not None
    return normalizer.values


def units_of(model: Any) -> ValueUnits:
    normalizer = normalizer_of(model)
    assert normalizer is not None
    return ValueUnits.of(normalizer)


@given(
    arrays(np.float32, st.integers(1, 20), elements=st.floats(-1000, 1000, width=32)),
    st.floats(-1000, 1000),
    st.floats(0, 1e6),
)
def test_returns_come_back_from_what_they_are_normalised_to(
    returns: npt.NDArray[np.float32], mean: float, variance: float
) -> None:
    units = ValueUnits.from_moments(mean, variance)
    again = units.restored(units.normalized(returns))
    assert again.dtype == np.float32
    np.testing.assert_allclose(again, returns, rtol=1e-4, atol=1e-3)


@given(st.integers(0, 2**31), st.sampled_from(["single", "team", "individual"]))
def test_targets_values_and_advantages_of_a_rollout_stand_for_those_without(seed: int, kind: str) -> None:
    if kind == "single":
        fragments = random_rollout(CARTPOLE, seed)
        plain, normalised = (ppo(CARTPOLE, normalize_values=on) for on in (False, True))
    else:
        fragments = random_team_rollout(TEAM, seed)
        plain, normalised = (mappo(TEAM, normalize_values=on, rewards=kind) for on in (False, True))
    for _ in range(2):  # The statistics are others the second time.
        found, expected = (next(iter(embryo.minibatches(fragments))) for embryo in (normalised, plain))
        units = units_of(normalised.model)
        size = 1e-5 * np.abs(expected.target).max()
        for name in ("target", "value"):
            stands_for = units.restored(getattr(found, name))
            np.testing.assert_allclose(stands_for, getattr(expected, name), rtol=1e-4, atol=size)
        np.testing.assert_allclose(found.advantage * units.spread, expected.advantage, rtol=1e-4, atol=size)
        fragments = fragments[:1]


def test_the_statistics_are_those_of_the_targets_of_all_samples() -> None:
    plain, normalised = (mappo(TEAM, normalize_values=on) for on in (False, True))
    targets = []
    for seed in range(3):
        fragments = random_team_rollout(TEAM, seed)
        targets.append(next(iter(plain.minibatches(fragments))).target.copy())
        next(iter(normalised.minibatches(fragments)))
    moments, seen = moments_of(normalised.model), np.concatenate(targets).astype(np.float64)
    assert int(moments.count) == len(seen), "the dead and reset steps are no samples"
    np.testing.assert_allclose(moments.mean, [seen.mean()], rtol=1e-4)
    np.testing.assert_allclose(moments.variance, [seen.var()], rtol=1e-4)


def played(agent: PPOAgent, seed: int) -> Fragment:
    """A fragment with the values that an agent records."""
    [fragment] = random_rollout(CARTPOLE, seed, fragments=1, envs=ENVS)
    for t in range(len(fragment["reward"])):
        agent.act(fragment["observation"][t], {name: fragment[name][t] for name in RECORDED})
    agent.finish(fragment, fragment["observation"][-1])
    return fragment


RECORDED = ("action", "log_prob", "value")


def test_an_agent_records_returns_by_the_statistics_of_its_own_policy_however_old_it_is() -> None:
    embryo = ppo(CARTPOLE, normalize_observations=False, normalize_rewards=True, gamma=0.9)
    agent = PPOAgent(CARTPOLE, model_of(CARTPOLE, embryo.settings), PPOAgentSettings(), ENVS, 0)
    fragments = random_rollout(CARTPOLE, 1)
    for fragment in fragments:
        fragment["discounted_returns"] = np.ones((1, ENVS, 3), np.float32)
    bare = build_model(MLPActorCritic, CARTPOLE, MLPActorCriticSettings(hidden=(8,)), 0)
    assert isinstance(bare, ActorCritic)
    network = PPOAgent(CARTPOLE, bare, PPOAgentSettings(), ENVS, 0)
    agent._returns = None  # These fragments have no place for them.
    for _ in range(2):
        train(embryo, fragments)
        policy, units = flat_of(embryo.model), units_of(embryo.model)
        assert units.spread > 10
        agent.adopt(policy)
        network.adopt(policy[: bare.parameter_count])
        train(embryo, fragments[:1])  # The learner goes on, and its statistics.
        assert units_of(embryo.model) != units
        expected = units.restored(played(network, 3)["value"])
        np.testing.assert_allclose(played(agent, 3)["value"], expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_impala_learns_in_the_units_of_the_targets_of_earlier_passes(backend: str) -> None:
    embryo = impala(CARTPOLE, backend=backend, epochs=2)
    fragments = random_rollout(CARTPOLE, 4)
    samples = sum(int(fragment["mask"].sum()) for fragment in fragments)
    first, second = [], []
    for losses, minibatch in zip((first, second), embryo.minibatches(fragments), strict=True):
        embryo.update(minibatch)
        losses.append(embryo.metrics()["value_loss"])
    assert first[0] > 1000
    assert second[0] < 2, "half the square of an error in units of the spread"
    moments = moments_of(embryo.model)
    assert int(moments.count) == 2 * samples
    assert float(moments.variance) ** 0.5 == pytest.approx(300, rel=0.9)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("build", [ppo, impala])
def test_learners_in_step_have_the_same_bits_and_the_statistics_of_one(build: Any, backend: str) -> None:
    fragments, building = random_rollout(CARTPOLE, 1, fragments=4), threading.Lock()

    def learn(group: AllReduce) -> Any:
        with building:  # A model is built from torch's global random stream.
            embryo = build(CARTPOLE, backend=backend, rollout_steps=10**4, minibatch_size=10**4)
        if group.number > 1:
            embryo.join(group)
        for _ in range(2):
            train(embryo, fragments[group.index :: group.number])
        return flat_of(embryo.model)

    (one, other), _ = in_step(2, learn)
    np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(one, learn(ALONE), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("build", [ppo, impala])
def test_a_resumed_learner_goes_on_in_the_same_units(build: Any, backend: str) -> None:
    fragments = random_rollout(CARTPOLE, 2)
    whole, resumed = (build(CARTPOLE, backend=backend) for _ in range(2))
    train(whole, fragments)
    resumed.load_state(*whole.state())
    for embryo in (whole, resumed):
        train(embryo, fragments)
    np.testing.assert_array_equal(flat_of(whole.model), flat_of(resumed.model))
    assert float(moments_of(resumed.model).count) > 0
