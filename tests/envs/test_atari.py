"""Names of Atari games, their options, and the messages about wrong ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from tianji_envs.atari.environment import AtariFactory
from tianji_envs.atari.games import GAMES, WITHOUT_FIRE, find_game, title
from tianji_envs.errors import MissingExtraError, UnknownEnvironmentError, WrongOptionError


@pytest.mark.parametrize(
    ("env_id", "game"),
    [
        ("Pong", "pong"),
        ("pong", "pong"),
        ("ALE/Pong-v5", "pong"),
        ("PongNoFrameskip-v4", "pong"),
        ("PongDeterministic-v4", "pong"),
        ("SpaceInvaders", "space_invaders"),
        ("space_invaders", "space_invaders"),
        ("Space Invaders", "space_invaders"),
        ("ALE/TicTacToe3D-v5", "tic_tac_toe_3d"),
    ],
)
def test_every_usual_spelling_leads_to_the_rom(env_id: str, game: str) -> None:
    assert find_game(env_id) == game
    AtariFactory().check_id(env_id)


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("Pnog", "did you mean Pong"),
        ("SpaceInvader", "did you mean SpaceInvaders"),
        ("CartPole-v1", "there is no Atari game 'CartPole-v1'"),
        ("Pong-ramNoFrameskip-v4", "there is no Atari game"),
        ("combat", "there is no Atari game"),  # Two players; ALE ends the process that loads it.
        ("", 'an id is a game such as "Pong"'),
    ],
)
def test_an_unknown_game_is_refused_with_the_nearest(env_id: str, words: str) -> None:
    for refused in (AtariFactory().check_id, lambda env_id: AtariFactory().make(env_id, 1)):
        with pytest.raises(UnknownEnvironmentError, match=re.escape(words)):
            refused(env_id)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frameskip": 4}, "no option 'frameskip'; did you mean 'frame_skip'?"),
        ({"x": 4}, "no option 'x'; they are backend, frame_skip, stack"),
        ({"backend": "gym"}, 'option backend = \'gym\': it should be "ale" or "envpool"'),
        ({"frame_skip": 0}, "option frame_skip = 0: it should be at least 1"),
        ({"frame_skip": True}, "option frame_skip = True: it should be a whole number"),
        ({"frame_skip": 4.0}, "option frame_skip = 4.0: it should be a whole number"),
        ({"stack": 256}, "option stack = 256: it should be at most 255"),
        ({"noop_max": -1}, "option noop_max = -1: it should be at least 0"),
        ({"stack": "4"}, "option stack = '4': it should be a whole number"),
        ({"sticky": "often"}, "option sticky = 'often': it should be a number"),
        ({"sticky": 1.5}, "option sticky = 1.5: it should be a probability below 1"),
        ({"sticky": float("nan")}, "option sticky = nan: it should be a probability below 1"),
        ({"life_loss": 1}, "option life_loss = 1: it should be true or false"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_loaded(
    options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("ale_py", "envpool"):
        monkeypatch.setitem(sys.modules, library, None)
    for refused in (
        partial(AtariFactory().check_options, "Pong"),
        lambda options: AtariFactory().make("Pong", 1, options=options),
    ):
        with pytest.raises(WrongOptionError) as caught:
            refused(options)
        assert words in str(caught.value)
        assert {caught.value.option} == options.keys()


@pytest.mark.parametrize(("backend", "library", "extra"), [("ale", "ale_py", "atari"), ("envpool",) * 3])
def test_a_missing_library_says_what_to_install(
    backend: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for imported in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, imported)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"tianji_envs.atari_{backend}", raising=False)
    options = {"backend": backend}
    for refused in (
        partial(AtariFactory().check_options, "Pong"),
        lambda options: AtariFactory().make("Pong", 1, options=options),
    ):
        with pytest.raises(MissingExtraError) as caught:
            refused(options)
        assert str(caught.value) == (
            f"Atari's backend {backend!r} needs more than is installed: pip install 'tianji[{extra}]'"
        )


def test_options_are_accepted_where_the_other_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    AtariFactory().check_options("Pong", {})
    AtariFactory().check_options("Pong", {"stack": 255})
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tianji\[atari\]'"):
        AtariFactory().check_options("Pong", {})


def test_checking_an_id_and_options_loads_no_emulator() -> None:
    code = (
        "import sys; from tianji_envs import registry; found = registry.find('atari');"
        "found.check_id('Pong'); found.check_options('Pong', {'backend': 'envpool'});"
        "assert not {'ale_py', 'envpool', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("variables", [{}, {"ALE_ROMS_DIR": "the package's own"}])
def test_making_and_stepping_prints_nothing_to_stdout(variables: dict[str, str]) -> None:
    code = """
import os, sys
import numpy as np
if "ALE_ROMS_DIR" in os.environ:
    import ale_py.roms
    os.environ["ALE_ROMS_DIR"] = os.path.dirname(ale_py.roms.__file__)
from tianji_envs.atari.environment import AtariFactory
vector = AtariFactory().make("Pong", 1)
frame = np.zeros((1, 84, 84), np.uint8)
vector.reset(0, frame)
vector.step(np.zeros(1, int), frame, np.zeros(1, np.float32), *np.zeros((2, 1), bool))
vector.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == ""
    assert bool(done.stderr) == bool(variables)


def test_the_games_are_those_of_both_libraries() -> None:
    import ale_py  # noqa: F401, PLC0415 - registers its games with gymnasium
    import envpool  # noqa: PLC0415

    registered = {spec.kwargs["game"] for spec in gymnasium.registry.values() if spec.namespace == "ALE"}
    assert set(GAMES) == registered
    assert {f"{title(game)}-v5" for game in GAMES} <= set(envpool.list_all_envs())


@pytest.mark.parametrize(
    "games",
    [
        ("freeway", "ms_pacman", "beam_rider", "breakout", "pong", "qbert", "space_invaders"),
        pytest.param(GAMES, marks=pytest.mark.soak),
    ],
    ids=["some", "all"],
)
def test_fire_is_action_1_of_a_game_with_lives_but_for_those_without(games: tuple[str, ...]) -> None:
    from ale_py import Action, ALEInterface, LoggerMode, roms  # noqa: PLC0415

    ALEInterface.setLoggerMode(LoggerMode.Error)
    for game in games:
        emulator = ALEInterface()
        emulator.loadROM(roms.get_rom_path(game))
        actions = emulator.getMinimalActionSet()
        assert (Action.FIRE not in actions) == (game in WITHOUT_FIRE)
        if emulator.lives() > 1 and game not in WITHOUT_FIRE:
            assert actions[:2] == [Action.NOOP, Action.FIRE]


@pytest.mark.parametrize("backend", ["ale", "envpool"])
def test_spaces_stack_and_frames_follow_the_options(backend: str) -> None:
    options = {"backend": backend, "size": 42, "frame_skip": 2, "stack": 3, "full_action_space": True}
    vector = AtariFactory().make("Freeway", 2, options=options)
    assert vector.observation_space == gymnasium.spaces.Box(0, 255, (42, 42), np.uint8)
    assert vector.action_space == gymnasium.spaces.Discrete(18)
    assert (vector.num_envs, vector.stack, vector.frames_per_step) == (2, 3, 2)
    frames = np.zeros((2, 42, 42), np.uint8)
    vector.reset(0, frames)
    assert frames.any()
    vector.close()
    vector.close()
    assert AtariFactory().make("Freeway", 1, options={"backend": backend}).action_space.n == 3  # type: ignore[attr-defined]
