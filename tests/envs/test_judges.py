"""Checkers of gymnasium, PettingZoo and ALE accept our environments."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.env_match import check_environments_match
from gymnasium.wrappers import AtariPreprocessing, Autoreset

from tianji_envs.atari.environment import AtariFactory
from tianji_envs.core import VectorEnvironment, derive_seed
from tianji_envs.gym import GymFactory
from tianji_envs.registry import find

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
GYM = ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "FrozenLake-v1", "LunarLander-v3"]
STEPS = 600
NO_ENDS = (False, False)


class OfVector(gymnasium.Env[Any, Any]):
    """The only environment of a vector, as gymnasium has it.

    Args:
        vector: has one environment.
        ends: whether steps return the flags; else they are in ``info``, and the vector begins the
            next episode itself.
    """

    def __init__(self, vector: VectorEnvironment, *, ends: bool) -> None:
        self.observation_space, self.action_space = vector.observation_space, vector.action_space
        self._vector, self._ends = vector, ends
        space = vector.observation_space
        self._observation = np.zeros((1, *(space.shape or ())), space.dtype)
        self._reward = np.zeros(1)
        self._terminated, self._truncated = np.zeros((2, 1), np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        fresh = int(self.np_random.integers(1 << 32)) if seed is None else seed
        self._vector.reset(fresh, self._observation)
        return self._seen(), {} if self._ends else {"ends": NO_ENDS}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        into = (self._observation, self._reward, self._terminated, self._truncated)
        self._vector.step(np.asarray(action)[None], *into)
        flags = bool(self._terminated[0]), bool(self._truncated[0])
        seen, reward = self._seen(), float(self._reward[0])
        return (seen, reward, *flags, {}) if self._ends else (seen, reward, *NO_ENDS, {"ends": flags})

    def _seen(self) -> Any:
        seen = self._observation[0]
        return int(seen) if isinstance(self.observation_space, Discrete) else seen.copy()


class FlagsInInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gymnasium's own environment, with our seeds, and with its flags in ``info``."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        seen, _ = self.env.reset(seed=None if seed is None else derive_seed(seed, 0), options=options)
        return seen, {"ends": NO_ENDS}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, *flags, _ = self.env.step(action)
        return seen, float(reward), *NO_ENDS, {"ends": tuple(map(bool, flags))}


@pytest.mark.parametrize("name", GYM)
def test_gymnasium_finds_no_step_in_which_ours_and_its_own_differ(name: str) -> None:
    ours = OfVector(GymFactory().make(name, 1), ends=False)
    judge = FlagsInInfo(Autoreset(gymnasium.make(name)))
    check_environments_match(judge, ours, STEPS, seed=3)


@pytest.mark.filterwarnings("ignore:.*recommend using a symmetric:UserWarning")
@pytest.mark.filterwarnings("ignore:.*(minimum|maximum) value is -?infinity:UserWarning")
@pytest.mark.parametrize("name", GYM)
def test_gymnasium_s_checker_accepts_what_actors_step(name: str) -> None:
    check_env(OfVector(GymFactory().make(name, 1), ends=True), skip_render_check=True)


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules of docs/examples can be imported, and are gone afterwards."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in ("meeting", "corridor"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("examples")
def test_the_example_of_a_team_passes_pettingzoo_s_test() -> None:
    import meeting  # noqa: PLC0415 - found only here

    with warnings.catch_warnings():  # PettingZoo's tests import environments in a way that it deprecates.
        warnings.simplefilter("ignore")
        from pettingzoo.test import parallel_api_test  # noqa: PLC0415
    parallel_api_test(meeting.parallel_env(), num_cycles=200)


@pytest.mark.usefixtures("examples")
def test_gymnasium_s_checker_accepts_the_example_of_an_environment() -> None:
    check_env(OfVector(find("corridor:Corridor").make("", 1), ends=True), skip_render_check=True)


@pytest.mark.parametrize("game", ["Pong", "Breakout", "MsPacman"])
def test_ale_s_own_wrappers_show_the_same_game_bit_by_bit(game: str) -> None:
    gymnasium.register_envs(ale_py)
    options = {"noop_max": 0, "fire_reset": False, "stack": 1, "life_loss": False, "clip_rewards": False}
    ours = OfVector(AtariFactory().make(game, 1, options=options), ends=True)
    raw = gymnasium.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0)
    judge = AtariPreprocessing(raw, noop_max=0, frame_skip=4, screen_size=84)
    check_environments_match(judge, ours, STEPS, seed=5, skip_obs=False, info_comparison="skip")
