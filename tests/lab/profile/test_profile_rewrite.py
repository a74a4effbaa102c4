"""Claims about a config that is written anew: what changes, what stays, and that it runs as it is."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.profile.made_up_measurements import leaves

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.config.source import read, shipped_configs
from tianji_cli.errors import UsageError
from tianji_lab.profile.rewrite import rewritten, write
from tianji_lab.profile.split import ACTORS, PINNED, Split, split_of

DQN = "configs/dqn_cartpole.toml"
PPO = "configs/ppo_cartpole.toml"
WANTED = Split(learners=1, learner_cores=2, actors=2, num_envs=4, pinned=False).settings

OWN = """\
# Mine.
[experiment]                       # first
name = "mine"
stop = { env_steps = 20_000 }

[environment]
type = "gym"
id = "CartPole-v1"
num_envs = 8                       # a few

# Nothing to see here.
[agent]
type = "ppo"

[training]
rollout_steps = 512
minibatch_size = 128

[distribution]
actor = { num = 1, send_size = 16 }   # in one line
"""


def differing(before: Path, after: Path) -> dict[str, Any]:
    """Values that differ or are new; no key may be missing."""
    old, new = (leaves(tomllib.loads(path.read_text())) for path in (before, after))
    assert old.keys() <= new.keys()
    return {key: value for key, value in new.items() if key not in old or old[key] != value}


def same(one: JobConfig, other: JobConfig) -> bool:
    return one.model_dump() == other.model_dump()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own" / "mine.toml"
    path.parent.mkdir()
    path.write_text(OWN)
    return path


def extended(own: Path, text: str) -> Path:
    path = own.parent / "extended.toml"
    path.write_text(text)
    return path


# One that imports a module for its id says in another directory where it was, too: a test of its own.
# A population's groups are its members, which no split changes.
PLAIN = [
    name
    for name in shipped_configs()
    if ":" not in str((job := load_config(name)).environment.id) and job.population is None
]


@pytest.mark.parametrize("config", PLAIN)
def test_only_the_split_changes_and_comments_and_order_stay(config: str, tmp_path: Path) -> None:
    before, to = shipped_configs()[config], tmp_path / "new.toml"
    write(config, (), WANTED, to)
    found = differing(before, to)
    wanted = dict(setting.split("=") for setting in WANTED)
    own = split_of(load_config(config)).values
    said = read(config).origins
    unsaid = {key for key in (ACTORS, PINNED) if tuple(key.split(".")) not in said}
    assert found.keys() == unsaid | {key for key, value in wanted.items() if value != own[key]}
    there = before.read_text().splitlines()
    changed = [line for line in to.read_text().splitlines() if line not in there]
    written = [line for line in changed if line and not line.startswith("[")]
    lines = {f"{key.rpartition('.')[2]} = {wanted[key]}" for key in found}
    assert {line.partition("#")[0].strip() for line in written} == lines.difference(there)
    kept = [line for line in before.read_text().splitlines() if "#" in line]
    assert [line.partition("#")[2] for line in to.read_text().splitlines() if "#" in line] == [
        line.partition("#")[2] for line in kept
    ]
    assert same(load_config(str(to)), load_config(config, WANTED)), "it runs as the config with the split"
    write(config, (), split_of(load_config(config)).settings, to)
    assert to.read_bytes() == before.read_bytes(), "a config that has the split is written as it is"


def test_inference_apart_is_a_table_of_its_own(tmp_path: Path) -> None:
    write(PPO, (), replace(split_of(load_config(PPO)), inference=1).settings, to := tmp_path / "new.toml")
    assert differing(shipped_configs()[PPO], to)["distribution.inference.num"] == 1
    assert "[distribution.inference]\nnum = 1\n" in to.read_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "actor = { num = 2, send_size = 16 }   # in one line\n"),
        ("actor.num = 1\nactor.send_size = 16", "actor.num = 2\nactor.send_size = 16"),
    ],
)
def test_tables_of_one_line_stay_so_and_dotted_keys_are_replaced_where_they_are(
    own: Path, before: str, after: str
) -> None:
    if before:
        own.write_text(OWN.replace("actor = { num = 1, send_size = 16 }", before))
    write(str(own), (), WANTED, to := own.parent / "new.toml")
    assert after in to.read_text()
    assert "num_envs = 4                       # a few\n" in to.read_text()
    assert same(load_config(str(to)), load_config(str(own), WANTED))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["training.gamma=0.9"], {"training.gamma": 0.9}),
        (["training.rollout_steps=512"], {}),
        (["environment.num_envs=16"], {}),
        (["environment.options.render_mode=ansi"], {"environment.options.render_mode": "ansi"}),
        (["experiment.stop={ wall_s = 3 }"], {"experiment.stop.wall_s": 3}),
        (["distribution.transport={ local = 'shm', remote = 'zmq' }"], None),
    ],
)
def test_what_the_user_has_set_is_in_it(
    own: Path, overrides: Sequence[str], said: Mapping[str, Any] | None
) -> None:
    write(str(own), overrides, WANTED, to := own.parent / "new.toml")
    assert same(load_config(str(to)), load_config(str(own), [*overrides, *WANTED]))
    if said is not None:
        new = leaves(tomllib.loads(to.read_text()))
        old = leaves(tomllib.loads(OWN)) | {
            "distribution.learner.cores": 2,
            "distribution.actor.num": 2,
            "distribution.pin_cores": False,
            "environment.num_envs": 4,
        }
        assert {key: value for key, value in new.items() if old.get(key) != value} == said


def test_what_a_base_says_is_not_said_again(own: Path) -> None:
    config = extended(own, 'extends = "mine.toml"\n')
    like_the_base = Split(1, learner_cores=2, actors=1, num_envs=8, pinned=False).settings
    write(str(config), ["training.rollout_steps=512"], like_the_base, to := own.parent / "new.toml")
    assert differing(config, to) == {"distribution.learner.cores": 2, "distribution.pin_cores": False}
    assert same(load_config(str(to)), load_config(str(config), [*like_the_base, "experiment.name=mine"]))


def test_what_a_config_leaves_to_the_machine_is_said_with_anything_that_changes(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.write_text(OWN.replace("actor = { num = 1, send_size = 16 }", "actor = { send_size = 16 }"))
    usual = split_of(load_config(str(own)))
    wanted = replace(usual, num_envs=4).settings
    write(str(own), (), wanted, to := own.parent / "new.toml")
    meant = load_config(str(own), wanted)
    assert {"distribution.actor.num", "distribution.pin_cores"} <= differing(own, to).keys()
    for cores in (1, 4, 40):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert same(load_config(str(to)), meant)
    write(str(own), (), split_of(load_config(str(own))).settings, to)
    assert differing(own, to) == {}


def test_an_inherited_table_that_is_no_section_is_written_as_a_whole(own: Path) -> None:
    own.write_text(OWN.replace("num_envs = 8", "options = { render_mode = 'ansi' }\nnum_envs = 8"))
    config = extended(own, 'extends = "mine.toml"\n')
    override = ["environment.options.sutton_barto_reward=true"]
    write(str(config), override, WANTED, to := own.parent / "new.toml")
    assert load_config(str(to)).environment.options == {
        "render_mode": "ansi",
        "sutton_barto_reward": True,
    }


@pytest.mark.parametrize("is_another_there", [False, True])
def test_a_base_is_found_from_another_directory_whatever_lies_there(
    own: Path, tmp_path: Path, is_another_there: bool
) -> None:
    config = extended(own, 'extends = "mine.toml"  # its base\n')
    (elsewhere := tmp_path / "a" / "b").mkdir(parents=True)
    if is_another_there:
        (elsewhere / "mine.toml").write_text(OWN.replace("512", "1024"))
    write(str(config), (), WANTED, to := elsewhere / "new.toml")
    assert to.read_text().startswith('extends = "../../own/mine.toml"  # its base\n')
    assert same(load_config(str(to)), load_config(str(config), WANTED))


def test_a_base_is_found_from_where_a_link_to_the_config_leads(own: Path, tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "linked.toml").write_text('extends = "mine.toml"\n')
    (link := own.parent / "link.toml").symlink_to(elsewhere / "linked.toml")
    write(str(link), (), WANTED, to := elsewhere / "new.toml")
    assert same(load_config(str(to)), load_config(str(link), WANTED))
    # A shipped base is named as before.
    write("dqn_cartpole_apex", (), WANTED, to)
    assert tomllib.loads(to.read_text())["extends"] == "dqn_cartpole.toml"


@pytest.mark.parametrize("extensions", ["", "extensions = ['.']"])
def test_modules_and_data_files_of_the_user_are_found_from_another_directory(
    own: Path, tmp_path: Path, extensions: str
) -> None:
    module = "import gymnasium\n\n\nclass Thing(gymnasium.Env):\n    pass\n"
    (own.parent / "beside_the_config.py").write_text(module)
    (own.parent / "table.csv").write_text("1\n")
    (own.parent / "linked.csv").symlink_to(own.parent / "table.csv")
    said = f'files = ["table.csv", "linked.csv"]\n{extensions}\n\n[environment]'
    text = OWN.replace("[environment]", said).replace('id = "CartPole-v1"\n', "")
    own.write_text(text.replace('type = "gym"', 'type = "beside_the_config:Thing"'))
    (elsewhere := tmp_path / "elsewhere").mkdir()
    before = load_config(str(own), WANTED)
    write(str(own), (), WANTED, to := elsewhere / "new.toml")
    experiment = tomllib.loads(to.read_text())["experiment"]
    assert experiment["extensions"] == ["../own"]
    assert experiment["files"] == ["../own/table.csv", "../own/linked.csv"]
    assert same(load_config(str(to)), before)


def test_neither_the_config_nor_its_base_is_overwritten(own: Path) -> None:
    config = extended(own, 'extends = "mine.toml"\n')
    (link := own.parent / "link.toml").symlink_to(config)
    for place, why in ((config, "the config itself"), (link, "the config itself"), (own, "extends it")):
        before = place.read_bytes()
        with pytest.raises(UsageError, match=why):
            rewritten(str(config), (), (), place)
        with pytest.raises(UsageError, match=why):
            write(str(config), (), WANTED, place)
        assert place.read_bytes() == before


def test_another_file_is_replaced_and_a_place_that_is_none_refused(own: Path, tmp_path: Path) -> None:
    (to := own.parent / "old.toml").write_text("of yesterday")
    write(str(own), (), WANTED, to)
    assert load_config(str(to)).environment.num_envs == 4
    with pytest.raises(UsageError, match="is a directory"):
        rewritten(str(own), (), (), tmp_path)
    with pytest.raises(UsageError, match=r"there is no directory .*nowhere"):
        rewritten(str(own), (), (), tmp_path / "nowhere" / "new.toml")


def test_a_disk_that_is_full_leaves_nothing_behind(own: Path, small_disk: Path) -> None:
    with (small_disk / "filled").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1024))
    with pytest.raises(UsageError, match="cannot be written: No space"):
        write(str(own), (), WANTED, small_disk / "new.toml")
    assert [path.name for path in small_disk.iterdir()] == ["filled"]


def test_a_section_that_is_replaced_as_a_whole_over_a_base_is_refused(own: Path) -> None:
    config = extended(own, 'extends = "mine.toml"\n')
    to = own.parent / "new.toml"
    with pytest.raises(UsageError, match=r"another distribution\.actor cannot be written"):
        write(str(config), ["distribution.actor={ num = 2 }"], (), to)
    assert not to.exists()
