from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.gradients import assert_gradients_are_autograds
from algos.training import flat_of
from torch import nn
from torch.nn import functional

from tianji_algos import registry
from tianji_algos.core import Model, Spaces, build_model
from tianji_algos.models.cnn import CNNQ, CNNActorCritic
from tianji_algos.optim import flatten_parameters

Floats = npt.NDArray[np.float32]

A3C = {"channels": [16, 32], "hidden": 256}


def images(*shape: int) -> gym.spaces.Box:
    return gym.spaces.Box(0, 255, shape, np.uint8)


ATARI = Spaces(images(4, 84, 84), gym.spaces.Discrete(6), stack=4)
SMALL = Spaces(images(4, 36, 40), gym.spaces.Discrete(3), stack=4)


def build(name: str, spaces: Spaces, **settings: Any) -> Model:
    checked = registry.settings_type("model", name).model_validate(settings)
    return build_model(registry.load("model", name), spaces, checked, seed=3)


def actor_critic(spaces: Spaces, **settings: Any) -> CNNActorCritic:
    built = build("cnn_actor_critic", spaces, **settings)
    assert isinstance(built, CNNActorCritic)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if name.endswith("bias"):  # they begin at 0, which hides them
                parameter.uniform_(-0.2, 0.2, generator=torch.Generator().manual_seed(parameter.numel()))
    return built


def q_network(spaces: Spaces, **settings: Any) -> CNNQ:
    built = build("cnn_q", spaces, **settings)
    assert isinstance(built, CNNQ)
    return built


def observations(spaces: Spaces, rows: int) -> npt.NDArray[np.uint8]:
    shape = (rows, *(spaces.observation.shape or ()))
    return np.random.default_rng(rows).integers(0, 256, shape, np.uint8)


def plain_stack(model: CNNActorCritic, pixels: torch.Tensor) -> torch.Tensor:
    """Layers as the papers describe them, on pixels from 0 to 1."""
    layers = [model.encoder.first, *(layer for layer in model.encoder.rest if isinstance(layer, nn.Conv2d))]
    for layer in layers:
        pixels = functional.relu(functional.conv2d(pixels, layer.weight, layer.bias, layer.stride))
    dense: torch.Tensor = model.encoder.dense(pixels.flatten(1))
    return dense


