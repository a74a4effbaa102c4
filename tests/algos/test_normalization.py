"""Running statistics: what is learnt is what the policy saw when it acted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from algos.fragments import Fragment, random_rollout
from algos.in_step import in_step
from algos.teams import team_spaces
from algos.test_observations import Records
from algos.tiny_gru import TinyGRU
from algos.training import flat_of, train
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tianji_algos.core import ALONE, AllReduce, Spaces, build_model
from tianji_algos.dqn.settings import DQNSettings
from tianji_algos.errors import AlgorithmError, DivergedError, UnsuitableModelError, UnsupportedSpaceError
from tianji_algos.impala.impala import IMPALAAgent, IMPALAEmbryo
from tianji_algos.impala.settings import IMPALAAgentSettings, IMPALASettings
from tianji_algos.mappo.settings import MAPPOSettings
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.mlp import MLPActorCritic
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.normalization import (
    FILTER,
    RETURNS,
    DiscountedReturns,
    Normalization,
    build_normalizer,
    normalizer_of,
)
from tianji_algos.on_policy import PolicyAgent, PolicyEmbryo
from tianji_algos.ppo.ppo import PPOAgent, PPOEmbryo
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings

TWO = gym.spaces.Discrete(2)
PICTURE = gym.spaces.Box(0, 255, (36, 36), np.uint8)
FLOATS = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
STEPS, ENVS, GAMMA = 8, 4, 0.9
CLOSE = 1e-5
"""Largest difference from 1 of a policy's ratio to itself."""
NETWORK = MLPActorCriticSettings(hidden=(8,), policy_gain=1.0)
ALL = Normalization(observations=True, rewards=True, gamma=GAMMA, values=True)
ASKED: dict[str, Any] = {
    "normalize_observations": True,
    "normalize_rewards": True,
    "normalize_values": True,
    "gamma": GAMMA,
}
SMALL: dict[str, Any] = {"rollout_steps": 64, "minibatch_size": 64, "epochs": 1, "learning_rate": 1e-3}


def build(spaces: Spaces, model_type: type[ActorCritic] = MLPActorCritic) -> ActorCritic:
    model = build_model(model_type, spaces, NETWORK, 0)
    assert isinstance(model, ActorCritic)
    build_normalizer(model, spaces, ALL)
    return model


def ppo(spaces: Spaces) -> PPOEmbryo:
    return PPOEmbryo(spaces, build(spaces), PPOSettings(**(SMALL | ASKED)), 0)


def play(agent: PolicyAgent, model: ActorCritic, spaces: Spaces, seed: int) -> Fragment:
    """A fragment as an actor fills it: observations that lie far from 0, and the agent's own fields."""
    [fragment] = random_rollout(spaces, seed, fragments=1, steps=STEPS, envs=ENVS)
    if isinstance(spaces.observation, Records):
        records = spaces.observation.draw((STEPS + 1) * ENVS, seed).reshape(STEPS + 1, ENVS)
        records["speed"] = 50 + 20 * records["speed"]
        fragment["observation"] = records
    else:
        fragment["observation"] = 50 + 20 * fragment["observation"]
    fragment["reward"] *= 30
    own = (*agent.fields(spaces, agent.settings), *ALL.fields(spaces))
    for spec in (*own, *model.recorded(spaces, NETWORK)):
        fragment[spec.name] = np.zeros((spec.rows(STEPS), ENVS, *spec.shape), spec.dtype)
    agent.begin(fragment)
    names = [spec.name for spec in agent.fields(spaces, agent.settings)]
    for t in range(STEPS):
        agent.act(fragment["observation"][t], {name: fragment[name][t] for name in names})
        agent.begin_episodes(fragment["mask"][t] == 0)
    agent.finish(fragment, fragment["observation"][STEPS])
    return fragment


