from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.maddpg_team import CONTINUOUS, DISCRETE, SIZES, build, records
from algos.teams import exists
from algos.training import flat_of

from tianji_algos import registry
from tianji_algos.core import Spaces
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.maddpg.maddpg import MADDPGAgent, MADDPGEmbryo
from tianji_algos.maddpg.settings import MADDPGAgentSettings
from tianji_algos.models.teams.deterministic import TeamDeterministic

Array = npt.NDArray[Any]

ENVS = 64
UNEXPLORED = {"epsilon_start": 0.0, "noise_start": 0.0}
EXISTS = exists(SIZES)


def build_agent(
    spaces: Spaces, seed: int = 0, num_envs: int = ENVS, scale: float = 30.0, **settings: Any
) -> tuple[TeamDeterministic, MADDPGAgent]:
    """With policies that differ much from one observation to the next."""
    model = build(spaces)
    with torch.no_grad():
        model.actors.weights[-1].mul_(scale)
    return model, MADDPGAgent(spaces, model, MADDPGAgentSettings(**settings), num_envs, seed)


def row(spaces: Spaces, num_envs: int = ENVS) -> dict[str, Array]:
    (field,) = MADDPGAgent.fields(spaces, MADDPGAgentSettings())
    return {field.name: np.zeros((num_envs, *field.shape), field.dtype)}


def outputs_of(model: TeamDeterministic, seen: Array) -> Array:
    with torch.no_grad():
        observation = torch.from_numpy(seen["observation"]).transpose(0, 1)
        return model.act(observation).transpose(0, 1).numpy()


def test_actions_are_recorded_in_the_smallest_type() -> None:
    (discrete,) = MADDPGAgent.fields(DISCRETE, MADDPGAgentSettings())
    assert (discrete.name, discrete.dtype, discrete.shape) == ("action", np.uint8, (3,))
    (continuous,) = MADDPGAgent.fields(CONTINUOUS, MADDPGAgentSettings())
    assert (continuous.name, continuous.dtype, continuous.shape) == ("action", np.float32, (3, 4))


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_only_available_actions_are_taken_and_all_that_are(epsilon: float) -> None:
    _, agent = build_agent(DISCRETE, epsilon_start=epsilon)
    seen, into = records(DISCRETE, ENVS, alive=0.7), row(DISCRETE)
    taken = np.zeros_like(seen["available"])
    for _ in range(100):
        actions = agent.act(seen, into)
        np.testing.assert_array_equal(into["action"], actions)
        assert np.take_along_axis(seen["available"], actions[..., None], axis=2).all()
        np.put_along_axis(taken, actions[..., None], values=True, axis=2)
    assert taken.sum() > (0.6 if epsilon == 0.0 else 0.95) * seen["available"].sum()


def test_actions_are_drawn_from_the_policies_of_the_agents() -> None:
    model, agent = build_agent(DISCRETE, num_envs=4000, **UNEXPLORED)
    seen = np.repeat(records(DISCRETE, 1, seed=3), 4000)
    seen["available"] = EXISTS
    logits = np.where(EXISTS, outputs_of(model, seen[:1])[0], -np.inf)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert expected.max() > 0.5
    drawn = agent.act(seen, row(DISCRETE, 4000))
    found = np.stack([np.bincount(drawn[:, m], minlength=4) for m in range(3)]) / 4000
    np.testing.assert_allclose(found, expected, atol=0.03)


def test_random_actions_are_as_many_as_epsilon_says_and_fall_over_the_steps() -> None:
    model = build(DISCRETE)
    with torch.no_grad():
        model.actors.biases[-1].copy_(100.0 * torch.arange(4))
    settings = MADDPGAgentSettings(epsilon_start=0.8, epsilon_end=0.2, exploration_steps=1000)
    agent = MADDPGAgent(DISCRETE, model, settings, ENVS, 0)
    seen = records(DISCRETE, ENVS)
    seen["available"] = EXISTS
    best = np.array(SIZES) - 1
    found = []
    for env_steps in (0, 500, 1000, 5000):
        agent.schedule(env_steps)
        draws = np.stack([agent.act(seen, row(DISCRETE)).copy() for _ in range(100)])
        found.append((draws != best).mean(axis=(0, 1)))
    expected = np.array([[0.8], [0.5], [0.2], [0.2]]) * (1.0 - 1.0 / np.array(SIZES))
    np.testing.assert_allclose(found, expected, atol=0.03)


