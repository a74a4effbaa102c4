from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.fragments import random_fragment

from tianji_algos.core import Spaces, build_model
from tianji_algos.dqn.dqn import DQNAgent
from tianji_algos.dqn.settings import DQNAgentSettings
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.models.mlp import MLPQ
from tianji_algos.models.settings import MLPQSettings

Floats = npt.NDArray[np.float32]

ENVS = 16


def build(spaces: Spaces, num_envs: int = ENVS, seed: int = 0, **settings: Any) -> tuple[MLPQ, DQNAgent]:
    model = build_model(MLPQ, spaces, MLPQSettings(hidden=(32,)), seed)
    assert isinstance(model, MLPQ)
    return model, DQNAgent(spaces, model, DQNAgentSettings(**settings), num_envs, seed)


def observations(rows: int = ENVS, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)


def q_of(model: MLPQ, observation: Floats) -> Floats:
    with torch.no_grad():
        return model(torch.from_numpy(observation)).numpy()


def row(num_envs: int = ENVS) -> dict[str, npt.NDArray[Any]]:
    return {"action": np.zeros(num_envs, np.uint8)}


def share_of_random_actions(agent: DQNAgent, model: MLPQ, num_envs: int, steps: int = 400) -> Floats:
    """Estimate epsilon of each environment: a random action is the best one half of the time."""
    best = q_of(model, observations(num_envs)).argmax(axis=1)
    others = np.zeros(num_envs)
    for _ in range(steps):
        others += agent.act(observations(num_envs), row(num_envs)) != best
    return (2.0 * others / steps).astype(np.float32)


def test_without_exploration_the_best_action_is_taken(cartpole_spaces: Spaces) -> None:
    model, agent = build(cartpole_spaces, epsilon_start=0.0, epsilon_end=0.0)
    best = q_of(model, observations(rows=200)).argmax(axis=1)
    assert 0 < best.sum() < 200
    into = row(200)
    wide = DQNAgent(cartpole_spaces, model, agent.settings, 200, 0)
    np.testing.assert_array_equal(wide.act(observations(rows=200), into), best)
    np.testing.assert_array_equal(into["action"], best)


def test_greedy_actions_draw_nothing_however_much_is_explored(cartpole_spaces: Spaces) -> None:
    model, agent = build(cartpole_spaces, epsilon_start=1.0)
    best = q_of(model, observations()).argmax(axis=1)
    for _ in range(5):
        np.testing.assert_array_equal(agent.act_greedily(observations()), best)


def test_evaluations_take_random_actions_as_often_as_set(cartpole_spaces: Spaces) -> None:
    spaces = Spaces(cartpole_spaces.observation, gym.spaces.Discrete(2, start=-3))
    model, agent = build(spaces, epsilon_start=1.0, eval_epsilon=0.2)
    best = q_of(model, observations()).argmax(axis=1) - 3
    others, steps = np.zeros(ENVS), 2000
    for _ in range(steps):
        others += agent.act_greedily(observations()) != best
    np.testing.assert_allclose(2 * others / steps, 0.2, atol=0.05)


def test_random_actions_are_uniform_and_recorded(cartpole_spaces: Spaces) -> None:
    spaces = Spaces(cartpole_spaces.observation, gym.spaces.Discrete(5))
    _, agent = build(spaces, epsilon_start=1.0)
    counts = np.zeros(5)
    for _ in range(500):
        into = row()
        actions = agent.act(observations(), into)
        np.testing.assert_array_equal(actions, into["action"])
        counts += np.bincount(actions, minlength=5)
    np.testing.assert_allclose(counts / counts.sum(), 0.2, atol=0.02)


def test_epsilon_falls_linearly_with_the_jobs_env_steps(cartpole_spaces: Spaces) -> None:
    model, agent = build(cartpole_spaces, epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=1000)
    agent.explore_as(8, 32)  # says nothing to a schedule that is alike everywhere
    for env_steps, epsilon in ((None, 0.8), (500, 0.5), (1000, 0.2), (5000, 0.2)):
        if env_steps is not None:
            agent.schedule(env_steps)
        np.testing.assert_allclose(agent._epsilon, epsilon, rtol=1e-5)
    assert share_of_random_actions(agent, model, ENVS).mean() == pytest.approx(0.2, abs=0.03)


def test_each_environment_of_the_job_has_its_own_epsilon_after_ape_x(cartpole_spaces: Spaces) -> None:
    model, agent = build(
        cartpole_spaces, num_envs=2, epsilon_schedule="per_actor", epsilon_base=0.4, epsilon_alpha=7.0
    )
    whole_job = [0.4 ** (1 + 7 * i / 5) for i in range(6)]  # Horgan et al., 2018, section 4.1
    found: list[float] = []
    for first in (0, 2, 4):
        agent.explore_as(first, 6)
        agent.schedule(10_000)  # says nothing to epsilons that stay
        found += agent._epsilon.tolist()
    assert found == pytest.approx(whole_job)
    agent.explore_as(0, 6)
    np.testing.assert_allclose(share_of_random_actions(agent, model, 2), whole_job[:2], atol=0.08)


