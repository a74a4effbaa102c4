"""Completion, asked as shells ask, and in the shells themselves where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import gymnasium
import pytest
import typer

from tianji_cli import main
from tianji_cli.commands import completion, declared
from tianji_cli.commands import list as listing
from tianji_cli.config.defaults import AGENTS
from tianji_cli.files.rundir import RunDirectory

COMPLETE = """
import sys
from tianji_cli.main import main
try:
    main([])
finally:
    heavy = {"torch", "gymnasium", "zmq", "numpy", "rich"} & set(sys.modules)
    assert not heavy, heavy
"""


def asked(place: Path, **variables: str) -> str:
    """Run the command as a shell's function does; whatever happens, nothing is said on stderr."""
    command = [sys.executable, "-c", COMPLETE]
    done = subprocess.run(
        command,
        cwd=place,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def completed(place: Path, line: str) -> list[str]:
    last = str(len(line.split(" ")) - 1)
    return asked(place, _TIANJI_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=last).split()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("walk", "walk", "run"):
        run = RunDirectory.create(name, tmp_path / "experiments")
        run.write_config("")
        run.log("actor", 2).touch()
        (run.checkpoints / "last").mkdir()
        (run.checkpoints / "000000002048").mkdir()
    (tmp_path / "experiments/walk/seeds-1").mkdir()
    (tmp_path / "mine.toml").write_text('agent.type = "dqn"\n')
    (tmp_path / "broken.toml").write_text("[")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tianji tra", ["train", "trace"]),
        ("tianji config ", ["show", "diff", "schema"]),
        ("tianji train --tr", ["--transport", "--trace"]),
        ("tianji sweep mi", ["mine.toml"]),
        ("tianji sweep --re", ["--resume"]),
        ("tianji train ppo_cartpole_", [f"ppo_cartpole_{one}" for one in ("groups", "learners", "sync")]),
        ("tianji train configs/ppo_cartpole_g", ["configs/ppo_cartpole_groups.toml"]),
        ("tianji train mi", ["mine.toml"]),
        ("tianji train exp", ["experiments/"]),
        ("tianji cp a2c", ["a2c_cartpole"]),
        ("tianji watch ", ["run", "walk"]),
        ("tianji watch wa", ["walk", "walk/1", "walk/2"]),
        ("tianji rm walk/1 walk/", ["walk/1", "walk/2"]),
        ("tianji compare --out figures walk/1 walk/", ["walk/1", "walk/2", "walk/seeds-1"]),
        ("tianji report --out page.html walk/", ["walk/1", "walk/2", "walk/seeds-1"]),
        ("tianji train --resume r", ["run", "run/1"]),
        ("tianji logs walk ", ["actor-2"]),
        ("tianji eval walk --checkpoint ", ["last", "2048"]),
        ("tianji train --env X --agent s", ["sac"]),
        ("tianji train --env CartP", ["CartPole-v0", "CartPole-v1"]),
        ("tianji train --env Pon", ["Pong"]),
        ("tianji train --transport s", ["shm"]),
        ("tianji list a", ["agents"]),
        ("tianji train mine.toml --set training.do", ["training.double="]),
        ("tianji train --env X --agent sac --set training.tem", ["training.temperature="]),
        ("tianji train mine.toml --set distribution.buffer.cap", ["distribution.buffer.capacity="]),
        ("tianji train broken.toml --set experiment.se", ["experiment.seed="]),
        ("tianji sweep mine.toml --set sweep.prun", ["sweep.pruner="]),
        ("tianji sweep mine.toml --set sweep.parameters.training.do", ["sweep.parameters.training.double="]),
        ("tianji train mine.toml --set sweep.prun", []),
        ("tianji config diff mine.toml wal", ["walk", "walk/1", "walk/2"]),
    ],
)
def test_a_word_is_completed_without_anything_heavy(place: Path, line: str, words: list[str]) -> None:
    assert completed(place, line) == words


@pytest.mark.parametrize(
    "line",
    [
        "tianji nonsense x",
        "tianji watch none/",
        "tianji logs none ",
        "tianji eval none --checkpoint ",
        "tianji 'x",
    ],
)
def test_where_there_is_nothing_to_complete_nothing_is_said(place: Path, line: str) -> None:
    assert completed(place, line) == []


def test_a_shell_that_asks_in_the_wrong_way_gets_no_traceback(tmp_path: Path) -> None:
    assert asked(tmp_path, _TIANJI_COMPLETE="complete_bash", COMP_WORDS="tianji", COMP_CWORD="x") == ""


def test_zsh_and_fish_are_answered_in_their_own_ways(place: Path) -> None:
    asks = {"_TYPER_COMPLETE_ARGS": "tianji watch wa"}
    zsh = asked(place, _TIANJI_COMPLETE="complete_zsh", **asks)
    assert zsh.split() == ["_arguments", "'*:", '::(("walk"', '"walk/1"', '"walk/2"))\''] or '"walk/2"' in zsh
    fish = asked(place, _TIANJI_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", **asks)
    assert fish.split() == ["walk", "walk/1", "walk/2"]


SHELLS = {
    "bash": 'eval "$(tianji --show-completion bash)"; COMP_WORDS=(tianji watch wa); COMP_CWORD=2; '
    '_tianji_completion tianji; printf "%s\\n" "${COMPREPLY[@]}"',
    "zsh": "autoload -U compinit; compinit -u; _arguments() { print -- $* }; "
    'words=(tianji watch wa); CURRENT=3; eval "$(tianji --show-completion zsh)"; _tianji_completion',
    "fish": "tianji --show-completion fish | source; complete -C 'tianji watch wa'",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_itself_completes(place: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", SHELLS[shell]],
        cwd=place,
        env=os.environ | {"PATH": path, "HOME": str(place)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert all(run in done.stdout for run in ("walk/1", "walk/2")), done.stdout + done.stderr


def parameters(function: Any) -> list[tuple[Any, ...]]:
    app = typer.Typer(add_completion=False)
    app.command()(function)
    command = typer.main.get_command(app)
    seen = ("name", "opts", "nargs", "required", "is_flag", "multiple", "metavar")
    return [tuple(getattr(one, name, None) for name in seen) for one in command.params]


@pytest.mark.parametrize("function", [function for function, _ in main._FUNCTIONS.values()])
def test_a_command_is_declared_as_it_is(function: str) -> None:
    real = resolve_name(f"tianji_cli.commands.{function}")
    assert parameters(declared.declared(function)) == parameters(real)


def test_names_that_are_written_down_are_those_that_there_are() -> None:
    assert set(completion.AGENTS) == set(AGENTS)
    assert set(completion.KINDS) == {*listing._LISTS, "configs", "runs"}
    ids = completion.environments(incomplete="")
    assert {"CartPole-v1", "LunarLander-v3", "Ant-v5"} <= set(ids)
    assert {one for one in ids if "-v" in one} <= set(gymnasium.registry)
