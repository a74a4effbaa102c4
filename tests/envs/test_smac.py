"""Battles of SMAC, against stand-ins for ``smac`` and ``smaclite``.

Neither package is here, nor StarCraft II. The stand-in for ``smac`` has what it documents, that for
``smaclite`` what its source has (commit 0d6abbe). They refuse what those refuse: an action that is not
available, and the no-op of an agent that lives.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest

from tianji_envs.core import derive_seed
from tianji_envs.errors import (
    BrokenEnvironmentError,
    MissingExtraError,
    UnknownEnvironmentError,
    WrongOptionError,
)
from tianji_envs.team import TeamSpace
from tianji_envs.teams.smac import SMACFactory

Roll = Callable[..., Any]

BATTLE = """
import numpy as np

class Battle:
    '''Two agents against one enemy of 4 lives, or 1000; actions are no-op, stop and attack.

    A step without an attack costs the first agent that lives its life; a hit is worth 5, winning 10.
    '''
    n_agents, n_actions, obs_size, state_size = 2, 3, 4, 5

    def begin(self):
        self.alive, self.lives, self.steps = [True, True], self.most_lives, 0

    def act(self, actions):
        assert len(actions) == 2 and all(type(action) is int for action in actions)
        for action, available in zip(actions, self.get_avail_actions()):
            assert available[action] == 1, f"{action} of {available}"
        hits = actions.count(2)
        self.lives, self.steps = max(0, self.lives - hits), self.steps + 1
        if not hits:
            self.alive[self.alive.index(True)] = False
        return 5 * hits + 10 * (self.lives == 0)

    def get_obs(self):
        return [np.full(4, self.steps + 1.0 + i) * self.alive[i] for i in range(2)]

    def get_state(self):
        return np.array([*self.alive, self.lives, self.steps, 0], np.float32)

    def get_avail_actions(self):
        return [[0, 1, 1] if alive else [1, 0, 0] for alive in self.alive]
"""

SMAC = """
from battle import Battle

built = []

class StarCraft2Env(Battle):
    def __init__(
        self, map_name="8m", step_mul=None, seed=None, continuing_episode=False, reward_sparse=False
    ):
        self.most_lives = {"short": 4, "long": 1000}[map_name]
        self.episode_limit, self.seed, self.launches, self.open = 6, seed, 0, False
        self.continuing_episode, self.fails_at = continuing_episode, None
        built.append(self)

    def get_env_info(self):
        return {"state_shape": 5, "obs_shape": 4, "n_actions": 3, "n_agents": 2,
                "episode_limit": self.episode_limit}

    def reset(self):
        if not self.open:
            self.launches, self.open = self.launches + 1, True
        self.begin()
        return self.get_obs(), self.get_state()

    def step(self, actions):
        reward = self.act(actions)
        if self.steps == self.fails_at:
            self.begin()
            return 0, True, {}
        info = {"battle_won": False}
        if self.lives == 0 or not any(self.alive):
            info["battle_won"] = self.lives == 0
            return reward, True, info
        if self.steps >= self.episode_limit:
            if self.continuing_episode:
                info["episode_limit"] = True
            return reward, True, info
        return reward, False, info

    def close(self):
        self.open = False
"""

SMACLITE = """
import gymnasium
from battle import Battle

