from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from algos.continuous import SPACES, build, make_batch

from tianji_algos.td3.settings import TD3AgentSettings
from tianji_algos.td3.td3 import TD3Agent, TD3Embryo

BACKENDS = pytest.mark.parametrize("backend", ["torch", "numpy"])


def td3(**settings: object) -> TD3Embryo:
    embryo = build("td3", **settings)
    assert isinstance(embryo, TD3Embryo)
    return embryo


@BACKENDS
def test_policy_and_targets_move_with_every_few_updates(backend: str) -> None:
    embryo = td3(backend=backend, policy_delay=3)
    states = [embryo.state()[0]]
    for seed in range(6):
        embryo.update(make_batch(seed))
        states.append(embryo.state()[0])
    for name in ("model.actor", "target_actor", "target_critics", "model.critics"):
        moved = [
            any(not torch.equal(after[key], before[key]) for key in after if key.startswith(name))
            for before, after in pairwise(states)
        ]
        assert moved == ([True] * 6 if name == "model.critics" else [False, False, True] * 2), name


@BACKENDS
@pytest.mark.parametrize("clip", [0.5, 0.05])
def test_the_target_is_the_least_value_of_a_smoothed_action(backend: str, clip: float) -> None:
    embryo = td3(backend=backend, target_noise=0.4, target_noise_clip=clip, seed=5)
    batch = make_batch()
    batch.discount[:] = 0.9
    with torch.no_grad():
        seen, after = torch.from_numpy(batch.observation), torch.from_numpy(batch.next_observation)
        noise = np.random.default_rng(5).standard_normal((12, 2), dtype=np.float32) * np.float32(0.4)
        action = embryo.model.actor(after).tanh() + torch.from_numpy(noise.clip(-clip, clip))
        worth = embryo.model.critics(after, action.clamp(-1.0, 1.0)).min(dim=0).values
        target = batch.reward + batch.discount * worth.numpy()
        values = embryo.model.critics(seen, torch.from_numpy(batch.fields["action"])).numpy()
    errors = embryo.update(batch).priorities
    np.testing.assert_allclose(errors, np.abs(values - target).mean(axis=0), rtol=1e-4, atol=1e-5)


def test_the_settings_of_ddpg_are_ddpg() -> None:
    """One critic, a policy that moves with every update, and targets without noise."""
    embryo = build("td3", model={"critics": 1}, policy_delay=1, target_noise=0.0)
    before = embryo.state()
    embryo.update(make_batch())
    assert embryo.state()[1]["rng"] != before[1]["rng"]  # It draws, and multiplies by 0.
    other = build("td3", model={"critics": 1}, policy_delay=1, target_noise=0.0, seed=9)
    other.update(make_batch())
    for name, tensor in embryo.state()[0].items():
        assert torch.equal(tensor, other.state()[0][name]), name
        if name.startswith("model."):
            assert not torch.equal(tensor, before[0][name]), name


def deviations(agent: TD3Agent, num_envs: int) -> list[float]:
    """Standard deviation of the exploration noise in each environment."""
    observation = np.zeros((num_envs, 5), np.float32)
    into = {"action": np.empty((num_envs, 2), np.float32)}
    middle = (agent.act_greedily(observation) - [0.0, 0.5]) / [2.0, 0.5]
    noise = []
    for _ in range(1500):
        agent.act(observation, into)
        noise.append(into["action"] - middle)
    return [float(found) for found in np.std(noise, axis=(0, 2))]


def test_noise_falls_over_training() -> None:
    settings = TD3AgentSettings(noise_start=0.2, noise_end=0.02, noise_steps=1000)
    agent = TD3Agent(SPACES, td3().model, settings, 2, 0)
    for env_steps, expected in ((1, 0.2), (500, 0.11), (5000, 0.02)):
        agent.schedule(env_steps)
        assert deviations(agent, 2) == pytest.approx([expected] * 2, rel=0.1)


def test_each_environment_of_a_job_may_have_noise_of_its_own() -> None:
    settings = TD3AgentSettings(noise_schedule="per_actor", noise_start=0.2, noise_end=0.02)
    found = []
    for first in (0, 2):
        agent = TD3Agent(SPACES, td3().model, settings, 2, 0)
        agent.explore_as(first, 4)
        agent.schedule(1000)
        found += deviations(agent, 2)
    assert found == pytest.approx([0.2 * 0.1 ** (k / 3) for k in range(4)], rel=0.1)
