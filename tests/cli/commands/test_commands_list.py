"""`tianji list` names what a config can name, says what is missing, and imports no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import tianji_plugins
from tianji_cli.commands import list as listing
from tianji_cli.telemetry.tables import plain_table, print_table


@pytest.fixture
def new_packages() -> Iterator[None]:
    """Packages that were installed since others were asked for are seen, and forgotten after the test."""
    for cached in (tianji_plugins._brought, tianji_plugins._entries):
        cached.cache_clear()
    yield
    for cached in (tianji_plugins._brought, tianji_plugins._entries):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("agents", name) for name in ("maddpg", "mappo", "ppo", "qmix", "r2d2", "sac", "td3")),
        *(
            ("models", name)
            for name in ("mlp_actor_critic", "team_actor_critic", "team_deterministic", "team_q")
        ),
        *(("environments", name) for name in ("gym", "matrix_game", "mpe", "pettingzoo", "smac", "smax")),
        ("transports", "shm"),
    ],
)
def test_what_is_built_in_is_listed_with_a_description(
    kind: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listing.list_things(kind, "-") == 0
    entries = {entry["name"]: entry for entry in reversed(json.loads(capsys.readouterr().out)[kind])}
    assert entries[name]["description"].endswith(".")
    assert entries[name]["source"] == "tianji"
    assert entries[name]["missing"] == ""


@pytest.mark.parametrize("kind", ["agents", "models", "environments", "transports"])
def test_no_list_imports_torch_or_what_is_listed(kind: str) -> None:
    code = (
        "import sys; from tianji_cli.commands.list import list_things; "
        f"list_things({kind!r}, None); "
        "assert not {'torch', 'jax', 'jaxmarl', 'pettingzoo', 'mpe2'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=120)


def test_gymnasium_environments_are_listed_in_their_newest_version(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listing.list_things("environments", "-")
    ids = [entry["id"] for entry in json.loads(capsys.readouterr().out)["environments"]]
    assert "CartPole-v1" in ids
    assert "CartPole-v0" not in ids
    assert not any(name.startswith("GymV2") for name in ids)


def test_an_environment_whose_library_is_missing_comes_with_the_pip_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = listing.importlib.util.find_spec

    def without_box2d(name: str) -> ModuleSpec | None:
        return None if name == "Box2D" else found(name)

    monkeypatch.setattr(listing.importlib.util, "find_spec", without_box2d)
    entries = {entry.id: entry for entry in listing.environment_types()}
    assert entries["LunarLander-v3"].missing == "pip install 'tianji[box2d]'"
    assert entries["CartPole-v1"].missing == ""


@pytest.mark.usefixtures("new_packages")
def test_an_installed_agent_is_listed_with_its_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "other_agents-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other-agents\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[tianji.agents]\nother = other_agents:Other\n")
    (tmp_path / "other_agents.py").write_text(
        'raise RuntimeError("listed, and not imported")\n'
        'class Other:\n    """Acts otherwise.\n\n    Much."""\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    entries = {entry.name: entry for entry in listing.agents()}
    assert entries["other"] == listing.Entry("other", "", "Acts otherwise.", "other-agents")


def test_json_goes_to_a_file_beside_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listing.list_things("agents", str(tmp_path / "agents.json"))
    assert [row["name"] for row in json.loads((tmp_path / "agents.json").read_text())["agents"]] == [
        "dqn",
        "impala",
        "maddpg",
        "mappo",
        "ppo",
        "qmix",
        "r2d2",
        "sac",
        "td3",
    ]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        *("name", "dqn", "impala", "maddpg", "mappo", "ppo", "qmix", "r2d2", "sac", "td3")
    ]


def test_a_pipe_gets_one_line_a_row_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "is"], [["a", "x" * 500], ["bb", "y"]], "unseen")
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["name  is", f"a     {'x' * 500}", "bb    y"]


def test_a_terminal_gets_a_table_that_takes_no_text_for_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(["name"], [["tianji[box2d]"]], "things")
    shown = capsys.readouterr().out
    assert "tianji[box2d]" in shown
    assert "things" in shown


def test_an_empty_plain_table_is_its_headings() -> None:
    assert plain_table(["name", "source"], []) == "name  source\n"


@pytest.mark.usefixtures("new_packages")
def test_an_engine_whose_library_is_missing_comes_with_the_pip_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "other_engines-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other-engines\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[tianji.transports]\nother = other_engines:Other\n")
    (tmp_path / "other_engines.py").write_text("import a_library_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    entries = {entry.name: entry for entry in listing.engines()}
    assert "pip install 'a_library_nobody_has'" in entries["other"].missing
    assert entries["shm"].missing == ""


def test_environments_of_teams_are_listed_with_their_ids_and_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = {
        ("matrix_game", "two_step"): "",
        ("mpe", "simple_speaker_listener"): "pip install 'tianji[marl]'",
        ("pettingzoo", "PACKAGE.MODULE"): "pip install 'tianji[marl]'",
        ("smax", "5m_vs_6m"): "pip install 'tianji[smax]'",
    }
    entries = {(entry.name, entry.id): entry.missing for entry in listing.environment_types()}
    assert {name: entries[name] for name in listed} == dict.fromkeys(listed, "")
    for library in ("pettingzoo", "mpe2", "jaxmarl"):
        monkeypatch.setitem(sys.modules, library, None)
    entries = {(entry.name, entry.id): entry.missing for entry in listing.environment_types()}
    assert {name: entries[name] for name in listed} == listed


def test_particle_worlds_are_those_of_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worlds() -> list[str]:
        return [entry.id for entry in listing.environment_types() if entry.name == "mpe" and entry.id]

    assert {"simple_spread", "simple_crypto", "simple_world_comm"} <= set(worlds())
    package = tmp_path / "mpe2"
    package.mkdir()
    for name in ("__init__", "simple_v3", "simple_spread_v3", "simple_spread_v4", "all_modules"):
        (package / f"{name}.py").write_text('raise RuntimeError("listed, and not imported")')
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mpe2"]:
        monkeypatch.delitem(sys.modules, name)
    assert worlds() == ["simple", "simple_spread"]
    monkeypatch.setitem(sys.modules, "mpe2", None)
    assert worlds() == ["simple_adversary", "simple_speaker_listener", "simple_spread", "simple_tag"]


def test_battles_of_starcraft_come_with_the_steps_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("smac", "smaclite"):
        monkeypatch.setitem(sys.modules, library, None)
    entries = [entry for entry in listing.environment_types() if (entry.name, entry.id) == ("smac", "MAP")]
    assert [entry.source for entry in entries] == ["smac", "smaclite"]
    for entry in entries:
        assert f'options.package = "{entry.source}"' in entry.description
        assert "pip install git+" in entry.missing


def test_atari_games_are_listed_and_missing_only_where_neither_library_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for library in ("ale_py", "envpool"):
        entries = {(entry.name, entry.id): entry for entry in listing.environment_types()}
        assert entries["atari", "SpaceInvaders"].missing == ""
        monkeypatch.setitem(sys.modules, library, None)
    entries = {(entry.name, entry.id): entry for entry in listing.environment_types()}
    assert entries["atari", "SpaceInvaders"].missing == "pip install 'tianji[atari]'"
