"""Every kind of vector resets on the step after the one that ended an episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode

from tianji_envs.core import BaseEnv
from tianji_envs.gym import GymFactory
from tianji_envs.serial import SerialVectorEnvironment, UserFactory

Roll = Callable[..., Any]


class Countdown(BaseEnv):
    """Observes how many steps it has made; terminates after ``length`` of them."""

    def __init__(self, length: int = 3) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length = length
        self.made = 0
        self.actions: list[object] = []

    def reset(self, seed: int | None = None) -> npt.NDArray[np.float32]:  # noqa: ARG002 - has no chance in it
        self.made = 0
        return np.array([self.made], np.float32)

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool]:
        self.made += 1
        self.actions.append(action)
        return np.array([self.made], np.float32), 1.0, self.made == self.length, False


def balance(observation: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Keep CartPole's pole up for ever."""
    right: npt.NDArray[np.bool_] = observation @ np.array([0.05, 0.3, 1.0, 0.6]) > 0
    return right.astype(np.int64)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0", "Pendulum-v1"])
def test_the_step_after_an_end_starts_a_new_episode_without_reward_or_flags(env_id: str, roll: Roll) -> None:
    vector = GymFactory().make(env_id, num_envs=4, max_episode_steps=12)
    rollout = roll(vector, 200)
    over = rollout.terminated | rollout.truncated
    assert over[:-1].sum() >= 4 * 200 // 13 - 4
    after = np.nonzero(over[:-1])
    fresh = (after[0] + 1, after[1])
    assert not rollout.reward[fresh].any()
    assert not rollout.terminated[fresh].any()
    assert not rollout.truncated[fresh].any()
    first = rollout.observation[1:][fresh]
    assert np.all(first == np.clip(first, *_first_observations(env_id)))


def _first_observations(env_id: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    high = {"CartPole-v1": [0.05] * 4, "MountainCar-v0": [-0.4, 0.0], "Pendulum-v1": [1.0, 1.0, 1.0]}[env_id]
    low = {"CartPole-v1": [-0.05] * 4, "MountainCar-v0": [-0.6, 0.0], "Pendulum-v1": [-1.0, -1.0, -1.0]}[
        env_id
    ]
    return np.array(low, np.float32), np.array(high, np.float32)


def test_the_step_that_ends_an_episode_shows_its_last_observation(roll: Roll) -> None:
    vector = SerialVectorEnvironment("countdown", Countdown, 2)
    rollout = roll(vector, 8)
    assert rollout.observation[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert rollout.terminated[:, 0].tolist() == [False, False, True, False, False, False, True, False]
    assert rollout.reward[:, 0].tolist() == [1, 1, 1, 0, 1, 1, 1, 0]


def test_the_action_of_an_autoreset_step_reaches_no_environment() -> None:
    made: list[Countdown] = []

    def create() -> Countdown:
        made.append(Countdown(length=2))
        return made[-1]

    vector = SerialVectorEnvironment("countdown", create, 1)
    out = np.zeros((1, 1), np.float32), np.zeros(1, np.float32), np.zeros(1, np.bool_), np.zeros(1, np.bool_)
    vector.reset(0, out[0])
    for action in [0, 0, 1, 0, 0, 1]:
        vector.step(np.array([action]), *out)
    assert made[0].actions == [0, 0, 0, 0]


def test_environments_end_their_episodes_independently(roll: Roll) -> None:
    lengths = iter([2, 3])
    vector = SerialVectorEnvironment("countdown", lambda: Countdown(next(lengths)), 2)
    rollout = roll(vector, 6)
    assert rollout.terminated[:, 0].tolist() == [False, True, False, False, True, False]
    assert rollout.terminated[:, 1].tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
def test_an_episode_is_truncated_at_the_limit_that_the_registry_states(env_id: str, roll: Roll) -> None:
    limit = gymnasium.spec(env_id).max_episode_steps
    assert limit is not None
    act = balance if env_id == "CartPole-v1" else None
    rollout = roll(GymFactory().make(env_id, num_envs=2), limit + 2, act=act)
    assert not rollout.truncated[: limit - 1].any()
    assert rollout.truncated[limit - 1].all()
    assert not rollout.terminated.any()
    assert not rollout.truncated[limit:].any()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_limit_of_ones_own_replaces_the_registrys(env_id: str, roll: Roll) -> None:
    act = balance if env_id == "CartPole-v1" else None
    rollout = roll(GymFactory().make(env_id, num_envs=2, max_episode_steps=7), 16, act=act)
    assert np.nonzero(rollout.truncated[:, 0])[0].tolist() == [6, 14]


def test_a_limit_of_ones_own_may_exceed_the_registrys(roll: Roll) -> None:
    rollout = roll(GymFactory().make("Pendulum-v1", num_envs=1, max_episode_steps=210), 210)
    assert np.nonzero(rollout.truncated[:, 0])[0].tolist() == [209]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_reset_forgets_ended_episodes_and_counted_steps(steps: int, roll: Roll) -> None:
    vector = SerialVectorEnvironment("countdown", lambda: Countdown(3), 1, max_episode_steps=3)
    roll(vector, steps)
    rollout = roll(vector, 3)
    assert rollout.observation[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert rollout.truncated[:, 0].tolist() == [False, False, True]


def test_a_users_environment_is_truncated_at_the_configs_limit(roll: Roll) -> None:
    rollout = roll(UserFactory("t:Countdown", Countdown).make("", 1, max_episode_steps=2), 6)
    assert rollout.truncated[:, 0].tolist() == [False, True, False, False, True, False]


class SameStepCartPole(CartPoleVectorEnv):
    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}


def test_an_implementation_that_resets_within_the_ending_step_is_not_used(roll: Roll) -> None:
    gymnasium.register(
        "SameStepCartPole-v0",
        entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv",
        vector_entry_point=SameStepCartPole,
        max_episode_steps=20,
    )
    try:
        vector = GymFactory().make("SameStepCartPole-v0", 2)
        assert isinstance(vector, SerialVectorEnvironment)
        rollout = roll(vector, 50, act=balance)
        assert np.nonzero(rollout.truncated[:, 0])[0].tolist() == [19, 40]
    finally:
        del gymnasium.registry["SameStepCartPole-v0"]
