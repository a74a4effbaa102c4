"""Pictures that environments draw, their rate, and results that are no picture."""

from typing import Any

import numpy as np
import pytest

from tianji_envs import registry
from tianji_envs.core import as_picture, fps_of
from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.gym import GymFactory


@pytest.mark.parametrize(
    "drawn",
    [np.full((2, 3, 3), 51, np.uint8), np.full((2, 3, 3), 51), [[[51] * 3] * 3] * 2, np.full((2, 3, 3), 0.2)],
)
def test_a_picture_may_be_of_any_whole_numbers_or_of_shares(drawn: Any) -> None:
    picture = as_picture("lamp", drawn)
    assert (picture.dtype, picture.shape, set(picture.ravel().tolist())) == (np.uint8, (2, 3, 3), {51})


@pytest.mark.parametrize(
    ("drawn", "why"),
    [
        (None, "lamp draws nothing: make it with render=True"),
        (np.zeros((4, 4), np.uint8), r"uint8 of shape \(4, 4\)"),
        (np.zeros((4, 4, 4), np.uint8), r"uint8 of shape \(4, 4, 4\)"),
        (np.zeros((0, 4, 3), np.uint8), r"uint8 of shape \(0, 4, 3\)"),
        (np.full((4, 4, 3), 200.5), r"float64 of shape \(4, 4, 3\)"),
        ("a text", r"<U6 of shape \(\)"),
        ([[1], [1, 2]], "no array"),
    ],
)
def test_what_is_no_picture_is_refused_with_what_would_be_right(drawn: Any, why: str) -> None:
    with pytest.raises(BrokenEnvironmentError, match=why) as refused:
        as_picture("lamp", drawn)
    assert "[height, width, 3] of whole numbers from 0 to 255" in str(refused.value)


@pytest.mark.parametrize(
    ("metadata", "fps"),
    [
        ({"render_fps": 50}, 50.0),
        ({"render_fps": np.float64(12.5)}, 12.5),
        ({}, None),
        (None, None),
        *(({"render_fps": wrong}, None) for wrong in (None, 0, -3, True, "30", float("nan"), float("inf"))),
    ],
)
def test_pictures_a_second_are_what_the_metadata_say_if_it_is_a_number(
    metadata: Any, fps: float | None
) -> None:
    assert fps_of(metadata) == fps


@pytest.mark.parametrize(
    ("kind", "name", "fps"),
    [("gym", "CartPole-v1", 50), ("gym", "Taxi-v4", 4), ("atari", "pong", 15), ("mpe", "simple_spread", 10)],
)
def test_environments_say_how_fast_they_are_shown(kind: str, name: str, fps: int) -> None:
    vector = registry.find(kind).make(name, 1)
    assert vector.render_fps == fps
    vector.close()


def test_minatar_is_drawn() -> None:
    vector = GymFactory().make("MinAtar/Breakout-v1", 1, render=True)
    vector.reset(1, np.zeros((1, *(vector.observation_space.shape or ())), vector.observation_space.dtype))
    assert vector.render().max() > 100
    vector.close()


NO_MODE = """
import gymnasium

class NoMode(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)
"""


def test_a_class_that_cannot_be_told_to_draw_is_named_with_the_way_out(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_mode.py").write_text(NO_MODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.find("no_mode:NoMode").make("", 1).close()
    with pytest.raises(BrokenEnvironmentError, match="to be drawn, it has to take render_mode"):
        registry.find("no_mode:NoMode").make("", 1, render=True)