class SMACliteEnv(gymnasium.Env, Battle):
    def __init__(
        self, map_info=None, map_file=None, seed=None, use_cpp_rvo2=False, render_mode="human", **kwargs
    ):
        print("Using the numpy RVO2 port")
        self.most_lives = map_info
        self.action_space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3)] * 2)
        self.observation_space = gymnasium.spaces.Tuple([gymnasium.spaces.Box(-1, 1, (4,))] * 2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.begin()
        return tuple(self.get_obs()), {"battle_won": False}

    def step(self, actions):
        reward = self.act(actions)
        done = self.lives == 0 or not any(self.alive)
        return tuple(self.get_obs()), reward, done, False, {"battle_won": self.lives == 0}

for name, lives in (("short", 4), ("long", 1000)):
    gymnasium.register(f"smaclite/{name}-v0", entry_point=SMACliteEnv, kwargs={"map_info": lives})
"""

NOOP, STOP, ATTACK = 0, 1, 2


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put the stand-ins where packages are found, and the game's directory where ``SC2PATH`` says."""
    (tmp_path / "smac/env").mkdir(parents=True)
    for name, source in (
        ("battle.py", BATTLE),
        ("smac/__init__.py", ""),
        ("smac/env/__init__.py", SMAC),
        ("smaclite.py", SMACLITE),
    ):
        (tmp_path / name).write_text(source)
    (tmp_path / "StarCraftII/Maps/SMAC_Maps").mkdir(parents=True)
    monkeypatch.setenv("SC2PATH", str(tmp_path / "StarCraftII"))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("battle", "smac", "smac.env", "smaclite"):
        sys.modules.pop(name, None)
    for name in ("short", "long"):
        gymnasium.registry.pop(f"smaclite/{name}-v0", None)


def attack(seen: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.where(seen["alive"], ATTACK, NOOP)


def stop(seen: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Also as the dead, whose action counts for nothing."""
    return np.full(seen["alive"].shape, STOP)


PACKAGES = pytest.mark.parametrize("package", ["smac", "smaclite"])


@PACKAGES
def test_sizes_are_those_that_the_package_states(packages: Path, package: str) -> None:
    battles = SMACFactory().make("short", 3, options={"package": package})
    assert battles.agents == ("ally_0", "ally_1")
    assert battles.observation_space.dtype == TeamSpace(2, 4, 3, 5).dtype
    assert battles.action_space == gymnasium.spaces.MultiDiscrete([3, 3])
    battles.close()


@PACKAGES
def test_a_won_battle_terminates_and_the_next_step_begins_another(
    packages: Path, package: str, roll: Roll
) -> None:
    battles = SMACFactory().make("short", 2, options={"package": package})
    won: list[list[bool]] = []

    def act(seen: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        assert battles.won is not None
        won.append(battles.won.tolist())
        return attack(seen)

    rollout = roll(battles, 6, act=act)
    assert rollout.reward[:, 0].tolist() == [10, 20, 0, 10, 20, 0]
    assert rollout.terminated[:, 1].tolist() == [False, True, False, False, True, False]
    assert not rollout.truncated.any()
    assert [row[0] for row in won[1:]] == rollout.terminated[:-1, 0].tolist()
    seen = rollout.observation[:, 0]
    assert seen["state"][:, 2].tolist() == [4, 2, 0, 4, 2, 0, 4]
    assert seen["reward"].tolist() == [[0, 0], [10, 10], [20, 20], [0, 0], [10, 10], [20, 20], [0, 0]]


@PACKAGES
def test_the_dead_see_nothing_and_have_the_no_op_alone(packages: Path, package: str, roll: Roll) -> None:
    battles = SMACFactory().make("short", 1, options={"package": package})
    rollout = roll(battles, 3, act=stop)
    seen = rollout.observation[:, 0]
    assert seen["alive"].tolist() == [[True, True], [False, True], [False, False], [True, True]]
    assert seen["available"][1].tolist() == [[True, False, False], [False, True, True]]
    assert seen["observation"][1].tolist() == [[0] * 4, [3] * 4]
    assert rollout.terminated[:, 0].tolist() == [False, True, False]
    assert battles.won is not None
    assert not battles.won.any()


@pytest.mark.parametrize(
    ("package", "limit", "length"),
    [("smac", None, 6), ("smac", 3, 3), ("smaclite", None, 120), ("smaclite", 3, 3)],
)
def test_the_end_of_the_time_truncates(
    packages: Path, package: str, limit: int | None, length: int, roll: Roll
) -> None:
    battles = SMACFactory().make("long", 1, limit, {"package": package})
    rollout = roll(battles, 2 * length + 1, act=attack)
    assert np.flatnonzero(rollout.truncated[:, 0]).tolist() == [length - 1, 2 * length]
    assert not rollout.terminated.any()
    assert battles.won is not None
    assert not battles.won.any()


def test_each_game_is_started_with_a_seed_of_its_own_and_goes_on_from_battle_to_battle(
    packages: Path, roll: Roll
) -> None:
    battles = SMACFactory().make("short", 2, options={"reward_sparse": True})
    roll(battles, 8, seed=5, act=attack)
    built: list[Any] = sys.modules["smac.env"].built
    games = [game for game in built if game.launches]
    assert [game.seed for game in games] == [derive_seed(5, 0), derive_seed(5, 1)]
    assert [game.launches for game in games] == [1, 1]
    roll(battles, 1, seed=6, act=attack)
    assert [game.open for game in games] == [False, False]
    battles.close()
    battles.close()
    assert not any(game.open for game in built)


def test_a_game_that_was_lost_cuts_the_battle_off(packages: Path, roll: Roll) -> None:
    battles = SMACFactory().make("long", 1)
    seen = np.zeros(1, battles.observation_space.dtype)
    battles.reset(1, seen)
    built: list[Any] = sys.modules["smac.env"].built
    built[-1].fails_at = 2
    reward, terminated, truncated = np.ones(1, np.float32), np.ones(1, np.bool_), np.zeros(1, np.bool_)
    for _ in range(2):
        battles.step(attack(seen), seen, reward, terminated, truncated)
    assert (reward[0], terminated[0], truncated[0]) == (0, False, True)


def test_a_missing_package_is_named_with_the_steps_that_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SC2PATH", str(tmp_path / "game"))
    with pytest.raises(MissingExtraError) as refused:
        SMACFactory().check_options("3m", {})
    message = str(refused.value)
    assert "(1) pip install git+https://github.com/oxwhirl/smac.git; (2) unpack StarCraft II" in message
    assert (
        "(3) unpack https://github.com/oxwhirl/smac/releases/download/v0.1-beta1/SMAC_Maps.zip into "
        in message
    )
    assert str(tmp_path / "game/Maps") in message
    with pytest.raises(
        MissingExtraError,
        match=r"\(1\) pip install git\+https://github.com/uoe-agents/smaclite.git@\w+; \(2\) .*libspatial",
    ):
        SMACFactory().make("2s3z", 1, options={"package": "smaclite"})


def test_a_game_without_the_maps_is_told_from_no_game(packages: Path) -> None:
    (packages / "StarCraftII/Maps/SMAC_Maps").rmdir()
    with pytest.raises(
        MissingExtraError, match=r"smac needs what is not installed: \(1\) unpack .*SMAC_Maps.zip"
    ):
        SMACFactory().check_options("3m", {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"package": "smacv2"}, '"smac" or "smaclite"'),
        ({"seed": 3}, "experiment.seed says it"),
        ({"map_name": "3m"}, "environment.id says it"),
        (
            {"step_mul": 8, "package": "smaclite"},
            "smaclite has no option step_mul; it has map_file and use_cpp",
        ),
    ],
)
def test_a_wrong_option_is_refused(packages: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(WrongOptionError, match=message) as refused:
        SMACFactory().check_options("3m", options)
    assert refused.value.option == next(iter(options))


def test_what_smac_does_not_know_is_refused_in_its_own_words(packages: Path) -> None:
    with pytest.raises(BrokenEnvironmentError, match="unexpected keyword argument 'step_mull'"):
        SMACFactory().make("short", 1, options={"step_mull": 8})


@PACKAGES
def test_a_map_that_the_package_does_not_know_is_refused(packages: Path, package: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match="corridors"):
        SMACFactory().make("corridors", 1, options={"package": package})
    with pytest.raises(UnknownEnvironmentError, match='id = "3m"'):
        SMACFactory().check_id("")


def test_what_smaclite_prints_is_not_the_command_s_output(
    packages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SMACFactory().make("short", 1, options={"package": "smaclite"}).close()
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "Using the numpy RVO2 port\n")
