"""Claims about which files of the user's go to hosts that join, and where they lie there."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings
from tianji_cli.config.schema import Component, JobConfig
from tianji_cli.errors import UsageError
from tianji_cli.launch.extensions import AROUND_A_FILE, MOST_BYTES, collect_files, lay_down
from tianji_cli.wire.control import MAX_MESSAGE_BYTES
from tianji_cli.wire.messages import Welcome, decode_from_root, encode


def config(
    *directories: Path,
    environment: str = "gym",
    env_id: str | None = None,
    wrappers: tuple[Any, ...] = (),
    files: tuple[Path, ...] = (),
) -> JobConfig:
    experiment: dict[str, Any] = {"name": "x", "stop": {"env_steps": 10}}
    experiment["extensions"] = [str(directory) for directory in directories]
    experiment["files"] = [str(file) for file in files]
    return JobConfig(
        experiment=experiment,
        environment={"type": environment, "id": env_id, "wrappers": wrappers},
        agent=Component(type="ppo", settings=PPOAgentSettings()),
        model=Component(type="mlp_actor_critic", settings=MLPActorCriticSettings()),
        training=Component(type="ppo", settings=PPOSettings()),
    )


def welcome(files: dict[str, bytes]) -> Welcome:
    return Welcome(host="b", experiment="x", run="/r", files=files)


def sources(place: Path, **named: str) -> Path:
    """Write modules; a dot in a name is written as two underscores."""
    for name, source in named.items():
        file = place / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return place


def test_a_module_goes_with_what_it_imports_from_the_same_directory(tmp_path: Path) -> None:
    sources(
        tmp_path,
        maze="import json\nimport numpy\n\ndef late():\n    import rules\n",
        rules="from shapes.round import circle\n",
        unrelated="",
    )
    package = tmp_path / "shapes"
    package.mkdir()
    for name in ("__init__", "round", "by_a_name_made_up_at_run_time"):
        (package / f"{name}.py").write_text(f"name = {name!r}\n")
    found = collect_files(config(tmp_path, environment="maze:Maze"))
    assert sorted(found) == [
        "maze.py",
        "rules.py",
        "shapes/__init__.py",
        "shapes/by_a_name_made_up_at_run_time.py",
        "shapes/round.py",
    ]
    assert found["rules.py"] == b"from shapes.round import circle\n"


def test_modules_of_wrappers_go_too(tmp_path: Path) -> None:
    sources(tmp_path, lamps="", lenses="import glass", glass="", unrelated="")
    wrappers = ("lamps:Dim", {"type": "lenses:Zoom", "by": 2}, "ClipReward")
    assert sorted(collect_files(config(tmp_path, wrappers=wrappers))) == ["glass.py", "lamps.py", "lenses.py"]


@pytest.mark.parametrize(
    "source",
    [
        "import importlib\nrules = importlib.import_module('rules')\n",
        "from importlib import import_module\nrules = import_module('rules.parts', None)\n",
        "rules = __import__('rules')\n",
        "import gymnasium\ngymnasium.register('Maze-v0', entry_point='rules:Maze')\n",
        "try:\n    import fast_rules as rules\nexcept ImportError:\n    import rules\n",
        "def f():\n    def g():\n        from rules import x\n",
        "import helpers\n",
        "from space import part\n",
        "import space.part\n",
    ],
)
def test_an_import_is_followed_in_whatever_form(tmp_path: Path, source: str) -> None:
    sources(
        tmp_path,
        maze=source,
        rules="",
        helpers____init__="from . import inner\n",
        helpers__inner="",
        helpers__unforeseen="import rules\n",
        space__part="import rules\n",
    )
    assert "rules.py" in collect_files(config(tmp_path, environment="maze:Maze"))


@pytest.mark.parametrize(
    ("environment", "env_id"),
    [
        ("pettingzoo", "maze"),
        ("pettingzoo", "worlds.maze"),
        ("gym", "maze:Maze-v0"),
        ("mine:Factory", "maze"),
    ],
)
def test_a_module_named_by_the_environment_s_id_goes_too(
    tmp_path: Path, environment: str, env_id: str
) -> None:
    sources(tmp_path, maze="import rules\n", rules="", worlds__maze="import rules\n", mine="")
    found = collect_files(config(tmp_path, environment=environment, env_id=env_id))
    assert {"rules.py", f"{env_id.partition(':')[0].replace('.', '/')}.py"} <= found.keys()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Pong-v5", "", "3m", "..maze", None])
def test_an_id_that_is_no_module_names_none(tmp_path: Path, env_id: str | None) -> None:
    sources(tmp_path, maze="", CartPole="")
    assert collect_files(config(tmp_path, env_id=env_id)) == {}


def test_an_installed_module_stays_where_it_is(tmp_path: Path) -> None:
    assert collect_files(config(tmp_path, environment="numpy:ndarray")) == {}
    assert collect_files(config(tmp_path)) == {}
    sources(tmp_path, maze="import random, yaml_of_mine, tomli_w\n", random="", tomli_w="", yaml_of_mine="")
    found = collect_files(config(tmp_path, environment="maze:Maze"))
    assert sorted(found) == ["maze.py", "yaml_of_mine.py"], "Python would not take the user's random.py"


def test_a_module_of_two_directories_is_the_first_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    sources(first, maze="import rules\n")
    sources(second, maze="1 / 0\n", rules="")
    monkeypatch.setattr(sys, "path", [*sys.path, str(first), str(second)])
    found = collect_files(config(first, second, environment="maze:Maze"))
    assert found == {"maze.py": b"import rules\n", "rules.py": b""}


def test_data_files_go_as_they_are_and_keep_their_places(tmp_path: Path) -> None:
    sources(tmp_path, maze="# -*- coding: latin-1 -*-\n", lib__rules="")
    (tmp_path / "maze.py").write_bytes(b"# -*- coding: latin-1 -*-\nname = '\xe9'\n")
    table = bytes(range(256)) * 3
    (tmp_path / "lib/table.bin").write_bytes(table)
    (tmp_path / "maps/deep").mkdir(parents=True)
    (tmp_path / "maps/deep/a.map").write_bytes(b"\0")
    (tmp_path / "maps/b.map").symlink_to(tmp_path / "lib/table.bin")
    files = (tmp_path / "lib/table.bin", tmp_path / "maps")
    found = collect_files(config(tmp_path, tmp_path / "lib", environment="maze:Maze", files=files))
    assert found == {
        "maze.py": b"# -*- coding: latin-1 -*-\nname = '\xe9'\n",
        "lib/table.bin": table,
        "table.bin": table,  # Beside modules of lib, which are imported from there.
        "maps/b.map": table,
        "maps/deep/a.map": b"\0",
    }
    received = decode_from_root(encode(welcome(found)))
    assert isinstance(received, Welcome)
    lay_down(received.files, tmp_path / "host")
    laid = tmp_path / "host/extensions"
    assert {
        path.relative_to(laid).as_posix(): path.read_bytes() for path in laid.rglob("*") if path.is_file()
    } == found


def test_two_data_files_of_one_place_are_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        place.mkdir()
        (place / "table").write_text(place.name)
    files = (first / "table", second / "table")
    with pytest.raises(UsageError, match="would both be table on hosts that join"):
        collect_files(config(first, second, files=files))


def test_more_than_a_message_takes_is_refused_with_the_limit(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    rest = len("table") + len("small") + 2 * AROUND_A_FILE
    (tmp_path / "table").write_bytes(bytes(MOST_BYTES - 1 - rest))
    files = (tmp_path / "table", tmp_path / "small")
    assert len(encode(welcome(collect_files(config(tmp_path, files=files))))) < MAX_MESSAGE_BYTES
    (tmp_path / "small").write_bytes(b"xx")
    with pytest.raises(UsageError, match=r"8\.00 MB is the most \(of 2 files .*/small is the last, with 2 B"):
        collect_files(config(tmp_path, files=files))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "big").touch()
    os.truncate(tmp_path / "big", 1 << 30)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read"))
    with pytest.raises(UsageError, match=r"1\.07 GB or more"):
        collect_files(config(tmp_path, files=(tmp_path / "big",)))


def test_paths_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {f"{number:0100}": b"" for number in range(MOST_BYTES // (100 + AROUND_A_FILE))}
    assert len(encode(welcome(small))) < MAX_MESSAGE_BYTES
    monkeypatch.setattr("tianji_cli.launch.extensions.MOST_BYTES", 1000)
    for number in range(10):
        (tmp_path / f"{number:0100}").touch()
    with pytest.raises(UsageError, match=r"1\.08 KB or more, with their paths"):
        collect_files(config(tmp_path, files=(tmp_path,)))


def test_nothing_of_a_directory_is_left_out_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "maps").mkdir()
    (tmp_path / "shared/deep").mkdir(parents=True)
    (tmp_path / "shared/deep/a.map").write_bytes(b"a")
    (tmp_path / "maps/linked").symlink_to(tmp_path / "shared")
    asked = config(tmp_path, files=(tmp_path / "maps",))
    assert collect_files(asked) == {"maps/linked/deep/a.map": b"a"}
    (tmp_path / "maps/gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"maps/gone cannot be sent to hosts that join: No such file"):
        collect_files(asked)
    (tmp_path / "maps/gone").unlink()
    (tmp_path / "maps/back").symlink_to(tmp_path / "maps")
    with pytest.raises(UsageError, match="Too many levels of symbolic links"):
        collect_files(asked)
    (tmp_path / "maps/back").unlink()
    os.mkfifo(tmp_path / "maps/pipe")
    with pytest.raises(UsageError, match="maps/pipe is neither a file nor a directory"):
        collect_files(asked)


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "maps/closed").mkdir(parents=True)
    scandir = os.scandir

    def closed(place: str) -> Any:  # Root may read any.
        if str(place).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(UsageError, match=r"maps/closed cannot be sent to hosts that join: Permission denied"):
        collect_files(config(tmp_path, files=(tmp_path / "maps",)))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone cannot be sent to hosts that join: No such file"):
        collect_files(config(tmp_path, files=(tmp_path / "gone",)))


@pytest.mark.parametrize("path", ["../evil.py", "/etc/evil.py", "a/../../evil.py", "..", "", "."])
def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="no path below extensions"):
        lay_down({path: b""}, tmp_path / "host")
    assert not list(tmp_path.rglob("*evil*"))
