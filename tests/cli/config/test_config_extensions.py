"""Types of the user's own are found beside the config, and again by every process of every later run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.errors import ConfigError

ENVIRONMENT = """
import gymnasium
import numpy as np
from tianji_envs.core import BaseEnv

class Still(BaseEnv):
    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
    def reset(self, seed=None):
        return np.zeros(2, np.float32)
    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False
"""

EMBRYO = """
from pydantic import BaseModel
from tianji_algos.core import Embryo

class Settings(BaseModel):
    {field}
    rate: float = 0.1

class Rule(Embryo):
    settings_type = Settings
"""

CONFIG = """
[experiment]
stop = {{ env_steps = 100_000 }}
[environment]
type = "{environment}"
[agent]
type = "ppo"
[training]
{training}
[distribution]
transport = "inproc"
"""


def write(
    directory: Path, module: str = "", *, environment: str = "", training: str = "", source: str = ENVIRONMENT
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    if module:
        (directory / f"{module}.py").write_text(source)
    path = directory / "mine.toml"
    text = CONFIG.format(environment=environment or f"{module}:Still", training=training)
    path.write_text(
        text if environment != "gym" else text.replace('type = "gym"', 'type = "gym"\nid = "CartPole-v1"')
    )
    return path


@pytest.fixture(autouse=True)
def path_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def load_elsewhere(path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = (
        "from tianji_cli.config.loader import load_config\n"
        f"print(load_config({str(path)!r}).environment.type)"
    )
    return subprocess.run(
        [sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_resolved_config_finds_the_module_from_any_directory_in_a_new_process(tmp_path: Path) -> None:
    config = load_config(str(write(tmp_path / "mine", "still_env_a")))
    assert config.experiment.extensions == (str(tmp_path / "mine"),)
    run = tmp_path / "experiments" / "mine" / "1"
    run.mkdir(parents=True)
    (run / "config.toml").write_text(dump_config(config))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    loaded = load_elsewhere(run / "config.toml", elsewhere)
    assert (loaded.returncode, loaded.stdout.strip()) == (0, "still_env_a:Still"), loaded.stderr


def test_a_config_run_again_records_the_same_directories(tmp_path: Path) -> None:
    config = load_config(str(write(tmp_path / "mine", "still_env_b")))
    (tmp_path / "config.toml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "config.toml")) == config


def test_a_module_beside_an_extended_config_is_found(tmp_path: Path) -> None:
    write(tmp_path / "base", "still_env_c")
    child = tmp_path / "child.toml"
    child.write_text('extends = "base/mine.toml"\n[experiment]\nseed = 2')
    assert str(tmp_path / "base") in load_config(str(child)).experiment.extensions


def test_listed_directories_begin_where_the_config_lies(tmp_path: Path) -> None:
    library = tmp_path / "library"
    write(library, "still_env_d")
    mine = tmp_path / "configs" / "mine.toml"
    mine.parent.mkdir()
    text = CONFIG.format(environment="still_env_d:Still", training="")
    mine.write_text(text.replace("[environment]", 'extensions = ["../library"]\n[environment]'))
    assert load_config(str(mine)).experiment.extensions == (str(library),)


def test_a_config_without_types_of_the_users_own_leaves_the_path_alone(tmp_path: Path) -> None:
    before = list(sys.path)
    assert load_config(str(write(tmp_path, environment="gym"))).experiment.extensions == ()
    assert sys.path == before


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ("still_env_e:Stil", "did you mean still_env_e:Still"),
        ("no_such_module_here:Still", "no_such_module_here"),
        ("still_env_e:np", "a subclass of BaseEnv"),
    ],
)
def test_a_type_that_is_not_in_its_module_is_refused(tmp_path: Path, environment: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        load_config(str(write(tmp_path, "still_env_e", environment=environment)))
    assert [problem.key for problem in refused.value.problems] == ["environment.type"]


def test_a_module_that_does_not_import_is_refused_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ZeroDivisionError") as refused:
        load_config(str(write(tmp_path, "still_env_f", source="1 / 0\n")))
    assert len(str(refused.value).splitlines()) == 1


def test_an_embryo_that_gathers_no_rollouts_is_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path, "rule_a", environment="gym", training='type = "rule_a:Rule"', source=EMBRYO.format(field="")
    )
    with pytest.raises(ConfigError, match=r"training\.type.*rollout_steps"):
        load_config(str(path))


def test_an_unknown_key_is_refused_even_where_the_users_model_would_ignore_it(tmp_path: Path) -> None:
    source = EMBRYO.format(field="rollout_steps: int = 1024")
    path = write(
        tmp_path, "rule_b", environment="gym", training='type = "rule_b:Rule"\nrat = 0.5', source=source
    )
    with pytest.raises(ConfigError, match=r"training\.rat: unknown key; did you mean 'rate'"):
        load_config(str(path))


def test_an_id_whose_module_does_not_import_is_refused_with_its_error(tmp_path: Path) -> None:
    path = write(tmp_path, "registers_a", environment="gym", source="1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError") as refused:
        load_config(str(path), ["environment.id=registers_a:Mine-v0"])
    assert [problem.key for problem in refused.value.problems] == ["environment.id"]


def test_a_module_that_is_the_id_of_a_pettingzoo_environment_lies_beside_the_config(tmp_path: Path) -> None:
    path = write(tmp_path, "team_a", environment="pettingzoo", source="def parallel_env(): ...\n")
    path.write_text(path.read_text().replace('type = "ppo"', 'type = "mappo"'))
    config = load_config(str(path), ["environment.id=team_a"])
    assert config.experiment.extensions == (str(tmp_path),)


def with_files(directory: Path, files: str, extensions: str = "") -> Path:
    path = write(directory, environment="gym")
    listed = f"{extensions}\nfiles = {files}\n[environment]"
    path.write_text(path.read_text().replace("[environment]", listed))
    return path


def test_data_files_begin_where_the_config_lies_and_stay_where_they_are(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "maps").mkdir(parents=True)
    (mine / "table.csv").write_text("1\n")
    config = load_config(str(with_files(mine, '["table.csv", "./maps", "maps"]')))
    assert config.experiment.files == (str(mine / "table.csv"), str(mine / "maps"))
    assert config.experiment.extensions == (str(mine),), "where hosts that join find them"
    (tmp_path / "config.toml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "config.toml")) == config


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ('["tables.csv"]', r"there is no .*mine/tables\.csv"),
        (
            '["../outside.csv"]',
            r"outside\.csv is not below .*mine, and would have no place on hosts that join",
        ),
        ('["leads_out/outside.csv"]', None),
        ('"table.csv"', "does not fit; it should be a list"),
        ("[1]", "1 does not fit; it should be a string"),
    ],
)
def test_a_data_file_that_is_not_there_or_has_no_place_is_refused(
    tmp_path: Path, files: str, said: str | None
) -> None:
    (tmp_path / "outside.csv").write_text("")
    path = with_files(tmp_path / "mine", files)
    (tmp_path / "mine/leads_out").symlink_to(tmp_path)
    if said is None:
        assert load_config(str(path)).experiment.files == (str(tmp_path / "mine/leads_out/outside.csv"),)
        return
    with pytest.raises(ConfigError, match=said) as refused:
        load_config(str(path))
    assert all(problem.key.startswith("experiment.files") for problem in refused.value.problems)
