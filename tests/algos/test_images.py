"""Which observations are images: a table of shapes and dtypes, and what networks see of them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from algos.test_observations import Records

from tianji_algos.core import Spaces, build_model
from tianji_algos.device import as_numbers
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.models.cnn import CNNActorCritic
from tianji_algos.models.images import how_seen, image_shape, is_picture
from tianji_algos.models.mlp import MLPActorCritic
from tianji_algos.models.settings import CNNActorCriticSettings, MLPActorCriticSettings
from tianji_algos.normalizable import Numbers

ACTIONS = gym.spaces.Discrete(3)
SETTINGS = CNNActorCriticSettings(encoder="impala_large", channels=(4,), hidden=(8,))
ONE_SIDE_OR_OTHER = r"image_layout = 'channels_first' or 'channels_last' would be right, or 'none'"


def box(shape: tuple[int, ...], dtype: Any = np.uint8, low: float = 0, high: float = 255) -> gym.spaces.Box:
    return gym.spaces.Box(low, 1 if dtype is np.bool_ else high, shape, dtype)


def planes_of(space: gym.spaces.Box, layout: Any = "auto") -> tuple[int, int, int] | None:
    """Channels, height and width of a picture."""
    if not is_picture(space, layout):
        return None
    image = image_shape(space, layout)
    assert image is not None
    return image.planes, image.height, image.width


IMAGES: list[tuple[tuple[int, ...], Any, tuple[int, int, int]]] = [
    ((84, 84), np.uint8, (1, 84, 84)),
    ((4, 84, 84), np.uint8, (4, 84, 84)),
    ((96, 96, 3), np.uint8, (3, 96, 96)),
    ((64, 64, 16), np.uint8, (16, 64, 64)),
    ((16, 64, 64), np.uint8, (16, 64, 64)),
    ((64, 48, 7), np.uint8, (7, 64, 48)),
    ((4, 64, 64, 3), np.uint8, (12, 64, 64)),
    ((4, 3, 64, 48), np.uint8, (12, 64, 48)),
    ((64, 48, 3, 4), np.uint8, (12, 64, 48)),
    ((4, 84, 84, 1), np.uint8, (4, 84, 84)),
    ((64, 64, 3), np.int32, (3, 64, 64)),
    ((64, 64, 3), np.int64, (3, 64, 64)),
    ((20, 20), np.int8, (1, 20, 20)),
    ((24, 24, 6), np.bool_, (6, 24, 24)),
    ((3, 64, 64), np.float32, (3, 64, 64)),
    ((16, 16), np.uint8, (1, 16, 16)),
]
ROWS: list[tuple[tuple[int, ...], Any, str]] = [
    ((3, 3), np.uint8, "sides below 16"),
    ((10, 10, 4), np.bool_, "sides below 16"),
    ((7, 7, 3), np.uint8, "sides below 16"),
    ((64, 15), np.uint8, "sides below 16"),
    ((128,), np.uint8, "Box of 1 axes"),
    ((2, 2, 2, 20, 20), np.uint8, "Box of 5 axes"),
    ((4,), np.float32, "Box of 1 axes"),
    ((20, 20), np.float32, "real numbers of 2 axes"),
]


@pytest.mark.parametrize(("shape", "dtype", "planes"), IMAGES)
def test_images_have_their_smallest_axes_as_channels(
    shape: tuple[int, ...], dtype: Any, planes: tuple[int, int, int]
) -> None:
    high = 127 if dtype is np.int8 else 255
    assert planes_of(box(shape, dtype, high=high)) == planes


@pytest.mark.parametrize(("shape", "dtype", "why"), ROWS)
def test_vectors_boards_and_matrices_stay_numbers_in_a_row(
    shape: tuple[int, ...], dtype: Any, why: str
) -> None:
    assert planes_of(box(shape, dtype)) is None
    assert how_seen(box(shape, dtype)) == f"numbers in a row ({why})"


def test_numbers_without_a_scale_of_pixels_stay_numbers_in_a_row() -> None:
    wide = gym.spaces.Box(-(2**31), 2**31 - 1, (20, 20), np.int32)
    endless = gym.spaces.Box(-np.inf, np.inf, (20, 20, 3), np.float32)
    for space in (wide, endless):
        assert planes_of(space) is None
        assert how_seen(space) == "numbers in a row (bounds that are no scale of pixels)"
    assert planes_of(box((20, 20), np.uint16, high=65_535)) == (1, 20, 20)


@pytest.mark.parametrize("shape", [(64, 64, 64), (64, 48, 64), (16, 16, 16, 16)])
def test_channels_on_either_side_are_refused_until_it_is_said_where_they_are(shape: tuple[int, ...]) -> None:
    space = box(shape)
    assert is_picture(space)
    with pytest.raises(UnsupportedSpaceError, match=ONE_SIDE_OR_OTHER):
        build_model(CNNActorCritic, Spaces(space, ACTIONS), SETTINGS, 0)
    height, width = shape[-2:]
    assert planes_of(space, "channels_first") == (space.low.size // height // width, height, width)
    height, width = shape[-3:-1]
    assert planes_of(space, "channels_last") == (space.low.size // height // width, height, width)
    assert planes_of(space, "none") is None


def test_a_fully_connected_network_refuses_raw_numbers_in_a_row_unless_they_are_no_pixels() -> None:
    settings = MLPActorCriticSettings(hidden=(4,))
    for space in (box((4097,)), box((4097,), np.int32), Records({"a": box((4097,)), "b": box((3,))})):
        with pytest.raises(UnsupportedSpaceError, match=r"4,096 raw numbers; .*image_layout = 'none'"):
            build_model(MLPActorCritic, Spaces(space, ACTIONS), settings, 0)
        build_model(MLPActorCritic, Spaces(space, ACTIONS, image_layout="none"), settings, 0)
    build_model(MLPActorCritic, Spaces(box((4096,)), ACTIONS), settings, 0)
    build_model(MLPActorCritic, Spaces(box((5000,), np.float32), ACTIONS), settings, 0)


@pytest.mark.parametrize(
    ("space", "order"),
    [
        (box((2, 20, 18, 3), np.uint8), (0, 3, 1, 2)),
        (box((20, 18, 5), np.int32, low=-100, high=155), (2, 0, 1)),
        (box((20, 18, 5), np.bool_), (2, 0, 1)),
        (box((3, 20, 18), np.float32, low=0, high=1), (0, 1, 2)),
        (box((20, 18), np.uint16, high=60_000), (0, 1)),
    ],
)
def test_networks_see_images_by_their_planes_and_between_their_bounds(
    space: gym.spaces.Box, order: tuple[int, ...]
) -> None:
    model = build_model(CNNActorCritic, Spaces(space, ACTIONS), SETTINGS, 0)
    low, high = float(space.low.min()), float(space.high.max())
    space.seed(3)
    seen = np.stack([space.sample() for _ in range(4)])
    planes = seen.astype(np.float64).transpose(0, *(axis + 1 for axis in order)).reshape(4, -1, 20, 18)
    plain = gym.spaces.Box(0, 255, planes.shape[1:], np.uint8)
    reference = build_model(CNNActorCritic, Spaces(plain, ACTIONS), SETTINGS, 0)
    pixels = torch.from_numpy((255.0 * (planes - low) / (high - low)).astype(np.float32))
    with torch.no_grad():
        for found, wanted in zip(model(torch.from_numpy(seen)), reference(pixels), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    for found, wanted in zip(model.executor(4)(seen), reference(pixels), strict=True):
        np.testing.assert_allclose(found, wanted.detach(), rtol=1e-4, atol=1e-5)


def test_images_are_scaled_by_their_bounds_and_never_by_running_means() -> None:
    camera = box((20, 20, 3), np.float32, high=1)
    assert Numbers.find(Spaces(camera, ACTIONS)) is None
    parts = Records({"arm": gym.spaces.Box(-1.0, 1.0, (2,), np.float32), "camera": camera})
    found = Numbers.find(Spaces(parts, ACTIONS))
    assert found is not None
    assert list(found.parts) == ["arm"]


def test_a_part_of_a_record_goes_through_convolutions_of_its_own_whatever_its_dtype() -> None:
    space = Records(
        {"arm": gym.spaces.Box(-1.0, 1.0, (2,), np.float32), "seen": box((2, 20, 20, 3), np.int32)}
    )
    model = build_model(CNNActorCritic, Spaces(space, ACTIONS), SETTINGS, 0)
    records = space.draw(3)
    assert model.encoder.images[0].first.weight.shape[1] == 6
    with torch.no_grad():
        expected = model(torch.from_numpy(as_numbers(records)))
    np.testing.assert_allclose(model.executor(3)(records)[1], expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "dtype", "planes"),
    [
        ((4, 84, 84), np.uint8, (4, 84, 84)),
        ((96, 96, 3), np.uint8, (3, 96, 96)),
        ((64, 64, 16), np.uint8, (64, 64, 16)),
        ((4, 64, 64, 3), np.uint8, None),
        ((64, 64, 3), np.int32, None),
        ((24, 24, 6), np.bool_, None),
    ],
)
def test_runs_of_before_see_what_they_have_learnt_from(
    shape: tuple[int, ...], dtype: Any, planes: tuple[int, int, int] | None
) -> None:
    space = box(shape, dtype)
    assert planes_of(space, "legacy") == planes
    if planes is None:
        settings = MLPActorCriticSettings(hidden=(4,))
        build_model(MLPActorCritic, Spaces(space, ACTIONS, image_layout="legacy"), settings, 0)
