from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch

from tianji_algos.core import Spaces, build_model
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.fast_cpu.networks import MLPBackprop
from tianji_algos.models.mlp import MLPActorCritic
from tianji_algos.models.observations import observation_encoder
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.models.torch_backend import TorchBackprop, TorchExecutor
from tianji_algos.optim import flatten_parameters

Floats = npt.NDArray[np.float32]

OBSERVATIONS = gym.spaces.Box(-np.inf, np.inf, (2, 3), np.float32)
ACTIONS = {
    "discrete": gym.spaces.Discrete(3),
    "several": gym.spaces.MultiDiscrete([2, 4]),
    "box": gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
}


@pytest.fixture(params=ACTIONS.values(), ids=ACTIONS)
def spaces(request: pytest.FixtureRequest) -> Spaces:
    return Spaces(OBSERVATIONS, request.param)


@pytest.fixture(params=[True, False], ids=["shared", "separate"])
def shared(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(params=["tanh", "relu"])
def model(request: pytest.FixtureRequest, spaces: Spaces, shared: bool) -> MLPActorCritic:
    settings = MLPActorCriticSettings(
        hidden=(16, 8), activation=request.param, shared=shared, policy_gain=1.0, initial_log_std=-0.3
    )
    built = build_model(MLPActorCritic, spaces, settings, seed=3)
    assert isinstance(built, MLPActorCritic)
    return built


def observations(rows: int) -> Floats:
    return np.random.default_rng(rows).standard_normal((rows, 2, 3)).astype(np.float32)


def test_the_numpy_executor_computes_what_torch_does(model: MLPActorCritic) -> None:
    execute = model.executor(batch_size=7)
    for rows in (7, 3):
        policy, value = execute(observations(rows))
        expected_policy, expected_value = TorchExecutor(model)(observations(rows))
        np.testing.assert_allclose(policy, expected_policy, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(value, expected_value, rtol=1e-4, atol=1e-5)


def test_an_executor_acts_with_what_it_adopted_and_not_with_the_model(model: MLPActorCritic) -> None:
    execute = model.executor(batch_size=5)
    before = [output.copy() for output in execute(observations(5))]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    for output, expected in zip(execute(observations(5)), before, strict=True):
        np.testing.assert_array_equal(output, expected)
    flat = np.empty(model.parameter_count, np.float32)
    model.write_parameters(flat)
    execute.adopt(flat)
    flat[:] = np.nan
    for output, expected in zip(execute(observations(5)), TorchExecutor(model)(observations(5)), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def test_the_hand_derived_backward_pass_agrees_with_autograd(model: MLPActorCritic) -> None:
    flat = flatten_parameters(model)
    assert flat.grad is not None
    rng = np.random.default_rng(0)

    def loss_gradient(policy: Floats, value: Floats) -> tuple[Floats, Floats]:
        d_policy = rng.standard_normal(policy.shape[::-1]).astype(np.float32).T
        return d_policy, rng.standard_normal(value.shape).astype(np.float32)

    backprop = model.backprop()
    assert isinstance(backprop, MLPBackprop)
    for rows in (9, 4, 9):
        rng = np.random.default_rng(rows)
        backprop(observations(rows), loss_gradient)
        by_hand = flat.grad.clone()
        flat.grad.fill_(7.0)
        rng = np.random.default_rng(rows)
        TorchBackprop(model)(observations(rows), loss_gradient)
        torch.testing.assert_close(by_hand, flat.grad, rtol=1e-4, atol=1e-5)


def test_parameters_travel_as_one_flat_array(model: MLPActorCritic, spaces: Spaces) -> None:
    twin = build_model(MLPActorCritic, spaces, model.settings, seed=99)
    flat = np.empty(model.parameter_count, np.float32)
    model.write_parameters(flat)
    twin.read_parameters(flat)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_flattened_parameters_share_memory_with_the_model(model: MLPActorCritic) -> None:
    before = [parameter.detach().clone() for parameter in model.parameters()]
    flat = flatten_parameters(model)
    assert flat.numel() == sum(parameter.numel() for parameter in model.parameters())
    with torch.no_grad():
        flat.add_(1.0)
    for parameter, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), old + 1.0)


def test_initial_parameters_depend_on_the_seed_and_leave_the_global_stream_alone(spaces: Spaces) -> None:
    def build(seed: int) -> Floats:
        model = build_model(MLPActorCritic, spaces, MLPActorCriticSettings(hidden=(8,)), seed)
        flat = np.empty(model.parameter_count, np.float32)
        model.write_parameters(flat)
        return flat

    before = torch.random.get_rng_state()
    np.testing.assert_array_equal(build(1), build(1))
    assert (build(1) != build(2)).any()
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("space", "encode"),
    [
        (gym.spaces.Discrete(4, start=2), lambda x: np.eye(4)[x - 2]),
        (
            gym.spaces.MultiDiscrete([2, 3]),
            lambda x: np.concatenate((np.eye(2)[x[:, 0]], np.eye(3)[x[:, 1]]), axis=1),
        ),
        (gym.spaces.Box(0, 255, (2, 2), np.uint8), lambda x: x.reshape(len(x), -1).astype(np.float32)),
    ],
    ids=["discrete", "several", "pixels"],
)
def test_observations_become_rows_of_numbers(
    space: gym.Space[Any], encode: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
) -> None:
    space.seed(0)
    observation = np.array([space.sample() for _ in range(20)])
    encoder = observation_encoder(space)
    encoded = encoder(observation)
    assert encoded.dtype == np.float32
    assert encoded.shape == (20, encoder.features)
    np.testing.assert_array_equal(encoded, encode(observation))
    for _ in range(2):  # the second finds what the first has kept on the device
        np.testing.assert_array_equal(encoder.in_torch(torch.from_numpy(observation)), encoded)


def test_an_observation_space_that_the_network_cannot_take_is_named() -> None:
    with pytest.raises(UnsupportedSpaceError, match=r"not Text"):
        observation_encoder(gym.spaces.Text(5))
