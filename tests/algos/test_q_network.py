from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from tianji_algos.core import Spaces, build_model
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.fast_cpu.networks import MLPQBackprop
from tianji_algos.models.mlp import MLPQ
from tianji_algos.models.q_network import LossGradient, QNetwork, count_actions
from tianji_algos.models.settings import MLPQSettings
from tianji_algos.models.torch_backend import TorchBackprop, TorchExecutor, TorchForward
from tianji_algos.optim import flatten_parameters
from tianji_algos.settings import NoSettings

Floats = npt.NDArray[np.float32]

SPACES = Spaces(gym.spaces.Box(-np.inf, np.inf, (2, 3), np.float32), gym.spaces.Discrete(4))

NETWORKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dueling": {"dueling": True},
    "streams": {"dueling": True, "stream_hidden": (5,)},
    "deep-streams": {"dueling": True, "stream_hidden": (5, 7)},
}


class TorchQ(QNetwork):
    """A network of a user's own: forward() and nothing else."""

    settings_type = NoSettings

    def __init__(self, spaces: Spaces, settings: NoSettings) -> None:  # noqa: ARG002 - the contract
        super().__init__()
        self.layer = nn.Linear(6, count_actions(spaces.action))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        q: torch.Tensor = self.layer(observation.flatten(1))
        return q


@pytest.fixture(params=NETWORKS.values(), ids=NETWORKS)
def shape(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


@pytest.fixture(params=["tanh", "relu"])
def model(request: pytest.FixtureRequest, shape: dict[str, Any]) -> MLPQ:
    settings = MLPQSettings(hidden=(16, 8), activation=request.param, **shape)
    built = build_model(MLPQ, SPACES, settings, seed=3)
    assert isinstance(built, MLPQ)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.full_like(parameter, 0.05))  # biases begin at 0, which hides them
    return built


def observations(rows: int) -> Floats:
    return np.random.default_rng(rows).standard_normal((rows, 2, 3)).astype(np.float32)


def expected_q(model: QNetwork, observation: Floats) -> Floats:
    with torch.no_grad():
        return model(torch.from_numpy(observation)).numpy()


def constant(d_q: Floats) -> LossGradient:
    return lambda _: (d_q,)


def test_the_numpy_passes_compute_what_torch_does(model: MLPQ) -> None:
    execute, evaluate = model.executor(batch_size=7), model.evaluation()
    for rows in (7, 3, 7):
        expected = expected_q(model, observations(rows))
        assert expected.shape == (rows, 4)
        for compute in (execute, evaluate):
            (q,) = compute(observations(rows))
            np.testing.assert_allclose(q, expected, rtol=1e-4, atol=1e-5)


def test_the_hand_derived_backward_pass_agrees_with_autograd(model: MLPQ) -> None:
    flat = flatten_parameters(model)
    assert flat.grad is not None
    backprop = model.backprop()
    assert isinstance(backprop, MLPQBackprop)
    for rows in (9, 4, 9):
        d_q = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        backprop(observations(rows), constant(d_q))
        by_hand = flat.grad.clone()
        flat.grad.fill_(7.0)
        TorchBackprop(model)(observations(rows), constant(d_q))
        assert float(by_hand.abs().max()) > 0.1
        torch.testing.assert_close(by_hand, flat.grad, rtol=1e-4, atol=1e-5)


def test_the_loss_gradient_is_asked_about_the_values_of_the_observation(model: MLPQ) -> None:
    seen: list[Floats] = []

    def loss_gradient(q: Floats) -> tuple[Floats]:
        seen.append(q.copy())
        return (np.zeros_like(q),)

    flatten_parameters(model)
    model.backprop()(observations(5), loss_gradient)
    np.testing.assert_allclose(seen[0], expected_q(model, observations(5)), rtol=1e-4, atol=1e-5)


