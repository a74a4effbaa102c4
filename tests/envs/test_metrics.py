"""Numbers of gymnasium's info are read where an episode ends, or the error says which numbers there are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tianji_envs import registry
from tianji_envs.core import BaseEnv
from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.gym import GymFactory, OwnVectorEnvironment
from tianji_envs.serial import GymnasiumEnv, SerialVectorEnvironment, UserFactory, measure


class Count(gymnasium.Env[Any, Any]):
    """Counts to ``length``, and says at each step how far it is and whether it is there."""

    observation_space = gymnasium.spaces.Box(0, 99, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 3) -> None:
        self.length = length
        self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.at = 0
        return np.zeros(1, np.float32), {"at": -1, "there": -1}

    def step(self, action: Any) -> Any:  # noqa: ARG002 - it counts, whatever is done
        self.at += 1
        there = self.at == self.length
        return np.full(1, self.at, np.float32), 1.0, there, False, {"at": self.at, "there": there}


def test_metrics_are_those_of_an_episode_s_last_step_of_each_environment() -> None:
    lengths = iter((2, 3, 9))
    vector = SerialVectorEnvironment(
        "count", lambda: GymnasiumEnv(Count(next(lengths))), 3, 4, metrics=("there", "at")
    )
    observation = np.zeros((3, 1), np.float32)
    reward, flags = np.zeros(3, np.float32), np.zeros((2, 3), np.bool_)
    seen: list[dict[int, list[float]]] = []
    vector.reset(1, observation)
    assert vector.metrics is not None
    assert (vector.metrics.shape, vector.metrics.dtype) == ((3, 2), np.float32)
    for _ in range(6):
        vector.step(np.zeros(3, np.int64), observation, reward, *flags)
        seen.append({n: vector.metrics[n].tolist() for n in np.flatnonzero(flags.any(axis=0))})
    # The third is cut off after 4 steps, and was not there.
    assert seen == [{}, {0: [1, 2]}, {1: [1, 3]}, {2: [0, 4]}, {0: [1, 2]}, {}]


def test_what_has_a_vector_of_its_own_is_stepped_singly_for_them() -> None:
    vector = GymFactory().make("CartPole-v1", 2, metrics=("success",))
    assert not isinstance(vector, OwnVectorEnvironment)
    assert vector.metrics is not None
    assert GymFactory().make("CartPole-v1", 2).metrics is None


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2), np.int64(2), np.array(2.0), pytest.param(np.uint8(2), id="uint8")]
)
def test_numbers_of_all_kinds_are_taken(value: object) -> None:
    assert measure("x", ["a"], {"a": value}) == [2.0]
    assert measure("x", ["b", "c"], {"b": True, "c": np.bool_(False)}) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"is_success": True, "n": 3, "name": "x"}, "there is no 'success' in the info of an episode's last"),
        ({"is_success": True, "n": 3, "success": "yes"}, "'success' is 'yes' in the info"),
        ({"is_success": True, "n": 3, "success": None}, "'success' is None in the info"),
        ({"is_success": True, "n": 3, "success": float("nan")}, "'success' is nan in the info"),
        ({"is_success": True, "n": 3, "success": 1e300}, "'success' is 1e+300 in the info"),
        ({"is_success": True, "n": 3, "success": np.ones(2)}, "'success' is array([1., 1.]) in the info"),
    ],
)
def test_what_is_missing_or_no_number_is_answered_with_the_numbers_there_are(
    info: dict[str, Any], words: str
) -> None:
    with pytest.raises(BrokenEnvironmentError) as caught:
        measure("grid", ["n", "success"], info)
    assert f"grid: environment.metrics: {words}" in str(caught.value)
    assert str(caught.value).endswith("such are: 'is_success', 'n'")


def test_without_any_number_the_answer_says_so() -> None:
    with pytest.raises(BrokenEnvironmentError, match="such are: none"):
        measure("grid", ["success"], {"name": "x"})


def test_a_function_that_turns_out_to_make_a_base_env_is_refused() -> None:
    def make() -> BaseEnv:
        return Plain()

    with pytest.raises(BrokenEnvironmentError, match="mine returned the BaseEnv Plain; metrics are"):
        UserFactory("mine", make).make("", 1, metrics=("at",))
    made = UserFactory("mine", Count).make("", 2, metrics=("at",)).metrics
    assert made is not None
    assert made.shape == (2, 1)


class Plain(BaseEnv):
    """Has no info."""

    observation_space, action_space = Count.observation_space, Count.action_space

    def reset(self, seed: int | None = None) -> Any:
        """Begin."""

    def step(self, action: Any) -> Any:
        """Act."""


def test_a_factory_that_says_so_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_metrics.py").write_text(
        "from tianji_envs.core import EnvironmentFactory\n"
        "class Late(EnvironmentFactory):\n"
        "    takes_metrics = True\n"
        "    def check_id(self, id): ...\n"
        "    def make(self, id, num_envs, *, evaluation=False, threads=1): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_metrics", raising=False)
    with pytest.raises(BrokenEnvironmentError, match=r"Late\.make\(\) should take metrics="):
        registry.find("my_metrics:Late")
    assert [name for name in registry.names() if registry.find(name).takes_metrics] == ["gym"]