def normalized(fragments: Sequence[Fragment]) -> list[Fragment]:
    """Fragments of policies that had seen nothing, so that observations are as they are."""
    for fragment in fragments:
        size = fragment["observation"].shape[2]
        fragment[FILTER] = np.broadcast_to([[0.0] * size, [1.0] * size], (1, ENVS, 2, size)).astype(
            np.float32
        )
        fragment[RETURNS] = np.zeros((1, ENVS, 3), np.float32)
        DiscountedReturns(ENVS, GAMMA).record(fragment)
    return list(fragments)


@pytest.mark.parametrize("model_type", [MLPActorCritic, TinyGRU])
@pytest.mark.parametrize(
    ("agent_type", "agent_settings", "embryo_type", "settings"),
    [
        (PPOAgent, PPOAgentSettings(), PPOEmbryo, PPOSettings(**SMALL, **ASKED, clip_range=CLOSE)),
        (
            IMPALAAgent,
            IMPALAAgentSettings(),
            IMPALAEmbryo,
            IMPALASettings(**SMALL, **ASKED, rho_bar=1 + CLOSE, c_bar=1.0),
        ),
    ],
    ids=["ppo", "impala"],
)
def test_the_learner_shows_the_network_what_the_policy_saw_though_the_statistics_have_moved_on(
    spaces: Spaces, agent_type: Any, agent_settings: Any, embryo_type: Any, settings: Any, model_type: Any
) -> None:
    learner = build(spaces, model_type)
    embryo: PolicyEmbryo = embryo_type(spaces, learner, settings, 0)
    acting = build(spaces, model_type)
    agent = agent_type(spaces, acting, agent_settings, ENVS, seed=0)
    for seed in range(3):
        agent.adopt(flat_of(learner))
        fragment = play(agent, acting, spaces, seed)
        before = fragment[FILTER].copy()
        embryo.metrics()
        [minibatch] = embryo.minibatches([fragment])
        embryo.update(minibatch)
        found = embryo.metrics()
        assert found["clip_fraction"] == 0.0
        assert abs(found.get("rho", 1.0) - 1.0) < CLOSE
        agent.adopt(flat_of(learner))
        agent.begin(fragment)
        assert not np.array_equal(fragment[FILTER], before), "what was received counts from now on"
    assert np.abs(fragment[FILTER][0, 0, 0] - 50).max() < 10
    assert np.abs(1 / fragment[FILTER][0, 0, 1] - 20).max() < 10


def test_the_network_is_shown_the_records_that_the_policy_saw(records: Spaces) -> None:
    learner, acting = build(records), build(records)
    settings = PPOSettings(**SMALL, **ASKED, clip_range=CLOSE)
    embryo = PPOEmbryo(records, learner, settings, 0)
    agent = PPOAgent(records, acting, PPOAgentSettings(), ENVS, seed=0)
    for seed in range(3):
        agent.adopt(flat_of(learner))
        [minibatch] = embryo.minibatches([play(agent, acting, records, seed)])
        embryo.metrics()
        embryo.update(minibatch)
        assert embryo.metrics()["clip_fraction"] == 0.0
    normalizer = normalizer_of(learner)
    assert normalizer is not None
    assert normalizer.observations is not None
    assert (normalizer.observations.mean > 30).all()


@pytest.fixture
def records() -> Spaces:
    """A number of a kind, and three that are measured."""
    parts = {"mode": gym.spaces.Discrete(3), "none": gym.spaces.Box(-1.0, 1.0, (0,)), "speed": FLOATS}
    return Spaces(Records(parts), TWO)


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=4))
def test_moments_of_many_rollouts_are_those_of_all_that_was_seen(seeds: list[int]) -> None:
    spaces = Spaces(gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), gym.spaces.Discrete(2))
    model = build(spaces)
    normalizer = normalizer_of(model)
    assert normalizer is not None
    seen, returns = [], []
    for seed in seeds:
        fragments = normalized(random_rollout(spaces, seed, steps=STEPS, envs=ENVS))
        normalizer.update(fragments, ALONE)
        for fragment in fragments:
            mask = fragment["mask"].astype(bool)
            seen.append(fragment["observation"][:STEPS][mask].astype(np.float64))
            returns.append(returns_of(fragment)[mask])
    for moments, rows in (
        (normalizer.observations, np.concatenate(seen)),
        (normalizer.returns, np.concatenate(returns)[:, None]),
    ):
        assert moments is not None
        assert int(moments.count) == len(rows)
        np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(moments.variance, rows.var(axis=0), rtol=1e-4, atol=1e-5)


