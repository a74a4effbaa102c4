"""Records of several parts, as networks see them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tianji_algos.core import Spaces, build_model
from tianji_algos.device import as_numbers
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.models.cnn import CNNQ, CNNActorCritic
from tianji_algos.models.mlp import MLPActorCritic
from tianji_algos.models.observations import observation_encoder
from tianji_algos.models.settings import CNNActorCriticSettings, CNNQSettings, MLPActorCriticSettings

ROWS = 9


class Records(spaces.Dict):
    """A Dict whose values are records, as environments give them."""

    def __init__(self, parts: dict[str, gym.Space[Any]]) -> None:
        super().__init__(parts)
        self._shape = ()
        self.dtype = np.dtype([(name, p.dtype, p.shape) for name, p in self.spaces.items()], align=True)

    def draw(self, rows: int, seed: int = 0) -> Any:
        self.seed(seed)
        records = np.zeros(rows, self.dtype)
        for i in range(rows):
            for name, value in self.sample().items():
                records[name][i] = value
        return records


SMALL = Records(
    {
        "action_mask": spaces.MultiBinary(3),
        "flags": spaces.MultiBinary(2),
        "mode": spaces.Discrete(4, start=2),
        "numbers": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
        "several": spaces.MultiDiscrete([2, 3]),
    }
)
PICTURES = Records(
    {
        "left": spaces.Box(0, 255, (40, 40), np.uint8),
        "numbers": spaces.Box(-1.0, 1.0, (3,), np.float32),
        "right": spaces.Box(0, 255, (36, 40, 3), np.uint8),
    }
)
ACTIONS = spaces.Discrete(3)
SETTINGS = CNNActorCriticSettings(channels=(4, 4), kernels=(8, 4), strides=(4, 2), hidden=(16,))


def test_parts_stand_side_by_side_and_the_mask_is_not_shown() -> None:
    records = SMALL.draw(ROWS)
    encoder = observation_encoder(SMALL)
    expected = [
        records["flags"],
        np.eye(4)[records["mode"] - 2],
        records["numbers"].reshape(ROWS, 4),
        np.eye(2)[records["several"][:, 0]],
        np.eye(3)[records["several"][:, 1]],
    ]
    np.testing.assert_allclose(encoder(records), np.concatenate(expected, axis=1), rtol=1e-6)
    assert encoder.features == 15
    in_torch = encoder.in_torch(torch.from_numpy(as_numbers(records)))
    np.testing.assert_array_equal(in_torch, encoder(records))


def test_a_fully_connected_network_acts_and_learns_alike_on_records() -> None:
    model = build_model(MLPActorCritic, Spaces(SMALL, ACTIONS), MLPActorCriticSettings(hidden=(8,)), 0)
    records = SMALL.draw(ROWS)
    policy, value = model.executor(ROWS)(records)
    with torch.no_grad():
        expected = model(torch.from_numpy(as_numbers(records)))
    np.testing.assert_allclose(policy, expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(value, expected[1], rtol=1e-5, atol=1e-6)


def test_a_convolutional_network_sees_every_part() -> None:
    model = build_model(CNNActorCritic, Spaces(PICTURES, ACTIONS), SETTINGS, 0)
    records = PICTURES.draw(ROWS)
    act = model.executor(ROWS)
    policy, value = (output.copy() for output in act(records))
    assert policy.shape == (ROWS, 3)
    assert value.shape == (ROWS,)
    for part in PICTURES.spaces:
        changed = records.copy()
        changed[part][4] = 0
        after = act(changed)[1]
        assert after[4] != value[4], part
        np.testing.assert_allclose(np.delete(after, 4), np.delete(value, 4), rtol=1e-5)


def test_a_dueling_network_takes_records() -> None:
    settings = CNNQSettings(channels=(4,), kernels=(8,), strides=(4,), hidden=(16,), dueling=True)
    model = build_model(CNNQ, Spaces(PICTURES, ACTIONS), settings, 0)
    (q,) = model.executor(ROWS)(PICTURES.draw(ROWS))
    assert q.shape == (ROWS, 3)


def test_images_alone_have_no_layers_for_the_rest() -> None:
    images = Records({"left": PICTURES["left"], "action_mask": spaces.MultiBinary(3)})
    model = build_model(CNNActorCritic, Spaces(images, ACTIONS), SETTINGS, 0)
    assert not any("rest." in name and "images" not in name for name, _ in model.named_parameters())
    assert model.executor(2)(images.draw(2))[1].shape == (2,)


def test_what_a_network_cannot_take_of_a_record_is_named() -> None:
    with pytest.raises(UnsupportedSpaceError, match=r"no part of .* is one; a fully connected one"):
        build_model(CNNActorCritic, Spaces(SMALL, ACTIONS), SETTINGS, 0)
    with pytest.raises(UnsupportedSpaceError, match="learns next to nothing from images"):
        build_model(MLPActorCritic, Spaces(PICTURES, ACTIONS), MLPActorCriticSettings(), 0)
