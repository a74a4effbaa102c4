"""PPO's loss in torch, and what was derived by hand from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tianji_algos.distributions import distribution_for
from tianji_algos.fast_cpu.ppo import PPOLossByHand
from tianji_algos.ppo.ppo import DIAGNOSTICS, PPOLoss, PPOMinibatch
from tianji_algos.ppo.settings import PPOSettings

CLIP, VALUE_COEF, ENTROPY_COEF = 0.2, 0.7, 0.03
SPACES: list[gym.Space[Any]] = [
    gym.spaces.Discrete(3),
    gym.spaces.MultiDiscrete([3, 2, 4]),
    gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
]
CASES = st.fixed_dictionaries(
    {
        "space": st.sampled_from(SPACES),
        "seed": st.integers(0, 2**20),
        "rows": st.integers(1, 60),
        "others": st.integers(0, 30),
        "more_outputs": st.integers(0, 9),
        "moved": st.floats(0.0, 1.0),
        "clip_range": st.floats(0.02, 0.5),
        "clip_value": st.booleans(),
        "entropy_coef": st.sampled_from([0.0, 0.03]),
    }
)


def tensors_of(batch: PPOMinibatch) -> PPOMinibatch:
    """The same minibatch for the loss in torch."""
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return PPOMinibatch(
        **{
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in fields.items()
        }
    )


def derivatives(
    space: gym.Space[Any],
    chosen: dict[str, Any],
    batch: PPOMinibatch,
    policy: npt.NDArray[Any],
    value: npt.NDArray[Any],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Derivatives by policy and value, loss and diagnostics, by autograd; those by hand are the same."""
    distribution = distribution_for(space)
    settings = PPOSettings(**({"value_coef": VALUE_COEF, "clip_range": CLIP} | chosen))
    policy, value = policy.astype(np.float32), value.astype(np.float32)
    variables = [torch.from_numpy(array.copy()).requires_grad_() for array in (policy, value)]
    loss, expected = PPOLoss(distribution, settings)(variables[0], variables[1], tensors_of(batch))
    loss.backward()  # type: ignore[no-untyped-call]
    *found, diagnostics = PPOLossByHand(distribution, settings).gradient(policy, value, batch)
    for own, variable in zip(found, variables, strict=True):
        assert variable.grad is not None
        size = 1.0 + float(variable.grad.abs().max())
        np.testing.assert_allclose(own, variable.grad, rtol=1e-3, atol=1e-6 * size)
    np.testing.assert_allclose(diagnostics, expected, rtol=1e-3, atol=1e-5)
    assert variables[0].grad is not None
    assert variables[1].grad is not None
    return variables[0].grad, variables[1].grad, loss.detach(), expected


@given(CASES)
def test_derivatives_by_hand_are_those_of_the_loss(case: dict[str, Any]) -> None:
    rng = np.random.default_rng(case["seed"])
    distribution = distribution_for(case["space"])
    rows, more = case["rows"], case["more_outputs"]
    policy = rng.normal(0.0, 0.7, (rows + more, distribution.outputs)).astype(np.float32)
    value = rng.normal(0.0, 0.5, rows + more).astype(np.float32)
    where = np.sort(rng.permutation(rows + more)[:rows])
    action = np.empty((rows, *distribution.action_shape), distribution.action_dtype)
    log_prob = np.empty(rows, np.float32)
    distribution.sample(policy[where], rng, action, log_prob)
    batch = PPOMinibatch(
        observation=None,
        action=action,
        log_prob=log_prob + case["moved"] * rng.standard_normal(rows, np.float32),
        value=value[where] + case["moved"] * rng.standard_normal(rows, np.float32),
        advantage=rng.standard_normal(rows, np.float32),
        target=rng.standard_normal(rows, np.float32),
        total=rows + case["others"],
        uses=rows + case["others"],
        outputs=where if more else None,
    )
    chosen = {name: case[name] for name in ("clip_range", "clip_value", "entropy_coef")}
    d_policy, d_value, _, _ = derivatives(case["space"], chosen, batch, policy, value)
    nothing = np.ones(rows + more, bool)
    nothing[where] = False
    assert not d_policy[nothing].any()
    assert not d_value[nothing].any()


