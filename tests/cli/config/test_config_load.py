"""Loading a config: its values, where each comes from, and all of its mistakes at once."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tianji_cli.config.loader import dump_config, load_config, load_run_config, resolve
from tianji_cli.config.schema import JobConfig
from tianji_cli.config.source import read
from tianji_cli.errors import ConfigError

GOOD = """
[experiment]
stop = { env_steps = 100_000 }

[environment]
type = "gym"
id = "CartPole-v1"

[agent]
type = "ppo"
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "good.toml", GOOD)


def problems(path: Path | str, overrides: Sequence[str] = ()) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load_config(str(path), overrides)
    lines = str(refused.value).splitlines()
    assert len(lines) == len(refused.value.problems), "one line a problem"
    return lines


def only_problem(path: Path | str, overrides: Sequence[str] = ()) -> str:
    lines = problems(path, overrides)
    assert len(lines) == 1, lines
    return lines[0]


def rollout_steps(config: JobConfig) -> object:
    return config.training.settings.model_dump()["rollout_steps"]


def test_model_and_training_are_those_that_the_agent_goes_with(good: Path) -> None:
    config = load_config(str(good))
    assert (config.model.type, config.training.type) == ("mlp_actor_critic", "ppo")
    assert config.experiment.name == "good"


def test_the_nearest_file_of_an_extends_chain_wins_key_by_key(tmp_path: Path, good: Path) -> None:
    write(
        tmp_path / "mid.toml",
        'extends = "good.toml"\n[training]\ngamma = 0.9\nepochs = 3\n[environment]\nnum_envs = 16',
    )
    child = write(tmp_path / "child.toml", 'extends = "mid.toml"\n[training]\ngamma = 0.8')
    config = load_config(str(child))
    settings = config.training.settings.model_dump()
    assert (settings["gamma"], settings["epochs"], config.environment.num_envs) == (0.8, 3, 16)
    assert config.environment.id == "CartPole-v1"


def test_set_wins_over_every_file_and_the_last_one_wins_over_the_others(good: Path) -> None:
    config = load_config(str(good), ["training.rollout_steps=4096", "training.rollout_steps=8192"])
    assert rollout_steps(config) == 8192


def test_set_replaces_the_whole_of_a_key(good: Path) -> None:
    config = load_config(str(good), ["experiment.stop={ wall_s = 5 }"])
    assert config.experiment.stop.env_steps is None
    assert config.experiment.stop.wall_s == 5


def test_a_set_value_that_is_no_toml_is_a_string(good: Path) -> None:
    assert load_config(str(good), ["environment.id=Acrobot-v1"]).environment.id == "Acrobot-v1"


def test_a_step_count_may_be_written_with_an_exponent(good: Path) -> None:
    assert (
        load_config(str(good), ["experiment.stop={ env_steps = 1e6 }"]).experiment.stop.env_steps == 1_000_000
    )


def test_everything_that_is_wrong_is_said_at_once_in_the_order_of_the_sections(
    tmp_path: Path, good: Path
) -> None:
    child = write(
        tmp_path / "bad.toml",
        """
        extends = "good.toml"
        [distribution.actor]
        sendsize = 3
        num = 0
        [environment]
        id = "CartPol-v1"
        num_envs = "32"
        [agent]
        type = "pppo"
        [model]
        type = "mlp_actor_critic"
        hiden = [64]
        [training]
        type = "ppo"
        gamma = 1.5
        learning_rat = 1e-3
        """,
    )
    lines = problems(child, ["distribution.mode=synch"])
    keys = [line.split(": ")[1] for line in lines]
    assert sorted(keys) == sorted(
        [
            "environment.id",
            "environment.num_envs",
            "agent.type",
            "model.hiden",
            "training.gamma",
            "training.learning_rat",
            "distribution.actor.sendsize",
            "distribution.actor.num",
            "distribution.mode",
        ]
    )
    sections = [key.partition(".")[0] for key in keys]
    assert sections == sorted(
        sections, key=["environment", "agent", "model", "training", "distribution"].index
    )


