from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, Normal

from tianji_algos.distributions import distribution_for
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.fast_cpu.distributions import by_hand

SPACES = {
    "two": gym.spaces.Discrete(2),
    "many": gym.spaces.Discrete(7),
    "several": gym.spaces.MultiDiscrete([3, 2, 4]),
    "grid": gym.spaces.MultiDiscrete([[3, 2], [4, 5]]),
    "box": gym.spaces.Box(-1.0, 1.0, (3,), np.float32),
    "matrix": gym.spaces.Box(-1.0, 1.0, (2, 2), np.float32),
}


class Reference:
    """The same distribution by torch."""

    def __init__(self, space: gym.Space[Any], policy: torch.Tensor) -> None:
        self.parts: list[Any]
        if isinstance(space, gym.spaces.Box):
            mean, log_std = policy.chunk(2, dim=1)
            self.parts = [Independent(Normal(mean, log_std.exp()), 1)]
        else:
            sizes = [int(space.n)] if isinstance(space, gym.spaces.Discrete) else space.nvec.ravel().tolist()  # type: ignore[attr-defined]
            self.parts = [Categorical(logits=logits) for logits in policy.split(sizes, dim=1)]

    def log_prob(self, action: npt.NDArray[Any]) -> torch.Tensor:
        rows = torch.from_numpy(action.reshape(len(action), -1))
        if isinstance(self.parts[0], Independent):
            return self.parts[0].log_prob(rows)
        return sum((p.log_prob(rows[:, k]) for k, p in enumerate(self.parts)), torch.zeros(len(rows)))

    def entropy(self) -> torch.Tensor:
        return sum((p.entropy() for p in self.parts), torch.zeros(1))


@pytest.fixture(params=SPACES.values(), ids=SPACES)
def space(request: pytest.FixtureRequest) -> gym.Space[Any]:
    return request.param


