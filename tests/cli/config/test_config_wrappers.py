"""Claims about ``environment.wrappers`` and ``metrics``: what a config may say, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.errors import ConfigError

GYM = """
[experiment]
stop = { env_steps = 100_000 }
[environment]
type = "gym"
id = "CartPole-v1"
[agent]
type = "ppo"
"""

MINE = """
import gymnasium
from tianji_envs.core import BaseEnv, EnvironmentFactory


class Plain(BaseEnv):
    def reset(self, seed=None): ...
    def step(self, action): ...


class Single(gymnasium.Env):
    pass


def make():
    return Single()


def dim(env, by=2):
    return env


class Many(EnvironmentFactory):
    def check_id(self, id): ...
    def make(self, *arguments, **keywords): ...


class ManyWrapped(Many):
    takes_wrappers = takes_metrics = True
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A config beside a module of the user's own."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "dim_lights", raising=False)
    (tmp_path / "dim_lights.py").write_text(MINE)
    (tmp_path / "job.toml").write_text(GYM)
    return str(tmp_path / "job.toml")


def test_an_entry_is_a_name_or_a_table_and_survives_a_dump(job: str, tmp_path: Path) -> None:
    clipped = '{ type = "ClipReward", min_reward = -inf, max_reward = 1 }'
    config = load_config(job, [f'environment.wrappers=["dim_lights:dim", {clipped}]'])
    again = tmp_path / "again.toml"
    again.write_text(dump_config(config))
    for read in (config, load_config(str(again))):
        assert [(one.type, dict(one.keywords)) for one in read.environment.wrappers] == [
            ("dim_lights:dim", {}),
            ("ClipReward", {"min_reward": float("-inf"), "max_reward": 1}),
        ]
        assert read.experiment.extensions == (str(tmp_path),), "the wrapper's module lies beside the config"


@pytest.mark.parametrize(
    ("wrappers", "key", "words"),
    [
        ('["TimeAwareObservatoin"]', "environment.wrappers[0]", "did you mean 'TimeAwareObservation'?"),
        ('["OrderEnforcing", "dim_lights:din"]', "environment.wrappers[1]", "did you mean dim_lights:dim?"),
        ('["dim_lights:sys"]', "environment.wrappers[0]", "module 'dim_lights' has no 'sys'"),
        ('["dim_lights:gymnasium"]', "environment.wrappers[0]", "a class or function that takes an environ"),
        (
            '[{ type = "dim_lights:dim", bye = 2 }]',
            "environment.wrappers[0]",
            "keyword argument 'bye'; did you mean 'by'?",
        ),
        ("[{ by = 2 }]", "environment.wrappers[0].type", "missing"),
        ("[3]", "environment.wrappers[0]", "3 is no wrapper; a name is"),
        ('"OrderEnforcing"', "environment.wrappers", "it should be a list"),
    ],
)
def test_a_wrong_entry_is_refused_by_its_place(job: str, wrappers: str, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(job, [f"environment.wrappers={wrappers}"])
    (problem,) = refused.value.problems
    assert (problem.where, problem.key) == ("--set", key)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "taken"),
    [
        ({"type": "dim_lights:Single"}, True),
        ({"type": "dim_lights:make"}, True),
        ({"type": "dim_lights:ManyWrapped"}, True),
        ({"type": "dim_lights:Plain"}, False),
        ({"type": "dim_lights:Many"}, False),
        ({"type": "atari", "id": "Pong"}, False),
        ({"type": "matrix_game", "id": "climbing"}, False),
    ],
)
def test_wrappers_and_metrics_are_for_gymnasium_environments(
    job: str, environment: dict[str, str], taken: bool
) -> None:
    overrides = [f'environment.{key}="{value}"' for key, value in ({"id": ""} | environment).items()]
    overrides += ['environment.wrappers=["dim_lights:dim"]', 'environment.metrics=["success"]']
    if environment["type"] == "matrix_game":
        overrides += ["agent.type=mappo"]
    if taken:
        section = load_config(job, overrides).environment
        assert (len(section.wrappers), section.metrics) == (1, ("success",))
        return
    with pytest.raises(ConfigError) as refused:
        load_config(job, overrides)
    keys = [problem.key for problem in refused.value.problems]
    assert keys == ["environment.wrappers", "environment.metrics"]
    assert f"type '{environment['type']}' makes no gymnasium environments that could" in str(refused.value)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ('["success", ""]', "a name is empty; a key of gymnasium's info is wanted"),
        ('["success", "n", "success"]', "'success' is there twice; once is enough"),
        (str([f"m{i}" for i in range(33)]), "33 are more than 32: each is in every report"),
        ('"success"', "it should be a list"),
        ("[1]", "it should be a string"),
    ],
)
def test_metrics_are_a_few_names(job: str, metrics: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(job, [f"environment.metrics={metrics}"])
    assert words in str(refused.value)
