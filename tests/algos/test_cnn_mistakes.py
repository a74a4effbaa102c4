"""Convolutional and recurrent networks refuse spaces, and name what would be right."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tianji_algos import registry
from tianji_algos.core import Spaces, build_model
from tianji_algos.errors import UnsupportedSpaceError

VECTOR = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)


def images(*shape: int) -> gym.spaces.Box:
    return gym.spaces.Box(0, 255, shape, np.uint8)


def build(name: str, observation: gym.Space[Any], **settings: Any) -> None:
    checked = registry.settings_type("model", name).model_validate(settings)
    build_model(registry.load("model", name), Spaces(observation, gym.spaces.Discrete(2)), checked, seed=0)


@pytest.mark.parametrize("name", ["cnn_actor_critic", "cnn_q", "recurrent_actor_critic"])
@pytest.mark.parametrize(
    "space", [VECTOR, gym.spaces.Box(0.0, 1.0, (84, 84)), gym.spaces.Discrete(7), images(1, 2, 3, 4, 5)]
)
def test_convolutions_refuse_what_is_no_image(name: str, space: gym.Space[Any]) -> None:
    with pytest.raises(
        UnsupportedSpaceError, match=r"takes images; no part of .* is one; .*'mlp_actor_critic', 'mlp_q'"
    ):
        build(name, space, encoder="nature")


@pytest.mark.parametrize("name", ["mlp_actor_critic", "mlp_q", "recurrent_actor_critic"])
@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84), (96, 96, 3)])
def test_fully_connected_layers_refuse_pictures(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedSpaceError, match=r"'cnn_actor_critic', 'cnn_q'.* encoder = 'nature'"):
        build(name, images(*shape))


@pytest.mark.parametrize("shape", [(128,), (7, 7, 3), (3, 8, 8)])
def test_fully_connected_layers_take_bytes_that_are_no_picture(shape: tuple[int, ...]) -> None:
    build("mlp_actor_critic", images(*shape))


def test_images_too_small_for_the_convolutions_are_refused_with_the_layer() -> None:
    message = r"20 x 24 are too small for encoder = 'nature': its convolution 3 of 3 x 3 gets 1 x 1"
    with pytest.raises(UnsupportedSpaceError, match=message):
        build("cnn_q", images(4, 20, 24))
    build("cnn_q", images(4, 20, 24), channels=[8, 8], hidden=16)
    build("cnn_q", images(4, 20, 24), kernels=[4, 3, 3], strides=[2, 1, 1])
    build("cnn_q", images(4, 5, 7), encoder="impala_large")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": "mlp"}, "'nature', 'impala_small' or 'impala_large'"),
        ({"channels": []}, "at least 1 item"),
        ({"channels": [16, 0]}, "greater than or equal to 1"),
        ({"hidden": 0}, "greater than or equal to 1"),
        ({"hidden": []}, "at least 1 item"),
        ({"channels": [8, 8], "kernels": [3, 3, 3]}, "2 channels, 3 kernels, 2 strides"),
        ({"channels": [8, 8, 8, 8]}, "4 channels, 3 kernels, 3 strides"),
        ({"encoder": "impala_large", "kernels": [3], "strides": [1]}, "no kernels or strides to be set"),
        ({"precision": "float16"}, "'float32' or 'bfloat16'"),
    ],
)
def test_settings_that_fit_no_network_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.settings_type("model", "cnn_q").model_validate(settings)


def test_a_recurrent_network_of_rows_has_no_channels() -> None:
    with pytest.raises(ValueError, match=r"encoder = 'mlp' has no channels to be set"):
        registry.settings_type("model", "recurrent_actor_critic").model_validate({"channels": [16]})


def test_one_hidden_width_is_a_layer_and_several_are_several() -> None:
    settings = registry.settings_type("model", "cnn_actor_critic")
    assert settings.model_validate({"hidden": 256}).model_dump()["hidden"] == (256,)
    assert settings.model_validate({"hidden": [256, 64]}).model_dump()["hidden"] == (256, 64)
