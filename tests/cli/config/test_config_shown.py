"""`tianji config`: the whole of a config and where it comes from, what differs, the keys as JSON Schema."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tianji_cli.commands.config import diff, schema, show
from tianji_cli.config.json_schema import config_schema
from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.config.source import read, shipped_configs
from tianji_cli.errors import ConfigError
from tianji_cli.files.rundir import RunDirectory


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text('extends = "ppo_cartpole.toml"\n[training]\ngamma = 0.98\n')
    return path


def test_a_shown_config_is_the_one_that_would_run_and_says_where_values_come_from(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["training.minibatch_size=256", 'environment.wrappers=[{type = "ClipReward", max_reward = 1}]']
    assert show(str(small), overrides=settings) == 0
    text = capsys.readouterr().out
    assert tomllib.loads(text) == tomllib.loads(dump_config(load_config(str(small), settings)))
    lines = text.splitlines()
    assert "gamma = 0.98" in lines
    assert "minibatch_size = 256 # --set" in lines
    assert "clip_value = false # default" in lines
    assert any(line.startswith("learning_rate = 0.002 # ") and "ppo_cartpole.toml" in line for line in lines)


def test_a_config_that_cannot_be_run_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"training\.gama: unknown key"):
        show("ppo_cartpole", overrides=["training.gama=1"])
    with pytest.raises(ConfigError, match=r"did you mean 'configs/ppo_cartpole\.toml'"):
        show("ppo_cartpol")
    assert capsys.readouterr().out == ""


def test_a_config_is_shown_where_its_environment_is_not_installed(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = ["environment.type='no_such_module:Env'", "environment.id=''"]
    assert show(str(small), overrides=elsewhere) == 0
    assert tomllib.loads(capsys.readouterr().out)["environment"]["type"] == "no_such_module:Env"
    with pytest.raises(ConfigError, match="no module 'no_such_module'"):
        load_config(str(small), elsewhere)


def test_what_differs_between_a_config_and_a_run_is_named(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create("cartpole", small.parent)
    run.write_config(dump_config(load_config(str(small), ["experiment.stop={wall_s=5}"])))
    assert diff(str(small), "cartpole", out=small.parent, json_to="-") == 0
    differing = json.loads(capsys.readouterr().out)["differing"]
    assert differing.pop("experiment.stop.wall_s") == [600, 5]
    assert set(differing) == {"experiment.stop.mean_return", "experiment.stop.env_steps"}
    assert diff(str(small), "cartpole/1", out=small.parent) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "stop.env_steps" in line]
    assert row.split() == ["experiment.stop.env_steps", "500000", "-"]
    assert diff(str(small), str(small)) == 0
    assert capsys.readouterr().out == "they do not differ\n"


def fits(value: Any, of: dict[str, Any], definitions: dict[str, Any]) -> bool:
    """Whether a table has no keys but those of a schema, at any depth; what values are is not looked at."""
    if "$ref" in of:
        return fits(value, definitions[of["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in of:
        return any(fits(value, one, definitions) for one in of["anyOf"])
    if "const" in of or "pattern" in of:
        return value == of["const"] if "const" in of else re.search(of["pattern"], value) is not None
    if not isinstance(value, dict):
        return of.get("type") != "object"
    if of.get("type", "object") != "object":
        return False
    known, others = of.get("properties", {}), of.get("additionalProperties", True)
    return all(
        fits(inner, known.get(key, others), definitions)
        if key in known or isinstance(others, dict)
        else bool(others)
        for key, inner in value.items()
    )


def test_every_shipped_config_fits_the_schema_and_a_misspelt_key_does_not() -> None:
    made = config_schema()
    for name in shipped_configs():
        assert fits(tomllib.loads(shipped_configs()[name].read_text()), made, made["$defs"]), name
        assert fits(read(name).values, made, made["$defs"]), name
    for wrong in (
        {"trainning": {}},
        {"training": {"type": "ppo", "gama": 0.9}},
        {"distribution": {"buffer": {"capasity": 3}}},
        {"agent": {"type": "ppo", "epsilon_start": 0.1}},
    ):
        assert not fits(wrong, made, made["$defs"]), wrong
    own = {
        "agent": {"type": "mine:Agent", "x": 1},
        "roles": {"spy": {"type": "mine:Spy", "reads": [], "y": 2}},
    }
    assert fits(own, made, made["$defs"])


def test_the_schema_says_what_keys_mean_and_knows_no_null() -> None:
    made = config_schema()
    stop = made["$defs"]["Stop"]["properties"]["mean_return"]
    assert stop == {"type": "number", "description": "mean return of the last 100 training episodes."}
    (ppo,) = [one for one in made["properties"]["training"]["anyOf"] if one.get("title") == "ppo"]
    assert ppo["properties"]["gae_lambda"]["description"].startswith("of generalised advantage estimation")
    assert {"type": "string"} in made["$defs"]["Actor"]["properties"]["cores"]["anyOf"], "a list of cores"
    assert ppo["properties"]["gamma"]["description"]  # A key of the class that PPO's settings derive from.
    assert '"null"' not in json.dumps(made)


def test_the_schema_is_printed_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert schema() == 0
    assert json.loads(capsys.readouterr().out) == config_schema()
    code = (
        "import sys; from tianji_cli.main import main\n"
        "try: main(['config', 'schema'])\n"
        "finally: assert not {'torch', 'gymnasium'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=120)
