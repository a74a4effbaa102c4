"""Modules with a ``parallel_env`` become vectors, or an error that says what would be right."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpe2 import simple_tag_v3

from tianji_envs import registry
from tianji_envs.core import derive_seed
from tianji_envs.errors import (
    BrokenEnvironmentError,
    MissingExtraError,
    UnknownEnvironmentError,
    UnsupportedSpaceError,
    WrongOptionError,
)

Roll = Callable[..., Any]

by_module = pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
"""PettingZoo would have its own environments called by another name, and keeps this one."""

MINE = """
from beds.team_worlds import Leavers


def parallel_env(length=3, agents=2, render_mode=None):
    if agents < 1:
        raise ValueError("no agents")
    return Leavers([(length, "dies")] * agents)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Modules of the user's own on the Python path."""
    (tmp_path / "my_teams.py").write_text(MINE)
    (tmp_path / "needs_a_library.py").write_text("import a_library_that_is_not_there\n")
    (tmp_path / "fails_at_once.py").write_text("1 / 0\n")
    (tmp_path / "needs_it_when_made.py").write_text(
        "def parallel_env(**keywords):\n    import a_library_that_is_not_there\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("my_teams", "needs_a_library", "fails_at_once", "needs_it_when_made"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "my_teams"


def make(env_id: str, num_envs: int = 1, **keywords: Any) -> Any:
    return registry.find("pettingzoo").make(env_id, num_envs, **keywords)


def test_records_are_what_the_environment_itself_shows_and_pays(roll: Roll) -> None:
    vector = make("mpe2.simple_tag_v3", 2)
    rollout = roll(vector, 30, seed=4)
    assert vector.agents == ("adversary_0", "adversary_1", "adversary_2", "agent_0")
    for i in range(2):
        env = simple_tag_v3.parallel_env()
        seen, _ = env.reset(seed=derive_seed(4, i))
        actions = make("mpe2.simple_tag_v3").action_space
        actions.seed(4)
        drawn = np.stack([actions.sample() for _ in range(60)]).reshape(30, 2, 4)
        for t in range(30):
            for m, agent in enumerate(vector.agents):
                row = rollout.observation["observation"][t, i, m]
                np.testing.assert_array_equal(row[: len(seen[agent])], seen[agent])
                assert not row[len(seen[agent]) :].any()
            if t == 25:
                assert rollout.truncated[24, i]
                seen, _ = env.reset()
                continue
            seen, rewards, *_ = env.step(dict(zip(vector.agents, drawn[t, i].tolist(), strict=True)))
            each = [np.float32(rewards[agent]) for agent in vector.agents]
            assert rollout.observation["reward"][t + 1, i].tolist() == each


def test_a_module_of_ones_own_gets_the_options_and_the_limit(mine: str, roll: Roll) -> None:
    vector = make(mine, 2, options={"length": 2, "agents": 3})
    assert vector.agents == ("agent_0", "agent_1", "agent_2")
    assert roll(vector, 6).terminated[:, 0].tolist() == [False, True, False, False, True, False]
    vector = make(mine, max_episode_steps=1)
    assert roll(vector, 4).truncated[:, 0].tolist() == [True, False, True, False]


@by_module
def test_agents_that_die_one_by_one_in_a_real_environment_end_their_teams_episode(roll: Roll) -> None:
    options = {"spawn_delay": 2, "max_zombies": 30, "line_death": True, "max_cycles": 150}
    vector = make("pettingzoo.butterfly.knights_archers_zombies_v11", 1, options=options)
    rollout = roll(vector, 300)
    alive = rollout.observation["alive"][1:, 0]
    over = (rollout.terminated | rollout.truncated)[:, 0]
    assert over.any()
    assert ((alive.sum(axis=-1) > 0) | over).all()
    assert {1, 2, 3} <= set(alive.sum(axis=-1).tolist())
    assert alive[1:][over[:-1]].all()


@pytest.mark.parametrize(
    ("env_id", "error", "words"),
    [
        ("mpe2.simple_spred_v3", UnknownEnvironmentError, "did you mean 'mpe2.simple_spread_v3'?"),
        ("pettingzoo.sisl.multiwalker_v8", UnknownEnvironmentError, "did you mean 'pettingzoo.sisl.multiwal"),
        ("no_such_package.world", UnknownEnvironmentError, "no module 'no_such_package'"),
        ("no_such_module", UnknownEnvironmentError, "no module 'no_such_module'"),
        ("json", UnknownEnvironmentError, "'json' is no module with a parallel_env"),
        ("", UnknownEnvironmentError, 'as "mpe2.simple_spread_v3" is'),
        ("needs_a_library", MissingExtraError, "pip install a_library_that_is_not_there"),
        ("fails_at_once", BrokenEnvironmentError, "'fails_at_once' does not import: ZeroDivisionError"),
    ],
)
def test_a_wrong_id_says_what_would_be_right(
    mine: str, env_id: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=re.escape(words)):
        registry.find("pettingzoo").check_id(env_id)


class Lacking(MetaPathFinder):
    """Imports as if a package were not installed."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, fullname: str, *_: Any) -> None:
        if fullname == self._package:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


@pytest.mark.parametrize(
    ("env_id", "lacking", "command"),
    [
        ("mpe2.simple_spread_v3", "mpe2", "pip install 'tianji[marl]'"),
        ("mpe2.simple_spread_v3", "pettingzoo", "pip install 'tianji[marl]'"),
        ("mpe2.simple_spread_v3", "pygame", "pip install 'tianji[marl]'"),
        ("pettingzoo.sisl.pursuit_v5", "pettingzoo", "pip install 'tianji[marl]'"),
        ("pettingzoo.sisl.pursuit_v5", "pygame", "pip install 'pettingzoo[sisl]'"),
    ],
)
def test_a_missing_library_is_answered_with_the_pip_command(
    env_id: str, lacking: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in ("mpe2", "pettingzoo", lacking):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Lacking(lacking), *sys.meta_path])
    with pytest.raises(MissingExtraError) as caught:
        registry.find("pettingzoo").check_id(env_id)
    assert str(caught.value).endswith(f"{env_id} needs '{lacking}': {command}")


def test_a_library_that_lacks_only_when_an_environment_is_made_is_named(mine: str) -> None:
    with pytest.raises(MissingExtraError, match="pip install a_library_that_is_not_there"):
        make("needs_it_when_made")


@pytest.mark.parametrize(
    ("env_id", "options", "words"),
    [
        ("mpe2.simple_spread_v3", {"local_ration": 0.5}, "did you mean 'local_ratio'?"),
        ("mpe2.simple_spread_v3", {"x": 1}, "they are N, local_ratio, max_cycles"),
        ("mpe2.simple_spread_v3", {"render_mode": "human"}, "no option 'render_mode'"),
        ("my_teams", {"lenght": 1}, "did you mean 'length'?"),
    ],
)
def test_an_option_that_does_not_exist_is_named_before_anything_is_built(
    mine: str, env_id: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(WrongOptionError) as caught:
        registry.find("pettingzoo").check_options(env_id, options)
    assert words in str(caught.value)
    assert caught.value.option == next(iter(options))
    with pytest.raises(WrongOptionError):
        make(env_id, options=options)


@pytest.mark.parametrize(
    ("env_id", "options", "words"),
    [
        ("mpe2.simple_spread_v3", {"local_ratio": 3}, "Must be between 0 and 1"),
        (
            "my_teams",
            {"agents": 0},
            "my_teams cannot be built with options {'agents': 0}: ValueError: no agents",
        ),
    ],
)
def test_a_value_that_the_environment_refuses_is_shown(
    mine: str, env_id: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(BrokenEnvironmentError, match=re.escape(words)):
        make(env_id, options=options)


@by_module
def test_agents_that_see_images_are_refused() -> None:
    with pytest.raises(UnsupportedSpaceError, match=r"cooperative_pong_v6: paddle_0 sees .*, an image"):
        make("pettingzoo.butterfly.cooperative_pong_v6")


def test_a_vector_made_for_rendering_draws_its_first_environment(roll: Roll) -> None:
    vector = make("mpe2.simple_spread_v3", 2, render=True)
    roll(vector, 1)
    frame = vector.render()
    assert (frame.ndim, frame.shape[2], frame.dtype) == (3, 3, "uint8")
    vector.close()
    vector.close()