def returns_of(fragment: Fragment, carried: Any = 0.0) -> Any:
    """Discounted returns ``[T, N]``, step by step."""
    returns = np.zeros(fragment["reward"].shape)
    carried = np.zeros(ENVS) + carried
    for t, reward in enumerate(fragment["reward"]):
        returns[t] = reward + carried
        carried = returns[t] * GAMMA * (1 - np.maximum(fragment["terminated"][t], fragment["truncated"][t]))
    return returns


def test_discounted_returns_go_on_from_fragment_to_fragment_and_end_with_their_episode() -> None:
    spaces = Spaces(gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), gym.spaces.Discrete(2))
    first, second = normalized(random_rollout(spaces, 3, steps=STEPS, envs=ENVS))
    tracker = DiscountedReturns(ENVS, GAMMA)
    tracker.record(first)
    ends = np.maximum(first["terminated"][-1], first["truncated"][-1])
    carried = returns_of(first)[-1] * GAMMA * (1 - ends)
    assert carried.any()
    tracker.record(second)
    expected = returns_of(second, carried)
    for n in range(ENVS):
        mine = expected[second["mask"][:, n].astype(bool), n]
        squares = ((mine - mine.mean()) ** 2).sum()
        np.testing.assert_allclose(second[RETURNS][0, n], [len(mine), mine.mean(), squares], rtol=1e-4)


def test_rewards_are_learnt_in_units_of_the_spread_of_returns_and_clipped(cartpole_spaces: Spaces) -> None:
    normalizer = normalizer_of(build(cartpole_spaces))
    assert normalizer is not None
    normalizer.update(normalized(random_rollout(cartpole_spaces, 5, steps=STEPS, envs=ENVS)), ALONE)
    assert normalizer.returns is not None
    spread = float(normalizer.returns.variance) ** 0.5
    given_rewards = np.array([[spread, -2 * spread, 1e6 * spread]], np.float32)
    np.testing.assert_allclose(normalizer.rewards(given_rewards), [[1.0, -2.0, 10.0]], rtol=1e-5)
    raw, scaled = (
        PPOEmbryo(cartpole_spaces, build(cartpole_spaces), PPOSettings(**(SMALL | asked)), 0)
        for asked in (ASKED, ASKED | {"reward_scale": 7.0})
    )
    fragments = normalized(random_rollout(cartpole_spaces, 5, steps=STEPS, envs=ENVS))
    targets = [next(iter(embryo.minibatches(fragments))).advantage for embryo in (raw, scaled)]
    assert not np.array_equal(targets[0], targets[1]), "reward_scale comes on top"


def test_learners_in_step_keep_the_same_statistics_as_one_that_has_all_fragments(spaces: Spaces) -> None:
    fragments = normalized(random_rollout(spaces, 1, fragments=4, steps=STEPS, envs=ENVS))

    def learn(group: AllReduce) -> list[Any]:
        embryo = ppo(spaces)
        embryo.join(group)
        train(embryo, fragments[group.index :: group.number])
        normalizer = normalizer_of(embryo.model)
        assert normalizer is not None
        return [buffer.numpy().copy() for buffer in normalizer.buffers()]

    (first, second), _ = in_step(2, learn)
    alone = learn(ALONE)
    for one, other, all_of_it in zip(first, second, alone, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, all_of_it, rtol=1e-12)


