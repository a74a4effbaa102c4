"""A number that is too large is a problem of the config, with its place and its reason, at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tianji_cli.commands.train import train
from tianji_cli.config.loader import load_config
from tianji_cli.errors import LONGEST, ConfigError, UsageError
from tianji_cli.plan.plan import Host, expected_hosts, make_plan

GOOD = 'extends = "configs/impala_cartpole.toml"\n'
ZMQ = 'distribution.transport={ local = "shm", remote = "zmq" }'


def problem(text: str, place: Path, overrides: Sequence[str] = ()) -> str:
    (place / "job.toml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(str(place / "job.toml"), overrides)
    (line,) = str(refused.value).splitlines()
    assert len(line) < LONGEST + 400
    return line.replace(f"{place}/", "")


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("distribution.actor.num", 200_000, "200000 is more than 32,768: each is a process"),
        ("distribution.actor.num", 10**9, "is more than 32,768"),
        ("distribution.learner.num", 10**9, "is more than 1,024: each keeps a connection to every other"),
        ("distribution.groups", 10**9, "is more than 1,024: the root averages"),
        ("distribution.hosts", 10**9, "is more than 4,096: the root is connected to each"),
        ("distribution.actor.cores", 10**9, "is more than 4,096: each is a thread"),
        ("environment.num_envs", 10**9, "is more than 1,000,000: each actor builds all of them"),
        ("experiment.keep_checkpoints", 2**63, "whole numbers have 64 bits here"),
    ],
)
def test_a_huge_count_is_refused_with_its_reason(tmp_path: Path, key: str, value: int, why: str) -> None:
    line = problem(GOOD, tmp_path, [f"{key}={value}"])
    assert line.startswith(f"--set: {key}: ")
    assert why in line


def test_groups_and_actors_that_are_too_many_only_together_are_refused(tmp_path: Path) -> None:
    line = problem(GOOD, tmp_path, ["distribution.groups=20", "distribution.actor.num=2000"])
    assert line == (
        "--set: distribution.groups: 20 x 2001 processes are more than 32,768; "
        "each is a process that the root is connected to"
    )


def test_twenty_thousand_roles_are_refused_at_once(tmp_path: Path) -> None:
    roles = "".join(f'[roles.r{number}]\ntype = "nowhere:Role"\n' for number in range(20_000))
    line = problem(GOOD + roles, tmp_path)
    assert line == "job.toml: roles: 20000 are more than 64: each is a process in every group"


LISTS = "[" * 5000 + "]" * 5000
TABLES = "{a=" * 3000 + "1" + "}" * 3000
HEX = "0x" + "f" * 5000
NINES = "9" * 5000


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"x = 1  # [[[\ny = {LISTS}", "job.toml:2:37: is nested more than 32 deep; make it flatter"),
        (f'x = "[[[\\"["\n\ny = {TABLES}', "job.toml:3:101: is nested more than 32 deep; make it flatter"),
        (
            f"[experiment]\nseed = {NINES}",
            "job.toml:2:8: a number of 5000 digits; whole numbers have 64 bits",
        ),
        (
            f"[experiment]\nseed = {HEX}",
            "job.toml: experiment.seed: a whole number of 20001 bits with its sign",
        ),
        (
            f"[environment.options]\nx = [1, -{2**63 + 1}]",
            "job.toml: environment.options.x[1]: a whole number of 65 bits with its sign; whole",
        ),
        (f"[{'.'.join(['a'] * 500)}]\n", f"job.toml: {'.'.join(['a'] * 33)}: is nested more than 32 deep"),
    ],
)
def test_deep_nesting_and_endless_numbers_are_problems_with_their_place(
    tmp_path: Path, text: str, line: str
) -> None:
    assert problem(text, tmp_path).startswith(line)
    (tmp_path / "base.toml").write_text(text)
    extended = problem('extends = "base.toml"\n', tmp_path)
    assert extended.startswith(line.replace("job.toml", "base.toml"))


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (f"environment.options.x={LISTS}", "--set: environment.options.x: is nested more than 32 deep"),
        (f"experiment.seed={NINES}", "--set: experiment.seed: a number of 5000 digits"),
        (f"experiment.seed={HEX}", "--set: experiment.seed: a whole number of 20001 bits"),
        (f"environment.options.x={HEX}", "--set: environment.options.x: a whole number of 20001 bits"),
        ("experiment." + ".".join(["a"] * 3000) + "=1", "--set: experiment.a.a"),
    ],
)
def test_so_they_are_in_set(tmp_path: Path, value: str, line: str) -> None:
    assert problem(GOOD, tmp_path, [value]).startswith(line)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("agent.type", "z" * 3000),
        ("environment.id", "z" * 3000),
        ("environment.id", "z " * 1500),
        ("environment.id", "z 'y " * 1500),
        ("environment.id", "z \"'y " * 1500),
        ("agent.type", "z 'y " * 1500),
        ("experiment." + "z 'y " * 1500, "1"),
        ("experiment.files", str(["z" * 3000])),
        ("environment.type", "z" * 3000 + ":b"),
        ("distribution.transport", "z" * 3000),
        ("experiment.name", "z" * 3000),
    ],
)
def test_a_long_value_is_cut_in_the_message_and_what_follows_is_not(
    tmp_path: Path, key: str, value: str
) -> None:
    line = problem(GOOD, tmp_path, [f"{key}={value}"])
    assert "..." in line
    assert "z" * (LONGEST + 1) not in line
    assert len(line) < 2 * LONGEST + 150


def test_keys_of_a_section_are_listed_once_and_problems_without_end_are_counted(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('extends = "configs/ppo_cartpole.toml"\n')
    with pytest.raises(ConfigError) as refused:
        load_config(str(tmp_path / "job.toml"), ["agent.type=dqn"])
    assert str(refused.value).count("the keys here are") == 1
    with pytest.raises(ConfigError) as refused:
        load_config(
            "ppo_cartpole", [f"distribution.{of}.{key}=1" for of in ("actor", "buffer") for key in "qx"]
        )
    assert str(refused.value).count("the keys here are") == 2, "once in each table"
    unknown = "".join(f"qqq{number} = 1\n" for number in range(100))
    (tmp_path / "job.toml").write_text(f"{GOOD}[experiment]\n{unknown}")
    with pytest.raises(ConfigError) as refused:
        load_config(str(tmp_path / "job.toml"))
    *_, last = lines = str(refused.value).splitlines()
    assert (len(lines), last) == (21, "and 80 more problems")


def test_a_plan_of_many_processes_is_summed_up_on_the_screen_and_whole_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["distribution.actor.num=20000"]
    to = tmp_path / "plan.json"
    assert train("configs/impala_cartpole.toml", overrides=wanted, dry_run=True, json_to=str(to)) == 0
    shown = capsys.readouterr().out
    assert "20000 times actor" in shown
    assert "2-20001" in shown
    assert len(shown.splitlines()) < 20
    assert len(json.loads(to.read_text())["processes"]) == 20_003


def test_many_actors_are_spread_over_many_hosts_by_their_cores() -> None:
    config = load_config("configs/impala_cartpole.toml", ["distribution.actor.num=20000"])
    hosts = [Host(f"host-{number}", tuple(range(8))) for number in range(1000)]
    plan = make_plan(config, hosts)
    per_host = Counter(process.host for process in plan.carrying("actor"))
    assert sum(per_host.values()) == 20_000
    assert per_host["host-0"] == 18, "it has a core less, the learner's"
    assert {per_host[host.name] for host in hosts[1:]} == {20, 21}


@pytest.mark.parametrize(
    ("hosts", "also", "why"),
    [
        ("{ min = 3, max = 2 }", (), "distribution.hosts.min: min (3) is more than max (2)"),
        ("{ min = 1 }", (), "distribution.hosts.max: missing"),
        ("{ min = 0, max = 2 }", (), "distribution.hosts.min: "),
        ('"many"', (), "distribution.hosts: neither a number nor a table; write 2, or { min = 1, max = 8 }"),
        ("0", (), "distribution.hosts: "),
        ("{ max = 2 }", ("distribution.mode=sync",), "actors in step are waited for"),
        ("{ max = 2 }", ("distribution.groups=2",), "hosts.min = 2 would be right"),
    ],
)
def test_a_range_of_hosts_that_cannot_be_is_refused(
    tmp_path: Path, hosts: str, also: tuple[str, ...], why: str
) -> None:
    assert why in problem(GOOD, tmp_path, [f"distribution.hosts={hosts}", ZMQ, *also])


def test_where_training_begins_each_group_has_an_actor(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(GOOD)
    few = load_config(str(config), ["distribution.hosts={ max = 3 }", ZMQ, "distribution.actor.num=2"])
    hosts = [Host(f"host-{number}", tuple(range(2))) for number in range(3)]
    with pytest.raises(UsageError, match=r"no actor on the first 1 host \(distribution.hosts.min\)"):
        make_plan(few, hosts)
    more = load_config(str(config), ["distribution.hosts={ max = 3 }", ZMQ, "distribution.actor.num=3"])
    assert Counter(process.host for process in make_plan(more, hosts).carrying("actor")) == {
        "host-0": 1,
        "host-1": 1,
        "host-2": 1,
    }


def test_a_dry_run_says_who_may_come_and_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").write_text(GOOD)
    wanted = ["distribution.hosts={ min = 1, max = 3 }", ZMQ, "distribution.actor.num=6"]
    train(str(tmp_path / "config.toml"), overrides=wanted, dry_run=True)
    assert "training begins on this host; 2 more hosts may come and go" in capsys.readouterr().out


def test_no_expected_host_has_the_name_of_one_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(GOOD)
    job = load_config(str(tmp_path / "config.toml"), ["distribution.hosts=4", ZMQ])
    names = [host.name for host in expected_hosts(job, [Host("host-2"), Host("host-5")])]
    assert names == ["host-2", "host-5", "host-3", "host-4"]


def test_a_seat_is_pinned_to_the_cores_of_the_host_that_takes_it(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(GOOD)
    wanted = ("distribution.hosts=2", "distribution.actor.num=6", "distribution.pin_cores=true", ZMQ)
    plan = make_plan(load_config(str(config), wanted), [Host("host-0", (0, 1)), Host("host-1", (0, 1, 2, 3))])

    def pins(cores: tuple[int, ...]) -> list[tuple[int, ...]]:
        seated = plan.pinned_to(Host("host-1", cores))
        assert [process.host for process in seated.processes] == [process.host for process in plan.processes]
        return sorted({process.cores for process in seated.processes if process.host == "host-1"})

    assert plan.pinned_to(Host("host-1", (0, 1, 2, 3))) is plan
    assert pins((4, 5, 6, 7)) == [(4,), (5,), (6,), (7,)]
    assert pins((8, 9)) == [(8,), (9,)]
    assert pins(()) == [()]


def test_a_wrong_item_of_a_list_within_a_list_is_named_by_its_key(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(GOOD)
    path = 'graph.channels.fragments.path=["actor", ["sink", 1], "buffer"]'
    with pytest.raises(ConfigError, match=r"graph\.channels\.fragments\.path.* 1 does not fit"):
        load_config(str(tmp_path / "job.toml"), [path])
