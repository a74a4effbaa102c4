"""IMPALA's loss in torch, and what was derived by hand from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.fragments import Fragment, random_fragment
from hypothesis import given
from hypothesis import strategies as st

from tianji_algos.core import Spaces
from tianji_algos.distributions import distribution_for
from tianji_algos.fast_cpu.impala import IMPALALossByHand, v_trace
from tianji_algos.impala.impala import DIAGNOSTICS, IMPALALoss, IMPALAMinibatch
from tianji_algos.impala.settings import IMPALASettings
from tianji_algos.normalization import ValueUnits

Floats = npt.NDArray[np.float32]

STEPS, WIDTH, VALUE_COEF, ENTROPY_COEF = 20, 6, 0.7, 0.03
SETTINGS: dict[str, Any] = {
    "gamma": 0.9,
    "rho_bar": 1.2,
    "c_bar": 0.9,
    "pg_rho_bar": 1.1,
    "vtrace_lambda": 0.95,
    "value_coef": VALUE_COEF,
    "entropy_coef": ENTROPY_COEF,
}
VTRACE = IMPALASettings(**SETTINGS)
ACTIONS: list[gym.Space[Any]] = [
    gym.spaces.Discrete(3),
    gym.spaces.MultiDiscrete([3, 2]),
    gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
]
SPACES = Spaces(gym.spaces.Box(-1.0, 1.0, (4,), np.float32), gym.spaces.Discrete(3))
CASES = st.fixed_dictionaries(
    {
        "space": st.sampled_from(ACTIONS),
        "seed": st.integers(0, 2**20),
        "steps": st.integers(1, 12),
        "width": st.integers(1, 5),
        "others": st.integers(0, 30),
        "correction": st.sampled_from(["vtrace", "none"]),
        "reduction": st.sampled_from(["sum", "mean"]),
        "units": st.sampled_from([None, ValueUnits(0.0, 1.0), ValueUnits(-3.0, 7.0)]),
    }
)


def loss_for(spaces: Spaces, *, is_corrected: bool = True, is_mean: bool = False) -> IMPALALossByHand:
    chosen = {"correction": "vtrace" if is_corrected else "none", "reduction": "mean" if is_mean else "sum"}
    return IMPALALossByHand(distribution_for(spaces.action), IMPALASettings(**SETTINGS, **chosen))


def tensors_of(batch: IMPALAMinibatch) -> IMPALAMinibatch:
    """The same minibatch for the loss in torch."""
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return IMPALAMinibatch(
        **{
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in fields.items()
        }
    )


@given(CASES)
def test_derivatives_by_hand_are_those_of_the_loss(case: dict[str, Any]) -> None:
    rng = np.random.default_rng(case["seed"])
    spaces = Spaces(gym.spaces.Box(-1.0, 1.0, (4,), np.float32), case["space"])
    made = random_fragment(rng, case["steps"], case["width"], spaces)
    samples = int(made["mask"].sum())
    if not samples:
        return
    batch = minibatch(made, total=samples + case["others"])
    distribution = distribution_for(case["space"])
    rows = (case["steps"] + 1) * case["width"]
    policy = rng.normal(0.0, 0.5, (rows, distribution.outputs)).astype(np.float32)
    value = rng.standard_normal(rows, np.float32)
    settings = IMPALASettings(**SETTINGS, **{name: case[name] for name in ("correction", "reduction")})
    variables = [torch.from_numpy(array.copy()).requires_grad_() for array in (policy, value)]
    in_torch = IMPALALoss(distribution, settings, case["units"])
    by_hand = IMPALALossByHand(distribution, settings, case["units"])
    loss, expected = in_torch(variables[0], variables[1], tensors_of(batch))
    loss.backward()  # type: ignore[no-untyped-call]
    *found, diagnostics = by_hand.gradient(policy, value, batch)
    assert len(by_hand.targets()) == (0 if case["units"] is None else samples)
    if case["units"] is not None:
        np.testing.assert_allclose(by_hand.targets(), in_torch.targets(), rtol=1e-3, atol=1e-3)
    for own, variable in zip(found, variables, strict=True):
        assert variable.grad is not None
        size = 1.0 + float(variable.grad.abs().max())
        np.testing.assert_allclose(own, variable.grad, rtol=1e-3, atol=1e-5 * size)
    np.testing.assert_allclose(diagnostics, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_normalised_values_are_learnt_as_if_rewards_came_in_their_units(mean: float) -> None:
    """Without ends, a mean in all values is a reward of ``(1 - gamma) mean`` in every step."""
    rng = np.random.default_rng(8)
    made = random_fragment(rng, STEPS, WIDTH, SPACES)
    for name in ("terminated", "truncated"):
        made[name][...] = 0
    made["mask"][...] = 1
    policy, value = outputs(SPACES)
    distribution, settings = distribution_for(SPACES.action), IMPALASettings(**SETTINGS)
    loss = IMPALALossByHand(distribution, settings, ValueUnits(mean, 7.0))
    found = loss.gradient(policy, value, minibatch(made))
    made["reward"] = ((made["reward"] - (1 - VTRACE.gamma) * mean) / 7.0).astype(np.float32)
    expected = IMPALALossByHand(distribution, settings).gradient(policy, value, minibatch(made))
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-3, atol=1e-4)
    assert loss.targets().mean() == pytest.approx(mean, abs=7.0)


def minibatch(fragment: Fragment, total: int | None = None) -> IMPALAMinibatch:
    mask = fragment["mask"].astype(bool)
    action, log_prob = (
        fragment[name].reshape(-1, *fragment[name].shape[2:])[mask.reshape(-1)]
        for name in ("action", "log_prob")
    )
    return IMPALAMinibatch(
        observation=None,
        experience=np.flatnonzero(mask),
        action=action,
        log_prob=log_prob,
        reward=fragment["reward"],
        terminated=fragment["terminated"].astype(bool),
        mask=mask,
        total=int(mask.sum()) if total is None else total,
    )


def outputs(spaces: Spaces, seed: int = 1) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    rows = (STEPS + 1) * WIDTH
    policy = rng.normal(0.0, 0.5, (rows, distribution_for(spaces.action).outputs)).astype(np.float32)
    return policy, rng.standard_normal(rows).astype(np.float32)


def log_prob_and_entropy(
    policy: torch.Tensor, action: npt.NDArray[Any], spaces: Spaces
) -> tuple[torch.Tensor, torch.Tensor]:
    if spaces.action.shape == ():
        categorical = torch.distributions.Categorical(logits=policy)
        return categorical.log_prob(torch.from_numpy(action)), categorical.entropy()
    mean, log_std = policy.chunk(2, dim=1)
    normal = torch.distributions.Normal(mean, log_std.exp())
    return normal.log_prob(torch.from_numpy(action)).sum(dim=1), normal.entropy().sum(dim=1)


def reference(
    policy: torch.Tensor, value: torch.Tensor, batch: IMPALAMinibatch, spaces: Spaces, is_corrected: bool
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss as section 4.2 has it, for autograd to differentiate; targets are constants."""
    where = torch.from_numpy(batch.experience)
    log_prob, entropy = log_prob_and_entropy(policy[where], batch.action, spaces)
    log_ratio = (log_prob - torch.from_numpy(batch.log_prob)).detach()
    ratio = np.zeros(batch.mask.shape, np.float32)
    ratio.reshape(-1)[batch.experience] = log_ratio.exp() if is_corrected else 1.0
    values = value.detach().numpy().reshape(STEPS + 1, WIDTH)
    error, advantage = v_trace(VTRACE, ratio, batch.reward, values, batch.terminated, batch.mask)
    target = torch.from_numpy((values[:-1] + error).reshape(-1))[where]
    gain = torch.from_numpy(advantage.reshape(-1))[where]
    policy_loss = -(gain * log_prob).sum()
    value_loss = 0.5 * (target - value[where]).square().sum()
    diagnostics = {
        "policy_loss": policy_loss.item() / batch.samples,
        "value_loss": value_loss.item() / batch.samples,
        "entropy": entropy.mean().item(),
        "approx_kl": (log_ratio.exp() - 1 - log_ratio).mean().item(),
        "rho": log_ratio.exp().clamp(max=VTRACE.rho_bar).mean().item(),
        "clip_fraction": (log_ratio.exp() > VTRACE.rho_bar).float().mean().item(),
    }
    return policy_loss + VALUE_COEF * value_loss - ENTROPY_COEF * entropy.sum(), diagnostics