def residual_network(model: CNNActorCritic, pixels: torch.Tensor) -> torch.Tensor:
    """Figure 3, right: sections of a convolution, pooling and two blocks."""
    convolutions = [m for m in model.encoder.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 15
    flowing = pixels
    for section in range(3):
        into, *blocks = convolutions[5 * section : 5 * section + 5]
        flowing = functional.conv2d(flowing, into.weight, into.bias, padding=1)
        flowing = functional.max_pool2d(flowing, 3, 2, padding=1)
        for one, two in (blocks[:2], blocks[2:]):
            added = functional.conv2d(functional.relu(flowing), one.weight, one.bias, padding=1)
            added = functional.conv2d(functional.relu(added), two.weight, two.bias, padding=1)
            flowing = flowing + added
    dense: torch.Tensor = model.encoder.dense(functional.relu(flowing).flatten(1))
    return dense


def plain_outputs(model: CNNActorCritic, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    large = model.settings.encoder == "impala_large"
    outputs = model.head.outputs((residual_network if large else plain_stack)(model, pixels / 255.0))
    return outputs[:, :-1], outputs[:, -1]


ENCODERS: dict[str, dict[str, Any]] = {
    "nature": {},
    "a3c": A3C,
    "impala_small": {"encoder": "impala_small"},
    "impala_large": {"encoder": "impala_large"},
}


@pytest.fixture(params=list(ENCODERS.values()), ids=list(ENCODERS))
def encoder(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        # Mnih et al. (2015): 84 -> 20 -> 9 -> 7, so 7 * 7 * 64 = 3136 numbers go into the layer of 512.
        ("nature", [32 * 4 * 64 + 32, 64 * 32 * 16 + 64, 64 * 64 * 9 + 64, 3136 * 512 + 512]),
        # Mnih et al. (2016): 9 * 9 * 32 = 2592.
        ("a3c", [16 * 4 * 64 + 16, 32 * 16 * 16 + 32, 2592 * 256 + 256]),
        ("impala_small", [16 * 4 * 64 + 16, 32 * 16 * 16 + 32, 2592 * 256 + 256]),
        # Espeholt et al. (2018): 84 -> 42 -> 21 -> 11, so 11 * 11 * 32 = 3872.
        (
            "impala_large",
            [
                16 * 4 * 9 + 16,
                4 * (16 * 16 * 9 + 16),
                32 * 16 * 9 + 32,
                9 * (32 * 32 * 9 + 32),
                3872 * 256 + 256,
            ],
        ),
    ],
)
def test_the_layers_are_of_the_papers_sizes(name: str, layers: list[int]) -> None:
    model = actor_critic(ATARI, **ENCODERS[name])
    width = 512 if name == "nature" else 256
    assert model.parameter_count == sum(layers) + 7 * (width + 1)  # six actions and a value


def test_a_dueling_network_has_a_hidden_layer_for_each_stream() -> None:
    convolutions = 32 * 4 * 64 + 32 + 64 * 32 * 16 + 64 + 64 * 64 * 9 + 64
    plain, dueling = q_network(ATARI), q_network(ATARI, dueling=True)
    assert plain.parameter_count == convolutions + 3137 * 512 + 513 * 6
    assert dueling.parameter_count == convolutions + 2 * 3137 * 512 + 513 * (6 + 1)


def test_outputs_and_gradients_are_those_of_the_plain_layers_on_pixels_from_0_to_1(
    encoder: dict[str, Any],
) -> None:
    spaces = SMALL if encoder.get("encoder") == "impala_large" else ATARI
    model = actor_critic(spaces, policy_gain=1.0, **encoder)
    seen = observations(spaces, 3)
    d_value = np.array([1.0, -2.0, 0.5], np.float32)
    assert isinstance(spaces.action, gym.spaces.Discrete)
    d_policy = np.random.default_rng(0).standard_normal((3, int(spaces.action.n))).astype(np.float32)

    def plain() -> tuple[torch.Tensor, torch.Tensor]:
        return plain_outputs(model, torch.from_numpy(seen).float())

    assert_gradients_are_autograds(model, seen, plain, (d_policy, d_value), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(40, 36), (40, 36, 3)])