def test_a_problem_names_the_file_of_the_chain_that_set_the_key(tmp_path: Path, good: Path) -> None:
    write(tmp_path / "mid.toml", 'extends = "good.toml"\n[training]\ngamma = 2.0')
    child = write(tmp_path / "child.toml", 'extends = "mid.toml"\n[training]\nepochs = 0')
    lines = problems(child, ["training.clip_range=-1"])
    assert {line.split(": ")[1]: line.split(": ")[0] for line in lines} == {
        "training.gamma": "mid.toml",
        "training.epochs": "child.toml",
        "training.clip_range": "--set",
    }


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("training.learning_rat=1e-3", "'learning_rate'"),
        ("training.tpye=ppo", "'type'"),
        ("environment.num_env=3", "'num_envs'"),
        ("distribution.actor.sendsize=3", "'send_size'"),
        ("distribution.actor.num_envs=3", "environment.num_envs"),
        ("experiment.stop={ env_step = 9, wall_s = 1.0 }", "'env_steps'"),
        ("agent.type=pppo", "'ppo'"),
        ("model.type=mlp_actor_critik", "'mlp_actor_critic'"),
        ("training.type=pppo", "'ppo'"),
        ("environment.type=gim", "'gym'"),
        ("environment.id=CartPol-v1", "CartPole-v1"),
        ("distribution.transport=zqm", "'zmq'"),
        ("distribution.mode=synch", "'sync'"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(
    good: Path, override: str, meant: str
) -> None:
    line = only_problem(good, [override])
    assert line.startswith(f"--set: {override.partition('=')[0]}")
    assert f"did you mean {meant}" in line


@pytest.mark.parametrize(
    ("override", "right"),
    [
        ("training.normalize_rewards=1", "true, false or 'auto'"),
        ('environment.num_envs="32"', "whole number"),
        ("environment.num_envs=1.5", "whole number"),
        ("environment.num_envs=true", "whole number"),
        ("training.gamma=high", "number"),
        ("training.gamma=inf", "finite number"),
        ("training.clip_value=1", "true or false"),
        ("training.epochs=0", "greater than or equal to 1"),
        ("model.hidden=64", "a list"),
        ('model.hidden=[64, "a"]', "whole number"),
        ("experiment.stop=5", "table"),
        ("experiment.stop={}", "set env_steps, wall_s, mean_return, win_rate or evaluation"),
        ("experiment.name=a/b", "/"),
        ("distribution.device=gpu", "cuda"),
        ("distribution.groups=0", "greater than or equal to 1"),
        ("distribution.buffer.num=2", "colocate = false would be right"),
        ("distribution.sync_wait_s=0", "greater than 0"),
        ("training.learning_rate_schedule=linear", "schedule_steps"),
        ("training.learning_rate_schedule=linaer", "did you mean 'linear'"),
        ("training.learning_rate_schedule=cosine", "or points such as [[0, 1.0]"),
        ("training.learning_rate_schedule=[[0, 1.0], [9, -1]]", "a number from 0, not -1"),
        ("training.learning_rate_schedule=[[9, 1.0], [0, 1.0]]", "0 comes after 9"),
        ("training.clip_range_schedule=[]", "a schedule of points has none"),
        ("agent.type=3", "string"),
        ("distribution.transport=5", 'write "shm"'),
    ],
)
def test_a_wrong_value_is_answered_with_what_would_be_right(good: Path, override: str, right: str) -> None:
    line = only_problem(good, [override])
    assert right in line.partition(": ")[2]
    assert not any(
        jargon in line.lower() for jargon in ("pydantic", "http", "value error", "input", "dict", "instance")
    )


@pytest.mark.parametrize(
    ("missing", "key", "example"),
    [
        ('[environment]\ntype = "gym"\nid = "CartPole-v1"', "environment.type", 'type = "gym"'),
        ('id = "CartPole-v1"', "environment.id", 'id = "CartPole-v1"'),
        ('[agent]\ntype = "ppo"', "agent.type", "'ppo'"),
        ("[experiment]\nstop = { env_steps = 100_000 }", "experiment.stop", "env_steps ="),
    ],
)
def test_what_is_missing_is_named_with_an_example(
    tmp_path: Path, good: Path, missing: str, key: str, example: str
) -> None:
    assert missing in GOOD
    less = write(tmp_path / "less.toml", GOOD.replace(missing, ""))
    line = only_problem(less)
    assert line.startswith(f"less.toml: {key}: missing")
    assert example in line


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ('{ backend = "gym" }', "environment.options.backend", 'it should be "ale" or "envpool"'),
        ("{ frameskip = 4 }", "environment.options.frameskip", "did you mean 'frame_skip'?"),
        ("{ stack = 300 }", "environment.options.stack", "it should be at most 255"),
    ],
)
def test_a_wrong_option_of_atari_is_named_with_its_key(
    good: Path, options: str, key: str, words: str
) -> None:
    line = only_problem(
        good, ["environment.type=atari", "environment.id=Pong", f"environment.options={options}"]
    )
    assert line.startswith(f"--set: {key}: ")
    assert words in line