def test_an_evaluation_follows_the_parameters_and_an_executor_what_it_adopts(model: MLPQ) -> None:
    flatten_parameters(model)
    execute, evaluate = model.executor(batch_size=5), model.evaluation()
    before = expected_q(model, observations(5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    after = expected_q(model, observations(5))
    np.testing.assert_allclose(evaluate(observations(5))[0], after, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(execute(observations(5))[0], before, rtol=1e-4, atol=1e-5)
    flat = np.empty(model.parameter_count, np.float32)
    model.write_parameters(flat)
    execute.adopt(flat)
    flat[:] = np.nan
    np.testing.assert_allclose(execute(observations(5))[0], after, rtol=1e-4, atol=1e-5)


def test_what_an_evaluation_gave_outlives_a_backprop(model: MLPQ) -> None:
    flatten_parameters(model)
    evaluate, backprop = model.evaluation(), model.backprop()
    (q,) = evaluate(observations(5))
    kept = q.copy()
    backprop(observations(5) + 1.0, lambda q: (np.ones_like(q),))
    np.testing.assert_array_equal(q, kept)


@pytest.mark.parametrize("stream_hidden", [(), (5,)])
def test_a_dueling_networks_advantages_have_mean_zero(stream_hidden: tuple[int, ...]) -> None:
    settings = MLPQSettings(hidden=(16, 8), dueling=True, stream_hidden=stream_hidden)
    model = build_model(MLPQ, SPACES, settings, seed=3)
    assert isinstance(model, MLPQ)
    before = expected_q(model, observations(5))
    advantages = model.advantage[-1] if stream_hidden else model.trunk[-1]
    assert isinstance(advantages, nn.Linear)
    with torch.no_grad():
        advantages.bias[-4:] += 3.0  # one advantage for every action is none
    np.testing.assert_allclose(expected_q(model, observations(5)), before, rtol=1e-4, atol=1e-5)


def test_a_network_that_is_forward_alone_acts_evaluates_and_trains_through_torch() -> None:
    model = build_model(TorchQ, SPACES, NoSettings(), seed=0)
    assert isinstance(model, TorchQ)
    flat = flatten_parameters(model)
    execute, evaluate, backprop = model.executor(3), model.evaluation(), model.backprop()
    assert isinstance(execute, TorchExecutor)
    assert isinstance(evaluate, TorchForward)
    expected = expected_q(model, observations(3))
    for compute in (execute, evaluate):
        np.testing.assert_allclose(compute(observations(3))[0], expected, rtol=1e-4, atol=1e-5)
    d_q = np.arange(12, dtype=np.float32).reshape(3, 4)
    for _ in range(2):  # overwritten, not added to
        backprop(observations(3), constant(d_q))
    assert flat.grad is not None
    expected_d_weight = d_q.T @ observations(3).reshape(3, 6)
    np.testing.assert_allclose(flat.grad[:24].reshape(4, 6), expected_d_weight, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(flat.grad[24:], d_q.sum(axis=0), rtol=1e-4, atol=1e-5)


def test_a_copy_has_parameters_of_its_own(model: MLPQ) -> None:
    flatten_parameters(model)
    twin = copy.deepcopy(model)
    before = expected_q(twin, observations(3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(expected_q(twin, observations(3)), before)


@pytest.mark.parametrize(
    "space", [gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.MultiDiscrete([2, 3]), gym.spaces.MultiBinary(2)]
)
def test_an_action_space_without_single_actions_is_refused_with_what_would_be_right(
    space: gym.Space[Any],
) -> None:
    with pytest.raises(UnsupportedSpaceError, match=r"acts in Discrete spaces, not in .*'ppo'"):
        MLPQ(Spaces(SPACES.observation, space), MLPQSettings())


@pytest.mark.parametrize("values", [{"hidden": []}, {"stream_hidden": [0], "dueling": True}])
def test_layers_of_no_width_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least 1 item|greater than or equal to 1"):
        MLPQSettings.model_validate(values)


def test_streams_without_dueling_are_refused() -> None:
    with pytest.raises(ValueError, match="set dueling = true"):
        MLPQSettings(stream_hidden=(8,))


def test_a_network_of_torch_reads_memory_that_is_only_lent() -> None:
    model = build_model(TorchQ, SPACES, NoSettings(), seed=0)
    assert isinstance(model, TorchQ)
    lent = observations(3)
    lent.flags.writeable = False
    (q,) = model.evaluation()(lent)  # A warning of torch's would be an error here.
    np.testing.assert_allclose(q, expected_q(model, observations(3)), rtol=1e-4, atol=1e-5)
    model.backprop()(lent, constant(np.ones((3, 4), np.float32)))
