from __future__ import annotations

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch

from tianji_algos.distributions import distribution_for
from tianji_algos.ppo.ppo import DIAGNOSTICS, PPOLoss, PPOMinibatch

CLIP, VALUE_COEF, ENTROPY_COEF = 0.2, 0.7, 0.03


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
    )


@pytest.mark.parametrize("clip_value", [False, True])
def test_the_gradient_is_that_of_the_clipped_loss(clip_value: bool) -> None:
    rng = np.random.default_rng(0)
    batch = random_minibatch(rng, 200)
    policy = rng.standard_normal((200, 3)).astype(np.float32)
    value = rng.normal(0.0, 0.5, 200).astype(np.float32)
    loss = PPOLoss(distribution_for(gym.spaces.Discrete(3)), CLIP, clip_value, VALUE_COEF, ENTROPY_COEF)
    d_policy, d_value, diagnostics = loss.gradient(policy, value, batch)

    policy_variable = torch.from_numpy(policy).requires_grad_()
    value_variable = torch.from_numpy(value).requires_grad_()
    expected_loss, expected = reference(policy_variable, value_variable, batch, clip_value)
    expected_loss.backward()
    np.testing.assert_allclose(d_policy, policy_variable.grad, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(d_value, value_variable.grad, rtol=1e-4, atol=1e-6)
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
    )
    loss = PPOLoss(distribution_for(gym.spaces.Discrete(2)), CLIP, False, VALUE_COEF, entropy_coef=0.0)
    d_policy, _, _ = loss.gradient(np.zeros((1, 2), np.float32), np.zeros(1, np.float32), batch)
    assert bool(d_policy.any()) is flows
