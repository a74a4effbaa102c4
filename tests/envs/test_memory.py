"""Results land in the caller's arrays: strided rows of a fragment, and nowhere else."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest

from tianji_envs.core import BaseEnv, VectorEnvironment
from tianji_envs.gym import GymFactory
from tianji_envs.serial import SerialVectorEnvironment


def _records(vector: VectorEnvironment, steps: int) -> npt.NDArray[Any]:
    """Memory in which the fields of a step lie side by side, so that every field's row is strided."""
    space = vector.observation_space
    layout = [
        ("before", np.uint8),
        ("observation", space.dtype, space.shape),
        ("reward", np.float32),
        ("terminated", np.bool_),
        ("truncated", np.bool_),
        ("after", np.uint8),
    ]
    records = np.zeros((steps, vector.num_envs), np.dtype(layout))
    records["before"] = records["after"] = 0xAB
    return records


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_strided_rows_get_the_same_results_as_packed_ones(env_id: str) -> None:
    factory = GymFactory()
    strided, packed = factory.make(env_id, 3), factory.make(env_id, 3)
    records = _records(strided, 30)
    space = packed.observation_space
    assert space.shape is not None
    observation = np.zeros((3, *space.shape), space.dtype)
    reward, terminated, truncated = np.zeros(3, np.float32), np.zeros(3, np.bool_), np.zeros(3, np.bool_)
    strided.reset(4, records["observation"][0])
    packed.reset(4, observation)
    np.testing.assert_array_equal(records["observation"][0], observation)
    strided.action_space.seed(4)
    for t in range(30):
        actions = np.stack([np.asarray(strided.action_space.sample()) for _ in range(3)])
        row = records[t]
        strided.step(actions, row["observation"], row["reward"], row["terminated"], row["truncated"])
        packed.step(actions, observation, reward, terminated, truncated)
        np.testing.assert_array_equal(row["observation"], observation)
        np.testing.assert_array_equal(row["reward"], reward)
        np.testing.assert_array_equal(row["terminated"], terminated)
        np.testing.assert_array_equal(row["truncated"], truncated)
    assert (records["before"] == 0xAB).all()
    assert (records["after"] == 0xAB).all()


class KeepsItsActions(BaseEnv):
    """Remembers the very objects it was given, as an environment with an action history does."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.kept: list[npt.NDArray[np.float32]] = []

    def reset(self, seed: int | None = None) -> npt.NDArray[np.float64]:  # noqa: ARG002 - has no chance in it
        return np.zeros(2)

    def step(self, action: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float64], float, bool, bool]:
        self.kept.append(action)
        return np.array([0.1, 0.2]), 0.1, False, False


def test_an_environment_may_keep_an_action_whose_array_the_caller_writes_again() -> None:
    made: list[KeepsItsActions] = []

    def create() -> KeepsItsActions:
        made.append(KeepsItsActions())
        return made[-1]

    vector = SerialVectorEnvironment("keeps", create, 2)
    observation, reward = np.zeros((2, 2)), np.zeros(2, np.float32)
    flags = np.zeros((2, 2), np.bool_)
    actions = np.zeros((2, 2), np.float32)
    vector.reset(0, observation)
    for value in (0.25, 0.5):
        actions[...] = value
        vector.step(actions, observation, reward, *flags)
    assert [kept.tolist() for kept in made[1].kept] == [[0.25, 0.25], [0.5, 0.5]]


def test_float64_observations_and_rewards_are_cast_to_the_callers_arrays() -> None:
    vector = SerialVectorEnvironment("keeps", KeepsItsActions, 1)
    observation, reward = np.zeros((1, 2), np.float32), np.zeros(1, np.float32)
    vector.reset(0, observation)
    vector.step(np.zeros((1, 2), np.float32), observation, reward, *np.zeros((2, 1), np.bool_))
    assert observation[0].tolist() == [np.float32(0.1), np.float32(0.2)]
    assert reward[0] == np.float32(0.1)


def test_discrete_actions_arrive_as_python_ints() -> None:
    seen: list[object] = []

    class Sees(KeepsItsActions):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gymnasium.spaces.Discrete(3)

        def step(self, action: Any) -> tuple[npt.NDArray[np.float64], float, bool, bool]:
            seen.append(action)
            return np.zeros(2), 0.0, False, False

    vector = SerialVectorEnvironment("sees", Sees, 2)
    observation = np.zeros((2, 2))
    vector.reset(0, observation)
    vector.step(np.array([2, 0]), observation, np.zeros(2), *np.zeros((2, 2), np.bool_))
    assert seen == [2, 0]
    assert all(type(action) is int for action in seen)


class Closes(KeepsItsActions):
    closed: ClassVar[list[int]] = []
    built = 0

    def __init__(self) -> None:
        super().__init__()
        self.number = Closes.built = Closes.built + 1
        if self.number == 4:
            raise OSError("no licence is left")

    def close(self) -> None:
        Closes.closed.append(self.number)
        if self.number == 2 and Closes.built == 3:
            raise OSError("it did not answer")


def test_every_environment_is_closed_though_the_close_of_another_one_raises() -> None:
    Closes.closed, Closes.built = [], 0
    vector = SerialVectorEnvironment("closes", Closes, 3)
    with pytest.raises(OSError, match="it did not answer"):
        vector.close()
    assert sorted(Closes.closed) == [1, 2, 3]
    vector.close()
    assert len(Closes.closed) == 3, "once is enough"


def test_environments_are_closed_if_another_one_cannot_be_built() -> None:
    Closes.closed, Closes.built = [], 0
    with pytest.raises(OSError, match="no licence is left"):
        SerialVectorEnvironment("closes", Closes, 4)
    assert sorted(Closes.closed) == [1, 2, 3]
