"""With the settings of ``a2c_cartpole.toml``, what PPO does is advantage actor-critic."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from algos.fragments import Fragment, random_fragment

from tianji_algos.core import Spaces, build_model
from tianji_algos.models.mlp import MLPActorCritic
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.ppo.ppo import PPOAgent, PPOEmbryo
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings

STEPS, ENVS = 16, 64
CONFIG = Path(__file__).parents[2] / "configs/a2c_cartpole.toml"


@pytest.fixture
def settings() -> dict[str, Any]:
    training: dict[str, Any] = tomllib.loads(CONFIG.read_text())["training"]
    assert training["rollout_steps"] == STEPS * ENVS
    return training | {"max_grad_norm": 1e9, "entropy_coef": 0.01}


def acted(fragment: Fragment, model: MLPActorCritic, spaces: Spaces) -> Fragment:
    """The fields that an agent with this network would have recorded in that fragment."""
    agent = PPOAgent(spaces, model, PPOAgentSettings(), ENVS, 0)
    for t in range(STEPS):
        row = {name: fragment[name][t] for name in ("action", "log_prob", "value")}
        agent.act(fragment["observation"][t], row)
    agent.finish(fragment, fragment["observation"][STEPS])
    return fragment


def advantage(fragment: Fragment, t: int, n: int, discount: float, trace: float, scale: float) -> float:
    """Sum of discounted temporal differences until the episode's or the fragment's end."""
    total, weight = 0.0, 1.0
    for k in range(t, STEPS):
        if not fragment["mask"][k, n]:
            break
        after = 0.0 if fragment["terminated"][k, n] else fragment["value"][k + 1, n]
        error = fragment["reward"][k, n] * scale + discount * after - fragment["value"][k, n]
        total += weight * error
        weight *= discount * trace
    return total


def test_the_gradient_is_that_of_advantage_actor_critic(
    cartpole_spaces: Spaces, settings: dict[str, Any]
) -> None:
    model, twin = (
        build_model(MLPActorCritic, cartpole_spaces, MLPActorCriticSettings(hidden=(8,), policy_gain=1.0), 0)
        for _ in range(2)
    )
    assert isinstance(model, MLPActorCritic)
    fragment = random_fragment(np.random.default_rng(3), STEPS, ENVS, cartpole_spaces)
    fragment = acted(fragment, model, cartpole_spaces)
    embryo = PPOEmbryo(cartpole_spaces, model, PPOSettings(**settings), 0)
    updates = [embryo.update(batch).uses for batch in embryo.minibatches([fragment])]
    assert updates == [fragment["mask"].sum()], "one update, with each sample once"

    t, n = np.nonzero(fragment["mask"])
    constants = (settings["gamma"], settings["gae_lambda"], settings["reward_scale"])
    advantages = torch.tensor([advantage(fragment, *where, *constants) for where in zip(t, n, strict=True)])
    old_value = torch.from_numpy(fragment["value"][t, n])
    logits, value = twin(torch.from_numpy(fragment["observation"][t, n]))
    policy = torch.distributions.Categorical(logits=logits)
    gain = policy.log_prob(torch.from_numpy(fragment["action"][t, n])) * advantages
    error = value - (advantages + old_value)
    loss = -gain.mean() + 0.5 * 0.5 * error.square().mean() - 0.01 * policy.entropy().mean()
    torch.autograd.backward(loss)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    assert embryo.metrics()["clip_fraction"] == 0.0