def test_a_resumed_learner_goes_on_with_its_statistics(spaces: Spaces) -> None:
    fragments = normalized(random_rollout(spaces, 2, steps=STEPS, envs=ENVS))
    whole, resumed = ppo(spaces), ppo(spaces)
    train(whole, fragments)
    resumed.load_state(*whole.state())
    for embryo in (whole, resumed):
        train(embryo, fragments)
    np.testing.assert_array_equal(flat_of(whole.model), flat_of(resumed.model))


def test_acting_greedily_uses_the_statistics_that_were_learnt(cartpole_spaces: Spaces) -> None:
    embryo = ppo(cartpole_spaces)
    train(embryo, normalized(random_rollout(cartpole_spaces, 2, steps=STEPS, envs=ENVS)))
    normalizer = normalizer_of(embryo.model)
    assert normalizer is not None
    moments = normalizer.observations
    assert moments is not None
    agent = PPOAgent(cartpole_spaces, build(cartpole_spaces), PPOAgentSettings(), ENVS, 0)
    agent.adopt(flat_of(embryo.model))
    plain = build_model(MLPActorCritic, cartpole_spaces, NETWORK, 0)
    assert isinstance(plain, ActorCritic)
    untouched = PPOAgent(cartpole_spaces, plain, PPOAgentSettings(), ENVS, 0)
    untouched.adopt(flat_of(embryo.model)[: plain.parameter_count])
    raw = np.random.default_rng(0).standard_normal((200, ENVS, 4)).astype(np.float32) * 30
    by_hand = (raw - moments.mean.numpy()) / np.sqrt(moments.variance.numpy() + 1e-8)
    for seen, expected in zip(raw, by_hand.clip(-10, 10).astype(np.float32), strict=True):
        np.testing.assert_array_equal(agent.act_greedily(seen), untouched.act_greedily(expected))


@pytest.mark.parametrize(
    "space",
    [gym.spaces.Discrete(5), gym.spaces.MultiDiscrete([2, 3]), gym.spaces.Box(0, 255, (84, 84, 3), np.uint8)],
)
def test_what_has_no_scale_to_be_found_is_refused_with_the_way_out(space: gym.Space[Any]) -> None:
    with pytest.raises(UnsupportedSpaceError, match="normalize_observations = false would be right"):
        ALL.fields(Spaces(space, gym.spaces.Discrete(2)))


@pytest.mark.parametrize("space", [gym.spaces.Discrete(5), gym.spaces.Box(0, 255, (84, 84), np.uint8)])
@pytest.mark.parametrize("stack", [1, 4])
def test_rewards_alone_are_normalised_whatever_is_seen(space: gym.Space[Any], stack: int) -> None:
    rewards = Normalization(observations=False, rewards=True, gamma=GAMMA)
    spaces = Spaces(space, gym.spaces.Discrete(2), stack=stack)
    assert [field.name for field in rewards.fields(spaces)] == [RETURNS]


def test_rewards_of_each_agent_are_refused_with_the_way_out() -> None:
    with pytest.raises(ValidationError, match='rewards = "team" would be right'):
        MAPPOSettings.model_validate({"normalize_rewards": True, "rewards": "individual"})


