"""Dict and Tuple observations, shown as records."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tianji_envs.core import BaseEnv
from tianji_envs.errors import BrokenEnvironmentError, UnsupportedSpaceError
from tianji_envs.records import RecordSpace
from tianji_envs.serial import SerialVectorEnvironment

NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (4, 3), np.uint8),
        "arm": spaces.Dict(
            {"speeds": spaces.Box(-1.0, 1.0, (2,), np.float64), "mode": spaces.Discrete(5, start=1)}
        ),
        "pair": spaces.Tuple((spaces.MultiBinary(3), spaces.Text(8))),
    }
)


class Nested(BaseEnv):
    """Shows what its space draws, and keeps it."""

    def __init__(self, space: gym.Space[Any] = NESTED) -> None:
        self.observation_space = space
        self.action_space = spaces.Discrete(2)
        self.shown: list[Any] = []

    def reset(self, seed: int | None = None) -> Any:
        self.observation_space.seed(seed)
        return self._show()

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:  # noqa: ARG002
        return self._show(), 1.0, False, False

    def _show(self) -> Any:
        self.shown.append(self.observation_space.sample())
        return self.shown[-1]


def step(vector: SerialVectorEnvironment) -> Any:
    seen = np.zeros(vector.num_envs, vector.observation_space.dtype)
    flags = np.zeros((2, vector.num_envs), np.bool_)
    vector.step(np.zeros(vector.num_envs, np.int64), seen, np.zeros(vector.num_envs, np.float32), *flags)
    return seen


def test_parts_are_named_by_the_keys_that_lead_to_them() -> None:
    space = RecordSpace("x", NESTED)
    assert set(space.spaces) == {"camera", "arm.speeds", "arm.mode", "pair.0"}
    assert space.dtype.names == tuple(space.spaces)
    assert space.left_out == ("pair.1",)
    assert space.dtype["arm.speeds"].base == np.float64
    assert all(space.dtype.fields[name][1] % space.dtype[name].base.alignment == 0 for name in space.spaces)


def test_what_an_environment_shows_is_in_the_records() -> None:
    made: list[Nested] = []

    def create() -> Nested:
        made.append(Nested())
        return made[-1]

    vector = SerialVectorEnvironment("nested", create, 3)
    seen = np.zeros(3, vector.observation_space.dtype)
    vector.reset(1, seen)
    for _ in range(3):
        for record, env in zip(seen, made, strict=True):
            shown = env.shown[-1]
            np.testing.assert_array_equal(record["camera"], shown["camera"])
            np.testing.assert_array_equal(record["arm.speeds"], shown["arm"]["speeds"])
            assert record["arm.mode"] == shown["arm"]["mode"]
            np.testing.assert_array_equal(record["pair.0"], shown["pair"][0])
            assert vector.observation_space.contains(record)
        seen = step(vector)
    assert vector.remarks["text"].startswith("of the observations pair.1 is left out")


def test_a_tuple_is_a_record_of_numbered_parts() -> None:
    space = RecordSpace("x", spaces.Tuple((spaces.Discrete(3), spaces.Box(0.0, 1.0, (2,)))))
    assert space.dtype.names == ("0", "1")
    assert space.contains(space.sample())
    assert not space.contains(np.zeros((), "f4"))


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        ({"camera": np.zeros((4, 3), np.uint8)}, r"step\(\) gave .* KeyError: 'arm'"),
        (
            NESTED.sample() | {"camera": np.zeros((5, 3), np.uint8)},
            r"observation\['camera'\] of shape \(5, 3\)",
        ),
        (3.0, r"step\(\) gave an observation that does not fit observation_space: TypeError"),
    ],
)
def test_an_observation_that_does_not_fit_its_space_is_refused(shown: Any, message: str) -> None:
    class Broken(Nested):
        def step(self, action: Any) -> tuple[Any, float, bool, bool]:  # noqa: ARG002
            return shown, 0.0, False, False

    vector = SerialVectorEnvironment("broken", Broken, 2)
    vector.reset(0, np.zeros(2, vector.observation_space.dtype))
    with pytest.raises(BrokenEnvironmentError, match=message):
        step(vector)


@pytest.mark.parametrize("call", ["reset", "step"])
@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("camera", np.full((4, 3), 0.7), r"\['camera'\] of shape \(4, 3\) and float64"),
        ("camera", np.uint8(3), r"\['camera'\] of shape \(\) and uint8, 3; "),
        ("pair", (np.ones(1, np.int8), ""), r"\['pair.0'\] of shape \(1,\) and int8, \[1\]; "),
    ],
)
def test_what_numpy_would_cut_or_repeat_is_refused(call: str, part: str, value: Any, message: str) -> None:
    class Changed(Nested):
        def reset(self, seed: int | None = None) -> Any:
            return super().reset(seed) | ({part: value} if call == "reset" else {})

        def step(self, action: Any) -> tuple[Any, float, bool, bool]:
            shown, reward, over, cut = super().step(action)
            return shown | {part: value}, reward, over, cut

    vector = SerialVectorEnvironment("changed", Changed, 1)
    with pytest.raises(BrokenEnvironmentError, match=rf"{call}\(\) gave observation.*{message}"):
        begin_and_step(vector)


def begin_and_step(vector: SerialVectorEnvironment) -> None:
    vector.reset(0, np.zeros(1, vector.observation_space.dtype))
    step(vector)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), r"x: observation_space\['a'\] is Sequence"),
        (spaces.Dict({"a": spaces.Text(3)}), "nothing of observation_space"),
        (
            spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(3)})}),
            "'a.b' of observation_space is the name of",
        ),
        (
            spaces.Dict({"": spaces.Discrete(2), "a": spaces.Discrete(2)}),
            "'' of observation_space is no name",
        ),
        (spaces.Graph(spaces.Discrete(2), None), "observation_space is Graph"),
    ],
)
def test_other_spaces_are_refused(space: gym.Space[Any], message: str) -> None:
    with pytest.raises(UnsupportedSpaceError, match=message):
        SerialVectorEnvironment("x", lambda: Nested(space), 1)