def test_an_image_may_be_grey_or_have_its_colours_last(shape: tuple[int, ...]) -> None:
    spaces = Spaces(images(*shape), SMALL.action)
    model = actor_critic(spaces)
    seen = observations(spaces, 2)
    planes = seen[:, None] if len(shape) == 2 else seen.transpose(0, 3, 1, 2)
    expected = plain_outputs(model, torch.from_numpy(planes.astype(np.float32)))
    for output, right in zip(model(torch.from_numpy(seen)), expected, strict=True):
        torch.testing.assert_close(output, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_executor_computes_what_the_network_does_with_what_it_adopted(
    encoder: dict[str, Any], precision: str
) -> None:
    model = actor_critic(SMALL, policy_gain=1.0, precision=precision, **encoder)
    execute = model.executor(batch_size=5)
    seen = observations(SMALL, 5)
    seen.flags.writeable = False
    tolerance = 1e-4 if precision == "float32" else 3e-2
    for change in (0.0, 0.01):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(change)
        adopted = flat_of(model)
        execute.adopt(adopted)
        adopted[:] = np.nan
        with torch.no_grad():
            expected = model(torch.from_numpy(seen.copy()))
        for output, right in zip(execute(seen), expected, strict=True):
            assert output.dtype == np.float32
            np.testing.assert_allclose(
                output, right, rtol=tolerance, atol=tolerance * float(right.abs().max())
            )


def test_bfloat16_is_close_to_float32_and_gives_float32(encoder: dict[str, Any]) -> None:
    spaces = SMALL if encoder.get("encoder") == "impala_large" else ATARI
    exact = actor_critic(spaces, policy_gain=1.0, **encoder)
    rounded = actor_critic(spaces, policy_gain=1.0, precision="bfloat16", **encoder)
    np.testing.assert_array_equal(flat_of(exact), flat_of(rounded))
    gradients: list[torch.Tensor] = []
    values: list[Floats] = []
    for model in (exact, rounded):
        flat = flatten_parameters(model)

        def loss_gradient(policy: Floats, value: Floats) -> tuple[Floats, Floats]:
            assert policy.dtype == value.dtype == np.float32
            values.append(value.copy())
            return np.ones_like(policy), np.ones_like(value)

        model.backprop()(observations(spaces, 8), loss_gradient)
        assert flat.dtype == torch.float32
        assert flat.grad is not None
        gradients.append(flat.grad)
    assert not np.array_equal(values[0], values[1])
    np.testing.assert_allclose(values[1], values[0], atol=0.03 * np.abs(values[0]).max())
    cosine = functional.cosine_similarity(gradients[0], gradients[1], dim=0)
    assert float(cosine) > 0.99


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_flat_parameters_stay_float32_and_come_back_as_they_were(precision: str) -> None:
    model = actor_critic(SMALL, precision=precision, **A3C)
    model.executor(4)
    flat = flat_of(model)
    other = actor_critic(SMALL, precision=precision, **A3C)
    other.read_parameters(np.zeros_like(flat))
    other.read_parameters(flat)
    np.testing.assert_array_equal(flat_of(other), flat)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_copy_of_a_flattened_network_has_parameters_of_its_own() -> None:
    model = q_network(SMALL, dueling=True)
    flat = flatten_parameters(model)
    twin = copy.deepcopy(model)
    seen = torch.from_numpy(observations(SMALL, 3))
    with torch.no_grad():
        before = model(seen)
        assert float(before.abs().max()) > 0.0
        flat.zero_()
        torch.testing.assert_close(model(seen), torch.zeros(3, 3), rtol=0.0, atol=0.0)
        torch.testing.assert_close(twin(seen), before, rtol=0.0, atol=0.0)


def test_a_dueling_networks_advantages_have_mean_zero() -> None:
    model = q_network(SMALL, dueling=True)
    seen = observations(SMALL, 4)
    (before,) = model.evaluation()(seen)
    before = before.copy()
    with torch.no_grad():
        model.get_parameter("actions.0.bias").add_(3.0)  # one advantage for every action is none
    (after,) = model.evaluation()(seen)
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        features = model.encoder(torch.from_numpy(seen))
        assert model.value is not None
        value = model.value(features[:, : features.shape[1] // 2])
    np.testing.assert_allclose(after.mean(axis=1), value[:, 0], rtol=1e-4, atol=1e-5)
    assert np.ptp(after, axis=1).min() > 1e-3


@pytest.mark.parametrize("dueling", [False, True])
def test_action_values_train_and_act_through_the_contract(dueling: bool) -> None:
    model = q_network(SMALL, dueling=dueling, precision="bfloat16")
    flat = flatten_parameters(model)
    seen = observations(SMALL, 6)
    (acted,) = model.executor(6)(seen)
    given: list[Floats] = []

    def loss_gradient(q: Floats) -> tuple[Floats]:
        given.append(q.copy())
        return (np.ones_like(q),)

    model.backprop()(seen, loss_gradient)
    assert flat.grad is not None
    assert float(flat.grad.abs().max()) > 0.0
    np.testing.assert_allclose(acted, given[0], atol=0.03 * float(np.abs(given[0]).max()))


def test_continuous_actions_have_means_and_a_spread_of_their_own() -> None:
    spaces = Spaces(images(40, 40, 3), gym.spaces.Box(-1.0, 1.0, (3,), np.float32))
    model = actor_critic(spaces, initial_log_std=-0.5)
    policy, value = model(torch.from_numpy(observations(spaces, 2)))
    assert (policy.shape, value.shape) == ((2, 6), (2,))
    torch.testing.assert_close(policy[:, 3:], torch.full((2, 3), -0.5))