@pytest.fixture
def fragment(spaces: Spaces) -> Fragment:
    made = random_fragment(np.random.default_rng(3), STEPS, WIDTH, spaces)
    if spaces.action.shape:
        made["log_prob"] -= np.float32(1.5)  # About as likely as actions are to ``outputs``.
    return made


@pytest.mark.parametrize("is_corrected", [True, False])
def test_the_gradient_is_that_of_the_loss_with_targets_held(
    spaces: Spaces, fragment: Fragment, is_corrected: bool
) -> None:
    batch, (policy, value) = minibatch(fragment), outputs(spaces)
    d_policy, d_value, diagnostics = loss_for(spaces, is_corrected=is_corrected).gradient(
        policy, value, batch
    )
    policy_variable = torch.from_numpy(policy).requires_grad_()
    value_variable = torch.from_numpy(value).requires_grad_()
    expected_loss, expected = reference(policy_variable, value_variable, batch, spaces, is_corrected)
    expected_loss.backward()
    np.testing.assert_allclose(d_policy, policy_variable.grad, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(d_value, value_variable.grad, rtol=1e-3, atol=1e-5)
    assert 0.1 < expected["clip_fraction"] < 0.9
    assert dict(zip(DIAGNOSTICS, diagnostics.tolist(), strict=True)) == pytest.approx(
        expected, rel=1e-3, abs=1e-5
    )


def test_what_is_no_experience_gets_no_gradient(spaces: Spaces, fragment: Fragment) -> None:
    batch, (policy, value) = minibatch(fragment), outputs(spaces)
    is_experience = np.append(batch.mask, np.zeros((1, WIDTH), bool))
    assert (~is_experience[:-WIDTH]).sum() > 0
    d_policy, d_value, _ = loss_for(spaces).gradient(policy, value, batch)
    assert not d_policy[~is_experience].any()
    assert not d_value[~is_experience].any()
    assert d_policy[is_experience].any(axis=1).all()
    assert d_value[is_experience].all()


def test_a_mean_is_over_the_samples_of_all_learners(spaces: Spaces, fragment: Fragment) -> None:
    (policy, value), batch = outputs(spaces), minibatch(fragment, total=500)
    total = loss_for(spaces).gradient(policy, value, batch)
    mean = loss_for(spaces, is_mean=True).gradient(policy, value, batch)
    for of_sum, of_mean in zip(total[:2], mean[:2], strict=True):
        np.testing.assert_allclose(of_mean * 500, of_sum, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(total[2], mean[2])
