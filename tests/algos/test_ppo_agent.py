from __future__ import annotations

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Fields, Spaces, build_model
from tianji_algos.fields import FieldSpec
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.mlp import MLPActorCritic
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.ppo.ppo import PPOAgent, PPOEmbryo
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings

STEPS, ENVS = 32, 16


def build(spaces: Spaces, num_envs: int = ENVS, seed: int = 0) -> tuple[MLPActorCritic, PPOAgent]:
    model = build_model(MLPActorCritic, spaces, MLPActorCriticSettings(hidden=(32, 32), shared=True), seed)
    assert isinstance(model, MLPActorCritic)
    return model, PPOAgent(spaces, model, PPOAgentSettings(), num_envs, seed)


def allocate(specs: tuple[FieldSpec, ...], steps: int, envs: int) -> Fields:
    return {spec.name: np.zeros((steps + spec.bootstrap, envs, *spec.shape), spec.dtype) for spec in specs}


def observations(spaces: Spaces, rows: int = ENVS) -> npt.NDArray[np.float32]:
    assert spaces.observation.shape is not None
    return np.random.default_rng(0).standard_normal((rows, *spaces.observation.shape)).astype(np.float32)


def test_what_is_recorded_is_what_the_network_says_of_the_action(spaces: Spaces) -> None:
    model, agent = build(spaces)
    fields = allocate(PPOAgent.fields(spaces, PPOAgentSettings()), 2, ENVS)
    row = {name: field[1] for name, field in fields.items()}
    given = agent.act(observations(spaces), row)
    assert given.shape == (ENVS, *(spaces.action.shape or ()))
    assert all(spaces.action.contains(action) for action in given)
    with torch.no_grad():
        policy, value = model(torch.from_numpy(observations(spaces)))
    action = torch.from_numpy(row["action"])
    if isinstance(spaces.action, gym.spaces.Discrete):
        expected = torch.distributions.Categorical(logits=policy).log_prob(action)
    else:
        mean, log_std = policy.chunk(2, dim=1)
        expected = torch.distributions.Normal(mean, log_std.exp()).log_prob(action).sum(dim=1)
    np.testing.assert_allclose(row["log_prob"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(row["value"], value, rtol=1e-4, atol=1e-5)
    assert not any(field[0].any() for field in fields.values())


def test_the_bootstrap_row_gets_the_value_after_the_last_step(spaces: Spaces) -> None:
    model, agent = build(spaces)
    specs = PPOAgent.fields(spaces, PPOAgentSettings())
    assert [spec.name for spec in specs if spec.bootstrap] == ["value"]
    fields = {"value": np.zeros((3, ENVS), np.float32), "observation": np.stack([observations(spaces)] * 3)}
    agent.finish(fields, fields["observation"][-1])
    with torch.no_grad():
        _, value = model(torch.from_numpy(observations(spaces)))
    np.testing.assert_allclose(fields["value"][-1], value, rtol=1e-4, atol=1e-5)
    assert not fields["value"][:-1].any()


def test_the_same_seed_explores_alike_and_another_does_not(spaces: Spaces) -> None:
    model, _ = build(spaces)

    def explore(seed: int) -> npt.NDArray[np.generic]:
        agent = PPOAgent(spaces, model, PPOAgentSettings(), ENVS, seed)
        fields = allocate(PPOAgent.fields(spaces, PPOAgentSettings()), 8, ENVS)
        for t in range(8):
            agent.act(observations(spaces), {name: field[t] for name, field in fields.items()})
        return fields["action"]

    first = explore(5)
    np.testing.assert_array_equal(first, explore(5))
    assert (first != explore(6)).any()


def test_greedy_actions_are_the_likeliest_and_draw_nothing(spaces: Spaces) -> None:
    model, agent = build(spaces)
    with torch.no_grad():
        policy, _ = model(torch.from_numpy(observations(spaces)))
    best = (
        policy.argmax(dim=1)
        if isinstance(spaces.action, gym.spaces.Discrete)
        else 2 * policy[:, :1].clamp(-1, 1)
    )
    for _ in range(2):
        np.testing.assert_allclose(agent.act_greedily(observations(spaces)), best, rtol=1e-4, atol=1e-5)


def test_adopted_parameters_are_what_the_agent_acts_with(spaces: Spaces) -> None:
    _, agent = build(spaces)
    other, expected = build(spaces, seed=9)
    flat = np.empty(other.parameter_count, np.float32)
    other.write_parameters(flat)
    agent.adopt(flat)
    np.testing.assert_array_equal(
        agent.act_greedily(observations(spaces)), expected.act_greedily(observations(spaces))
    )


class Corridor:
    """Sixteen copies of a world whose better action is told by the sign of the first observation."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def observe(self) -> npt.NDArray[np.float32]:
        self._shown = self._rng.standard_normal((ENVS, 4)).astype(np.float32)
        return self._shown

    def reward(self, action: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return (action == (self._shown[:, 0] > 0)).astype(np.float32)


def collect(agent: PPOAgent, world: Corridor, spaces: Spaces) -> Fields:
    fields = dict(allocate(PPOAgent.fields(spaces, PPOAgentSettings()), STEPS, ENVS))
    fields["observation"] = np.zeros((STEPS + 1, ENVS, 4), np.float32)
    fields["reward"] = np.zeros((STEPS, ENVS), np.float32)
    fields["terminated"] = np.ones((STEPS, ENVS), np.uint8)
    fields["truncated"] = np.zeros((STEPS, ENVS), np.uint8)
    fields["mask"] = np.ones((STEPS, ENVS), np.uint8)
    for t in range(STEPS):
        fields["observation"][t] = world.observe()
        row = {name: fields[name][t] for name in ("action", "log_prob", "value")}
        action = agent.act(fields["observation"][t], row)
        fields["reward"][t] = world.reward(action)
    fields["observation"][STEPS] = world.observe()
    agent.finish(fields, fields["observation"][-1])
    return fields


def test_agent_and_embryo_learn_together_what_is_rewarded(cartpole_spaces: Spaces) -> None:
    model, agent = build(cartpole_spaces)
    assert isinstance(model, ActorCritic)
    settings = PPOSettings(rollout_steps=STEPS * ENVS, minibatch_size=128, epochs=4, learning_rate=3e-3)
    embryo = PPOEmbryo(cartpole_spaces, model, settings, seed=0)
    world, flat = Corridor(), np.empty(model.parameter_count, np.float32)
    rewards = []
    for _ in range(15):
        fragment = collect(agent, world, cartpole_spaces)
        rewards.append(float(fragment["reward"].mean()))
        for minibatch in embryo.minibatches([fragment]):
            embryo.update(minibatch)
        model.write_parameters(flat)
        agent.adopt(flat)
    assert rewards[0] < 0.6
    assert rewards[-1] > 0.9