def reference(
    policy: torch.Tensor, value: torch.Tensor, batch: PPOMinibatch, clip_value: bool
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss as papers and libraries write it, for autograd to differentiate."""
    distribution = torch.distributions.Categorical(logits=policy)
    log_ratio = distribution.log_prob(torch.from_numpy(batch.action)) - torch.from_numpy(batch.log_prob)
    ratio, advantage = log_ratio.exp(), torch.from_numpy(batch.advantage)
    policy_loss = -torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
    target, old_value = torch.from_numpy(batch.target), torch.from_numpy(batch.value)
    errors = (value - target).square()
    if clip_value:
        clipped = old_value + (value - old_value).clamp(-CLIP, CLIP)
        errors = torch.max(errors, (clipped - target).square())
    value_loss = 0.5 * errors.mean()
    entropy = distribution.entropy().mean()
    diagnostics = {
        "policy_loss": policy_loss.item(),
        "value_loss": value_loss.item(),
        "entropy": entropy.item(),
        "approx_kl": (ratio - 1 - log_ratio).mean().item(),
        "clip_fraction": ((ratio - 1).abs() > CLIP).float().mean().item(),
    }
    return policy_loss + VALUE_COEF * value_loss - ENTROPY_COEF * entropy, diagnostics


def random_minibatch(rng: np.random.Generator, size: int) -> PPOMinibatch:
    def normal(mean: float, spread: float) -> npt.NDArray[np.float32]:
        return rng.normal(mean, spread, size).astype(np.float32)

    return PPOMinibatch(
        observation=np.zeros((size, 1), np.float32),
        action=rng.integers(0, 3, size),
        log_prob=normal(-1.1, 0.3),
        value=normal(0.0, 0.3),
        advantage=normal(0.0, 1.0),
        target=normal(0.0, 1.0),
        total=size,
        uses=size,
    )


@pytest.mark.parametrize("clip_value", [False, True])
def test_the_loss_is_the_clipped_one(clip_value: bool) -> None:
    rng = np.random.default_rng(0)
    batch = random_minibatch(rng, 200)
    policy = rng.standard_normal((200, 3)).astype(np.float32)
    value = rng.normal(0.0, 0.5, 200).astype(np.float32)
    chosen = {"clip_value": clip_value, "entropy_coef": ENTROPY_COEF}
    d_policy, d_value, loss, diagnostics = derivatives(SPACES[0], chosen, batch, policy, value)

    policy_variable = torch.from_numpy(policy).requires_grad_()
    value_variable = torch.from_numpy(value).requires_grad_()
    expected_loss, expected = reference(policy_variable, value_variable, batch, clip_value)
    expected_loss.backward()
    torch.testing.assert_close(loss, expected_loss.detach())
    torch.testing.assert_close(d_policy, policy_variable.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(d_value, value_variable.grad, rtol=1e-4, atol=1e-6)
    assert 0.1 < expected["clip_fraction"] < 0.9
    assert dict(zip(DIAGNOSTICS, diagnostics.tolist(), strict=True)) == pytest.approx(
        expected, rel=1e-3, abs=1e-5
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "flows"),
    [(1.5, 1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (0.5, -1.0, False)],
)
def test_clipping_stops_the_gradient_only_where_the_policy_has_moved_enough(
    ratio: float, advantage: float, flows: bool
) -> None:
    batch = PPOMinibatch(
        observation=np.zeros((1, 1), np.float32),
        action=np.zeros(1, np.int64),
        log_prob=np.log(np.array([0.5 / ratio], np.float32)),
        value=np.zeros(1, np.float32),
        advantage=np.array([advantage], np.float32),
        target=np.zeros(1, np.float32),
        total=1,
        uses=1,
    )
    d_policy, _, _, _ = derivatives(gym.spaces.Discrete(2), {}, batch, np.zeros((1, 2)), np.zeros(1))
    assert bool(d_policy.any()) is flows