def test_the_greedy_action_is_the_likeliest_available_one() -> None:
    model, agent = build_agent(DISCRETE, epsilon_start=1.0)
    seen = records(DISCRETE, ENVS, alive=0.7)
    expected = np.where(seen["available"], outputs_of(model, seen), -np.inf).argmax(axis=2)
    for _ in range(3):
        np.testing.assert_array_equal(agent.act_greedily(seen), expected)


def test_continuous_actions_go_from_bound_to_bound() -> None:
    model, agent = build_agent(CONTINUOUS, **UNEXPLORED)
    seen, space = records(CONTINUOUS, ENVS), CONTINUOUS.action
    assert isinstance(space, gym.spaces.Box)
    middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
    expected = middle + half * np.tanh(outputs_of(model, seen))
    np.testing.assert_allclose(agent.act_greedily(seen), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(agent.act(seen, row(CONTINUOUS)), expected, rtol=1e-4, atol=1e-5)


def test_noise_stays_between_the_bounds_and_falls_over_the_steps() -> None:
    _, agent = build_agent(CONTINUOUS, scale=1e-3, noise_start=0.4, noise_end=0.1, exploration_steps=1000)
    seen, space, into = records(CONTINUOUS, ENVS), CONTINUOUS.action, row(CONTINUOUS)
    assert isinstance(space, gym.spaces.Box)
    found = []
    for env_steps in (0, 500, 1000):
        agent.schedule(env_steps)
        draws = np.stack([agent.act(seen, into).copy() for _ in range(100)])
        np.testing.assert_array_equal(into["action"], draws[-1])
        assert (draws >= space.low).all()
        assert (draws <= space.high).all()
        assert (draws[..., ~EXISTS] == 0.0).all()
        found.append((draws.std(axis=(0, 1)) / np.where(EXISTS, space.high - space.low, 1.0))[EXISTS])
    np.testing.assert_allclose(np.mean(found, axis=1), [0.197, 0.125, 0.05], rtol=0.05)


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_the_same_seed_explores_alike_and_another_does_not(spaces: Spaces) -> None:
    seen = records(spaces, ENVS)

    def explored(agent: MADDPGAgent) -> Array:
        return np.stack([agent.act(seen, row(spaces)).copy() for _ in range(5)])

    first, again, other = (build_agent(spaces, seed)[1] for seed in (1, 1, 2))
    expected = explored(first)
    np.testing.assert_array_equal(explored(again), expected)
    assert (explored(other) != expected).any()


def test_adopted_parameters_are_acted_with() -> None:
    model, _ = build_agent(DISCRETE)
    agent = MADDPGAgent(DISCRETE, build(DISCRETE, seed=1), MADDPGAgentSettings(), ENVS, 0)
    seen = records(DISCRETE, ENVS)
    expected = np.where(seen["available"], outputs_of(model, seen), -np.inf).argmax(axis=2)
    assert (agent.act_greedily(seen) != expected).any()
    agent.adopt(flat_of(model))
    np.testing.assert_array_equal(agent.act_greedily(seen), expected)


def test_actions_without_bounds_are_refused() -> None:
    unbounded = Spaces(CONTINUOUS.observation, gym.spaces.Box(-np.inf, np.inf, (3, 4), np.float32))
    with pytest.raises(UnsupportedSpaceError, match="finite low and high would be right"):
        MADDPGAgent(unbounded, build(CONTINUOUS), MADDPGAgentSettings(), ENVS, 0)


def test_the_registry_knows_agent_embryo_and_model() -> None:
    assert registry.load("agent", "maddpg") is MADDPGAgent
    assert registry.load("embryo", "maddpg") is MADDPGEmbryo
    assert registry.load("model", "team_deterministic") is TeamDeterministic
    assert MADDPGAgent.plays_in_team
    assert registry.settings_type("agent", "maddpg") is MADDPGAgent.settings_type
    assert registry.settings_type("embryo", "maddpg") is MADDPGEmbryo.settings_type
    assert registry.settings_type("model", "team_deterministic") is TeamDeterministic.settings_type