@pytest.mark.parametrize(
    ("type_name", "env_id", "option", "words"),
    [
        ("matrix_game", "two_step", "penalty", "only the game 'penalty' has one"),
        ("mpe", "simple_spread", "local_ration", "did you mean 'local_ratio'?"),
        ("pettingzoo", "mpe2.simple_spread_v3", "local_ration", "did you mean 'local_ratio'?"),
    ],
)
def test_a_wrong_option_of_a_team_is_named_with_its_key(
    good: Path, type_name: str, env_id: str, option: str, words: str
) -> None:
    settings = [f"environment.type={type_name}", f"environment.id={env_id}", "agent.type=mappo"]
    load_config(str(good), settings)
    line = only_problem(good, [*settings, f"environment.options={{ {option} = -1.0 }}"])
    assert line.startswith(f"--set: environment.options.{option}: ")
    assert words in line


def test_a_missing_emulator_is_answered_with_the_pip_command(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    settings = ["environment.type=atari", "environment.id=Pong"]
    load_config(str(good), settings)
    line = only_problem(good, [*settings, 'environment.options={ backend = "envpool" }'])
    assert line.startswith("--set: environment.options: Atari's backend 'envpool'")
    assert line.endswith("pip install 'tianji[envpool]'")


def test_an_example_of_an_id_is_one_of_the_environments_type(tmp_path: Path, good: Path) -> None:
    text = GOOD.replace('id = "CartPole-v1"', "").replace('type = "gym"', 'type = "atari"')
    line = only_problem(write(tmp_path / "less.toml", text))
    assert line.startswith("less.toml: environment.id: missing")
    assert line.endswith('for example id = "Pong"')


def test_an_empty_config_is_told_all_that_it_needs(tmp_path: Path, good: Path) -> None:
    keys = [line.split(": ")[1] for line in problems(write(tmp_path / "empty.toml", ""))]
    assert keys == ["experiment.stop", "environment.type", "agent.type"]


def test_a_syntax_error_has_its_line_and_column(tmp_path: Path, good: Path) -> None:
    broken = write(tmp_path / "broken.toml", "[experiment]\nseed = = 3\n")
    assert only_problem(broken).startswith("broken.toml:2:8: seed: not TOML: ")
    write(broken, "[agent]\ntype = ppo\n")
    said = 'broken.toml:2:8: type: not TOML: Invalid value; text stands in quotes: type = "ppo"'
    assert only_problem(broken) == said
    write(broken, "[agent\n")
    assert only_problem(broken).startswith("broken.toml:1:7: not TOML: ")


def test_a_byte_order_mark_and_a_pipe_are_read(tmp_path: Path, good: Path) -> None:
    (tmp_path / "windows.toml").write_bytes(b"\xef\xbb\xbf" + good.read_bytes())
    wanted = load_config(str(good), ["experiment.name='x'"])
    assert load_config("windows.toml", ["experiment.name='x'"]) == wanted
    reads, writes = os.pipe()
    os.write(writes, good.read_bytes())
    os.close(writes)
    found = load_config(f"/dev/fd/{reads}", ["experiment.name='x'"])
    os.close(reads)
    assert found.environment == wanted.environment


def test_a_base_that_extends_its_child_is_refused(tmp_path: Path, good: Path) -> None:
    write(tmp_path / "a.toml", 'extends = "b.toml"')
    write(tmp_path / "b.toml", 'extends = "a.toml"')
    assert "a.toml -> b.toml -> a.toml" in only_problem("a.toml")


def test_a_config_that_is_not_there_is_answered_with_its_neighbour(good: Path) -> None:
    assert only_problem("god.toml") == "god.toml: no such file; did you mean 'good.toml'?"


@pytest.mark.parametrize("name", ["configs/ppo_cartpole.toml", "ppo_cartpole.toml", "ppo_cartpole"])
def test_a_shipped_config_is_found_from_any_directory(good: Path, name: str) -> None:
    assert load_config(name).environment.id == "CartPole-v1"


def test_a_config_may_extend_a_shipped_one(tmp_path: Path, good: Path) -> None:
    mine = write(tmp_path / "mine.toml", 'extends = "configs/ppo_cartpole.toml"\n[experiment]\nseed = 7')
    config = load_config(str(mine))
    assert (config.experiment.seed, config.environment.id) == (7, "CartPole-v1")


def test_another_type_of_model_leaves_the_settings_of_the_former_behind(tmp_path: Path, good: Path) -> None:
    write(tmp_path / "base.toml", GOOD + '[model]\ntype = "of_the_base"\nwidth = 3\n')
    child = write(tmp_path / "child.toml", 'extends = "base.toml"\n[model]\ntype = "mlp_actor_critic"\n')
    assert load_config(str(child)).model.type == "mlp_actor_critic"


DERIVED = """
from pydantic import BaseModel
from tianji_algos.ppo.ppo import PPOEmbryo
from tianji_algos.ppo.settings import PPOSettings
class Same(PPOEmbryo): ...
class MoreSettings(PPOSettings):
    extra: float = 0.5
class More(Same):
    settings_type = MoreSettings
class LessSettings(BaseModel):
    rollout_steps: int = 64
class Less(PPOEmbryo):
    settings_type = LessSettings
"""
PARENT = GOOD + "[training]\nrollout_steps = 8192\ngamma = 0.8\n[distribution.actor]\nsend_size = 256\n"


def test_a_type_that_derives_from_the_former_one_keeps_the_keys_that_it_has(
    tmp_path: Path, good: Path
) -> None:
    write(tmp_path / "derived_rules.py", DERIVED)
    write(tmp_path / "base.toml", PARENT)
    write(
        tmp_path / "mid.toml", 'extends = "base.toml"\n[training]\ntype = "derived_rules:Same"\nepochs = 3\n'
    )
    child = write(tmp_path / "child.toml", 'extends = "mid.toml"\n[training]\ntype = "derived_rules:More"\n')
    config = load_config(str(child), ["training.gamma=0.7"])
    kept = config.training.settings.model_dump()
    assert [kept[key] for key in ("rollout_steps", "epochs", "gamma", "extra")] == [8192, 3, 0.7, 0.5]
    assert config.notes == ()
    tree = read(str(child))
    resolve(tree)
    assert [tree.origin(("training", key)) for key in ("gamma", "epochs")] == ["base.toml", "mid.toml"]


def test_keys_that_a_derived_type_lacks_are_named(tmp_path: Path, good: Path) -> None:
    write(tmp_path / "derived_rules.py", DERIVED)
    write(tmp_path / "base.toml", PARENT)
    child = write(tmp_path / "child.toml", 'extends = "base.toml"\n[training]\ntype = "derived_rules:Less"\n')
    config = load_config(str(child))
    assert config.training.settings.model_dump() == {"rollout_steps": 8192}
    note = "base.toml: training.gamma: is not inherited: 'derived_rules:Less' has no such key"
    assert config.notes == (note,)
    with pytest.raises(ConfigError, match=r"unknown key.*\n" + re.escape(note)):
        load_config(str(child), ["training.zzz=1"])


def test_a_key_where_a_section_should_be_is_refused(tmp_path: Path, good: Path) -> None:
    bad = write(tmp_path / "bad.toml", "training = 3\n" + GOOD)
    assert "write [training]" in only_problem(bad)


def test_a_set_that_is_no_assignment_is_refused(good: Path) -> None:
    assert "is not SECTION.KEY=VALUE" in only_problem(good, ["gamma"])


def test_an_unreadable_engine_is_a_config_error(
    good: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(tmp_path / "tianji_test_engine.py", "import nothing_of_this_name\nclass Engine: ...\n")
    line = only_problem(good, ["distribution.transport=tianji_test_engine:Engine"])
    assert line.startswith("--set: distribution.transport: ")
    assert "pip install 'nothing_of_this_name'" in line


def test_the_working_directory_stays_as_it_was(good: Path) -> None:
    before = os.getcwd()
    load_config(str(good))
    assert os.getcwd() == before


# -- what a config leaves to the machine ------------------------------------------------------------------

ROLLOUT = ("training.rollout_steps=8192", "distribution.actor.send_size=32", "environment.num_envs=32")
"""Settings with a rollout of eight fragments."""


@pytest.mark.parametrize(
    ("cores", "settings", "actors", "pinned"),
    [
        (1, (), 1, False),
        (2, (), 2, False),
        (4, (), 4, False),
        (5, (), 4, True),
        (16, (), 8, True),
        (2, ("training.rollout_steps=1024",), 1, True),
        (2, ('distribution.mode="sync"',), 1, True),
        (16, ('distribution.mode="sync"',), 1, True),
        (4, ('distribution.transport="inproc"',), 1, True),
        (6, ("distribution.learner.num=2", "distribution.learner.cores=2"), 2, True),
        (4, ("distribution.groups=2",), 2, False),
        (4, ("distribution.actor.cores=2",), 2, False),
        (2, ("distribution.actor.num=1",), 1, True),
        (2, ("distribution.actor.num=8",), 8, False),
        (2, ("distribution.pin_cores=true",), 2, True),
        (16, ("distribution.pin_cores=false",), 8, False),
    ],
)
def test_actors_share_few_cores_and_are_no_more_than_a_rollout_has_fragments(
    good: Path,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    settings: Sequence[str],
    actors: int,
    pinned: bool,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    distribution = load_config(str(good), [*ROLLOUT, *settings]).distribution
    assert (distribution.actor.num.max, distribution.pin_cores) == (actors, pinned)


def test_a_replay_has_one_actor_unless_a_config_says_otherwise(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    distribution = load_config(str(good), ["agent.type=dqn"]).distribution
    assert (distribution.actor.num.max, distribution.pin_cores) == (1, True)


def test_a_resolved_config_has_the_numbers_of_the_machine_on_which_it_was_resolved(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(2)))
    here = load_config(str(good), ROLLOUT)
    resolved = write(tmp_path / "resolved.toml", dump_config(here))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert load_config(str(resolved)) == here
    assert load_config(str(good), ROLLOUT) != here


RULE = """
from tianji_algos.ppo.ppo import PPOEmbryo
from tianji_algos.ppo.settings import PPOSettings

class Rule(PPOEmbryo):
    settings_type = PPOSettings
"""


@pytest.mark.parametrize(("rule", "later"), [("ppo", True), ("rules_of_before:Rule", True), ("dqn", False)])
def test_a_run_has_the_values_of_before_for_keys_that_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, later: bool
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    write(tmp_path / "rules_of_before.py", RULE)
    agent = "dqn" if rule == "dqn" else "ppo"
    text = GOOD.replace("[experiment]", f'[experiment]\nextensions = ["{tmp_path}"]').replace("ppo", agent)
    (tmp_path / "run").mkdir()  # Modules that came with a run are refused.
    path = write(tmp_path / "run/config.toml", f'{text}\n[training]\ntype = "{rule}"\n')
    today, then = load_config(str(path)), load_run_config(str(path))
    names = ("normalize_observations", "normalize_rewards")
    found = [[getattr(job.training.settings, name, None) for name in names] for job in (today, then)]
    assert found == ([["auto", "auto"], [False, False]] if later else [[False, None], [False, None]])
    scaled = [getattr(job.agent.settings, "scale_actions", None) for job in (today, then)]
    assert scaled == ([None, None] if agent == "dqn" else [True, False])
    path.write_text(path.read_text() + "normalize_observations = true\n")
    assert load_run_config(str(path)).training.settings.normalize_observations is True