def test_a_single_environment_explores_with_the_base(cartpole_spaces: Spaces) -> None:
    _, agent = build(cartpole_spaces, num_envs=1, epsilon_schedule="per_actor", epsilon_base=0.3)
    agent.explore_as(0, 1)
    assert agent._epsilon.tolist() == pytest.approx([0.3])


def test_the_same_seed_explores_alike_and_another_does_not(cartpole_spaces: Spaces) -> None:
    model, _ = build(cartpole_spaces)

    def explore(seed: int) -> list[npt.NDArray[Any]]:
        agent = DQNAgent(cartpole_spaces, model, DQNAgentSettings(), ENVS, seed)
        return [agent.act(observations(), row()).copy() for _ in range(8)]

    first = explore(5)
    np.testing.assert_array_equal(first, explore(5))
    assert (np.array(first) != np.array(explore(6))).any()


def test_adopted_parameters_are_what_the_agent_acts_with(cartpole_spaces: Spaces) -> None:
    _, agent = build(cartpole_spaces, epsilon_start=0.0, epsilon_end=0.0)
    other, expected = build(cartpole_spaces, seed=9)
    many = observations()
    assert (agent.act_greedily(many) != expected.act_greedily(many)).any()
    flat = np.empty(other.parameter_count, np.float32)
    other.write_parameters(flat)
    agent.adopt(flat)
    np.testing.assert_array_equal(agent.act_greedily(many), expected.act_greedily(many))
    np.testing.assert_array_equal(agent.act(many, row()), expected.act_greedily(many))


@pytest.mark.parametrize(("actions", "dtype"), [(2, np.uint8), (256, np.uint8), (257, np.uint16)])
def test_actions_are_recorded_in_the_fewest_bytes(
    cartpole_spaces: Spaces, actions: int, dtype: type[np.generic]
) -> None:
    spaces = Spaces(cartpole_spaces.observation, gym.spaces.Discrete(actions))
    (action,) = DQNAgent.fields(spaces, DQNAgentSettings())
    assert (action.name, action.dtype, action.shape, action.bootstrap) == (
        "action",
        np.dtype(dtype),
        (),
        False,
    )


def test_actions_are_recorded_from_0_wherever_the_environment_begins(cartpole_spaces: Spaces) -> None:
    spaces = Spaces(cartpole_spaces.observation, gym.spaces.Discrete(3, start=-1))
    model, agent = build(spaces, epsilon_start=0.5)
    for _ in range(20):
        into = row()
        np.testing.assert_array_equal(agent.act(observations(), into), into["action"].astype(int) - 1)
    best = q_of(model, observations()).argmax(axis=1)
    np.testing.assert_array_equal(agent.act_greedily(observations()), best - 1)


def test_actions_that_are_no_single_numbers_are_refused(pendulum_spaces: Spaces) -> None:
    with pytest.raises(UnsupportedSpaceError, match="Discrete"):
        DQNAgent.fields(pendulum_spaces, DQNAgentSettings())


@pytest.mark.parametrize("steps", [1, 8, 40])
def test_initial_priorities_are_one_step_td_errors(cartpole_spaces: Spaces, steps: int) -> None:
    settings = {"priorities": True, "priority_gamma": 0.9, "priority_reward_scale": 0.5}
    model, agent = build(cartpole_spaces, **settings)
    specs = DQNAgent.fields(cartpole_spaces, agent.settings)
    assert [(spec.name, spec.dtype, spec.bootstrap) for spec in specs][1:] == [
        ("priority", np.dtype(np.float32), False)
    ]
    for seed in range(3):  # the next fragment knows nothing of the last one
        fields = random_fragment(np.random.default_rng(seed), steps, ENVS, cartpole_spaces)
        fields["action"] = np.zeros((steps, ENVS), np.uint8)
        fields["priority"] = np.full((steps, ENVS), np.nan, np.float32)
        for t in range(steps):
            agent.act(fields["observation"][t], {name: fields[name][t] for name in ("action", "priority")})
        agent.finish(fields, fields["observation"][-1])
        expected = np.zeros((steps, ENVS), np.float32)
        for t in range(steps):
            q, next_q = q_of(model, fields["observation"][t]), q_of(model, fields["observation"][t + 1])
            for n in range(ENVS):
                target = 0.5 * fields["reward"][t, n]
                if not fields["terminated"][t, n]:
                    target += 0.9 * next_q[n].max()
                expected[t, n] = abs(target - q[n, fields["action"][t, n]]) * fields["mask"][t, n]
        np.testing.assert_allclose(fields["priority"], expected, rtol=1e-3, atol=1e-5)
    assert (fields["mask"] == 0).any() or steps == 1
    assert agent._seen is not None
    assert len(agent._seen._taken) <= max(32, 2 * steps)


def test_without_priorities_a_fragment_is_left_as_it_is(cartpole_spaces: Spaces) -> None:
    _, agent = build(cartpole_spaces)
    fields: dict[str, npt.NDArray[Any]] = {}
    agent.finish(fields, np.zeros((4, 4), np.float32))
    assert not fields