@pytest.mark.parametrize(
    ("spaces", "settings", "decided"),
    [
        (Spaces(FLOATS, TWO), PPOSettings(), {"observations", "rewards"}),
        (Spaces(FLOATS, TWO), IMPALASettings(), {"observations", "rewards"}),
        (Spaces(FLOATS, TWO), PPOSettings(normalize_observations=False), {"rewards"}),
        (Spaces(FLOATS, TWO), PPOSettings(normalize_rewards=False, normalize_observations=False), set()),
        (Spaces(FLOATS, TWO), PPOSettings(normalize_values=True), {"observations", "rewards", "values"}),
        (Spaces(FLOATS, TWO, stack=2), PPOSettings(), {"rewards"}),
        (Spaces(gym.spaces.Box(0, 9, (3,), np.int64), TWO), PPOSettings(), {"rewards"}),
        (Spaces(gym.spaces.Discrete(16), TWO), PPOSettings(), {"rewards"}),
        (Spaces(PICTURE, TWO), PPOSettings(), set()),
        (Spaces(PICTURE, TWO), PPOSettings(normalize_rewards=True), {"rewards"}),
        (Spaces(Records({"eye": PICTURE, "speed": FLOATS}), TWO), PPOSettings(), {"observations"}),
        (Spaces(Records({"mode": TWO, "speed": FLOATS}), TWO), PPOSettings(), {"observations", "rewards"}),
        (team_spaces(), MAPPOSettings(), {"observations", "rewards"}),
        (team_spaces(), MAPPOSettings(rewards="individual"), {"observations"}),
        (Spaces(FLOATS, TWO), DQNSettings(), set()),
    ],
)  # fmt: skip
def test_what_settings_leave_open_goes_by_what_is_seen(
    spaces: Spaces, settings: Any, decided: set[str]
) -> None:
    asked = Normalization.of(settings, spaces)
    names = ("observations", "rewards", "values")
    assert {name for name in names if asked is not None and getattr(asked, name)} == decided
    of_an_unable_rule = Normalization.of(settings, spaces, able=False)
    on = {name for name in names if getattr(settings, f"normalize_{name}", False) is True}
    assert {name for name in names if of_an_unable_rule and getattr(of_an_unable_rule, name)} == on


def test_numbers_too_large_to_be_squared_end_the_training_with_a_reason(cartpole_spaces: Spaces) -> None:
    fragments = normalized(random_rollout(cartpole_spaces, 2, steps=STEPS, envs=ENVS))
    fragments[0]["reward"][...] = 1e30
    DiscountedReturns(ENVS, GAMMA).record(fragments[0])
    with (
        np.errstate(all="ignore"),
        pytest.raises(DivergedError, match="statistics of rewards are not finite"),
    ):
        train(ppo(cartpole_spaces), fragments)


def test_an_agent_that_does_not_say_what_it_saw_through_is_refused(cartpole_spaces: Spaces) -> None:
    [fragment] = normalized(random_rollout(cartpole_spaces, 2, fragments=1, steps=STEPS, envs=ENVS))
    fragment[FILTER][...] = 0.0
    with pytest.raises(AlgorithmError, match=r"calls super\(\).begin\(\).*normalize_observations = false"):
        train(ppo(cartpole_spaces), [fragment])


def test_stacks_are_refused() -> None:
    spaces = Spaces(gym.spaces.Box(-1, 1, (3, 4), np.float32), gym.spaces.Discrete(2), stack=3)
    with pytest.raises(UnsupportedSpaceError, match="stacks of 3 observations"):
        ALL.fields(spaces)


class OwnNormalizer(MLPActorCritic):
    """A network with a layer of that name."""

    def __init__(self, spaces: Spaces, settings: MLPActorCriticSettings) -> None:
        super().__init__(spaces, settings)
        self.normalizer = torch.nn.LayerNorm(4)


def test_a_network_with_a_layer_of_that_name_acts_and_learns_without_and_is_refused_with_it(
    cartpole_spaces: Spaces,
) -> None:
    model = build_model(OwnNormalizer, cartpole_spaces, NETWORK, 0)
    assert isinstance(model, OwnNormalizer)
    agent = PPOAgent(cartpole_spaces, model, PPOAgentSettings(), ENVS, 0)
    assert agent.act_greedily(np.zeros((ENVS, 4), np.float32)).shape == (ENVS,)
    train(PPOEmbryo(cartpole_spaces, model, PPOSettings(**SMALL), 0), random_rollout(cartpole_spaces, 1))
    with pytest.raises(UnsuitableModelError, match="another name would be right"):
        build_normalizer(model, cartpole_spaces, ALL)