@pytest.mark.parametrize("column_major", [True, False])
def test_log_prob_and_entropy_agree_with_torch(space: gym.Space[Any], column_major: bool) -> None:
    rng = np.random.default_rng(0)
    distribution = distribution_for(space)
    policy = rng.standard_normal((50, distribution.outputs)).astype(np.float32)
    policy = np.asfortranarray(policy) if column_major else policy
    action = np.empty((50, *distribution.action_shape), distribution.action_dtype)
    sampled_log_prob = np.empty(50, np.float32)
    distribution.sample(policy, rng, action, sampled_log_prob)
    log_prob, entropy = by_hand(distribution).evaluate(policy, action)
    reference = Reference(space, torch.from_numpy(np.ascontiguousarray(policy)))
    for own, right in zip(
        distribution.evaluate(torch.from_numpy(policy), torch.from_numpy(action)),
        (reference.log_prob(action), reference.entropy()),
        strict=True,
    ):
        torch.testing.assert_close(own, right, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(log_prob, reference.log_prob(action), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sampled_log_prob, log_prob, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(entropy, reference.entropy(), rtol=1e-4, atol=1e-5)


@given(
    st.sampled_from(list(SPACES.values())), st.integers(0, 2**20), st.integers(1, 30), st.floats(0.1, 10.0)
)
def test_derivatives_by_hand_are_those_of_the_probabilities_in_torch(
    space: gym.Space[Any], seed: int, rows: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    distribution = distribution_for(space)
    policy = (scale * rng.standard_normal((rows, distribution.outputs))).astype(np.float32)
    if isinstance(space, gym.spaces.Box):
        policy[:, distribution.outputs // 2 :] /= scale
    action = np.empty((rows, *distribution.action_shape), distribution.action_dtype)
    distribution.sample(policy, rng, action, np.empty(rows, np.float32))
    d_log_prob = rng.standard_normal(rows).astype(np.float32)
    derivatives = by_hand(distribution)
    numbers = derivatives.evaluate(policy, action)
    gradient = derivatives.gradient(d_log_prob, d_entropy=-0.3)
    variable = torch.from_numpy(policy.copy()).requires_grad_()
    log_prob, entropy = distribution.evaluate(variable, torch.from_numpy(action))
    for own, right in zip(numbers, (log_prob, entropy), strict=True):
        np.testing.assert_allclose(own, right.detach(), rtol=1e-4, atol=1e-4)
    loss = (torch.from_numpy(d_log_prob) * log_prob).sum() - 0.3 * entropy.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    assert variable.grad is not None
    size = 1.0 + float(variable.grad.abs().max())
    np.testing.assert_allclose(gradient, variable.grad, rtol=1e-3, atol=1e-5 * size)


def test_sampled_frequencies_are_the_probabilities() -> None:
    distribution = distribution_for(gym.spaces.Discrete(4))
    probability = np.array([0.5, 0.0, 0.2, 0.3])
    with np.errstate(divide="ignore"):
        policy = np.tile(np.log(probability), (40_000, 1)).astype(np.float32)
    action = np.empty(40_000, np.int64)
    distribution.sample(policy, np.random.default_rng(2), action, np.empty(40_000, np.float32))
    frequency = np.bincount(action, minlength=4) / 40_000
    np.testing.assert_allclose(frequency, probability, atol=0.015)
    assert frequency[1] == 0.0


def test_gaussian_samples_have_the_mean_and_the_standard_deviation() -> None:
    distribution = distribution_for(gym.spaces.Box(-1.0, 1.0, (2,), np.float32))
    policy = np.tile(np.array([1.0, -2.0, 0.0, -1.0], np.float32), (40_000, 1))
    action = np.empty((40_000, 2), np.float32)
    distribution.sample(policy, np.random.default_rng(3), action, np.empty(40_000, np.float32))
    np.testing.assert_allclose(action.mean(axis=0), [1.0, -2.0], atol=0.02)
    np.testing.assert_allclose(action.std(axis=0), [1.0, np.exp(-1.0)], atol=0.02)


def test_mode_is_the_likeliest_action(space: gym.Space[Any]) -> None:
    rng = np.random.default_rng(4)
    distribution = distribution_for(space)
    policy = rng.standard_normal((10, distribution.outputs)).astype(np.float32)
    best, _ = by_hand(distribution).evaluate(policy, distribution.mode(policy))
    for _ in range(50):
        action = np.empty((10, *distribution.action_shape), distribution.action_dtype)
        log_prob = np.empty(10, np.float32)
        distribution.sample(policy, rng, action, log_prob)
        assert (log_prob <= best + 1e-5).all()


def test_the_environment_gets_clipped_actions_and_the_record_keeps_them_as_drawn() -> None:
    distribution = distribution_for(gym.spaces.Box(-1.0, 1.0, (1,), np.float32))
    action = np.array([[3.0], [0.5], [-3.0]], np.float32)
    np.testing.assert_array_equal(distribution.for_environment(action), [[1.0], [0.5], [-1.0]])
    np.testing.assert_array_equal(action, [[3.0], [0.5], [-3.0]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_each_number_is_scaled_by_the_bounds_that_it_has(dtype: Any) -> None:
    inf, most = np.inf, np.inf if dtype == np.float16 else np.finfo(dtype).max
    low = np.array([-1.0, 10.0, -0.5, 8.0, -inf, -inf, -most], dtype)
    high = np.array([1.0, 30.0, 0.5, inf, 8.0, inf, most], dtype)
    space = gym.spaces.Box(low, high, dtype=dtype)
    action = np.array([[-2.0], [-1.0], [0.0], [0.5], [1.0], [2.0]], np.float32)
    wanted = [
        [-1.0, 10.0, -0.5, 8.0, 5.0, -2.0, -2.0],
        [-1.0, 10.0, -0.5, 8.0, 6.0, -1.0, -1.0],
        [0.0, 20.0, 0.0, 9.0, 7.0, 0.0, 0.0],
        [0.5, 25.0, 0.25, 9.5, 7.5, 0.5, 0.5],
        [1.0, 30.0, 0.5, 10.0, 8.0, 1.0, 1.0],
        [1.0, 30.0, 0.5, 11.0, 8.0, 2.0, 2.0],
    ]
    given = distribution_for(space).for_environment(np.repeat(action, 7, axis=1))
    assert given.dtype == dtype
    np.testing.assert_array_equal(given, wanted)
    unscaled = distribution_for(space, scaled=False).for_environment(np.repeat(action, 7, axis=1))
    np.testing.assert_array_equal(unscaled, np.clip(np.repeat(action, 7, axis=1), low, high))


def test_the_environment_gets_actions_counted_from_its_own_start() -> None:
    distribution = distribution_for(gym.spaces.Discrete(3, start=-1))
    np.testing.assert_array_equal(distribution.for_environment(np.array([0, 1, 2])), [-1, 0, 1])


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.MultiBinary(3),
        gym.spaces.Dict(a=gym.spaces.Discrete(2)),
        gym.spaces.Box(0, 5, (2,), np.int64),
    ],
    ids=["binary", "dict", "integers"],
)
def test_a_space_that_ppo_cannot_act_in_is_named(space: gym.Space[Any]) -> None:
    with pytest.raises(
        UnsupportedSpaceError, match=r"Discrete and MultiDiscrete spaces and in Boxes of floats"
    ):
        distribution_for(space)
