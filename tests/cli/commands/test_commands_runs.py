"""`tianji list runs`, `show`, `logs` and `rm`, over directories as runs leave them, whole and damaged."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli.telemetry.conftest import build_snapshot, build_summary

import tianji
from tianji_cli.commands import runs as of_runs
from tianji_cli.commands.list import list_things
from tianji_cli.commands.runs import logs, rm, show, stop
from tianji_cli.commands.watch import watch
from tianji_cli.errors import TianjiError, UsageError
from tianji_cli.files import regular
from tianji_cli.files.campaigns import SeedsDirectory
from tianji_cli.files.directories import directory_lock
from tianji_cli.files.rundir import RunDirectory, RunDirectoryError
from tianji_cli.plan.plan import this_host
from tianji_cli.telemetry.display import Display
from tianji_cli.telemetry.machine import note_session
from tianji_cli.telemetry.metrics import writer_here
from tianji_cli.telemetry.run_state import last_row, read_state
from tianji_cli.telemetry.snapshot import RoleStatus
from tianji_cli.telemetry.telemetry import Telemetry

CONFIG = """
[experiment]
name = "ppo_cartpole"
seed = 3
stop = { env_steps = 1_000_000 }

[environment]
type = "gym"
id = "CartPole-v1"
num_envs = 8
"""


def make_run(out: Path, *seconds: int, ends: bool = True, host: str | None = None) -> RunDirectory:
    run = RunDirectory.create("ppo_cartpole", out)
    run.write_config(CONFIG)
    telemetry = Telemetry(run, Display(), None)
    roles = (RoleStatus(0, "root", None, host or this_host().name, None, None),)
    for second in seconds:
        telemetry.update(build_snapshot(second, roles=roles))
    if ends:
        telemetry.close(build_summary(updates=350 * seconds[-1], session=1), plots=False)
    else:
        telemetry._metrics.close()  # As the kernel does for a process that is killed.
    return run


def listed(out: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert list_things("runs", out=out, json_to="-") == 0
    runs: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["runs"]
    return runs


def test_runs_of_several_seeds_and_of_a_sweep_s_trials_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["ppo_cartpole/1", "ppo_cartpole/seeds-1/3", "ppo_cartpole/sweep-1/trials/0/1"]
    for place in places:
        run = make_run(tmp_path, 1)
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        run.path.rename(tmp_path / place)
    assert sorted(row["run"] for row in listed(tmp_path, capsys)) == [
        f"{tmp_path}/{place}" for place in places
    ]


def test_what_a_reader_did_not_wait_for_is_no_error_of_a_module(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1)
    reader, writer = os.pipe()
    os.close(reader)
    command = (sys.executable, "-m", "tianji_cli", "show", run.path)
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_runs_are_listed_newest_first_and_damaged_ones_among_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished, killed, no_summary, no_config, waiting = (
        make_run(tmp_path, 1, 2),
        make_run(tmp_path, 1, ends=False),
        make_run(tmp_path, 1),
        make_run(tmp_path, 1),
        RunDirectory.create("ppo_cartpole", tmp_path),
    )
    no_summary.summary.write_text("{")
    no_config.config.unlink()
    waiting.write_config(CONFIG)
    (tmp_path / "notes.txt").write_text("no run")
    (tmp_path / "ppo_cartpole/notes").mkdir()
    found = {entry["run"]: entry for entry in listed(tmp_path, capsys)}
    said = {Path(run).name: (entry["status"], entry["env_steps"]) for run, entry in found.items()}
    steps = build_summary().learner.env_steps
    assert said == {
        "1": ("finished", steps),
        "2": ("killed", 45_200),
        "3": ("damaged", None),
        "4": ("damaged", None),
        "5": ("waiting", None),
    }
    assert "summary.json is no JSON" in found[str(no_summary.path)]["reason"]
    assert found[str(killed.path)]["best_mean_100"] == 30.0
    assert list(found).index(str(finished.path)) > list(found).index(str(killed.path))
    assert found[str(finished.path)]["bytes"] > 1000

    assert list_things("runs", out=tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "status", "env", "steps", "best", "return", "begun", "size", "why"]
    assert len(lines) == 6


def with_digits(run: RunDirectory) -> None:
    document = json.loads(run.summary.read_text())
    document["returns"]["best_mean_100"] = int("9" * 400)
    run.summary.write_text(json.dumps(document))


def with_a_deep_row(run: RunDirectory) -> None:
    run.summary.unlink()
    with run.metrics.open("a") as file:
        file.write(f'{{"a": {"[" * 100_000}{"]" * 100_000}}}\n')


def with_a_row_of_digits(run: RunDirectory) -> None:
    run.summary.unlink()
    row = json.loads(run.metrics.read_text().splitlines()[-1])
    with run.metrics.open("a") as file:
        file.write(json.dumps(row | {"env_steps": int("9" * 400)}) + "\n")


def with_a_long_row(run: RunDirectory) -> None:
    os.truncate(run.metrics, 6 << 30)


def with_deep_directories(run: RunDirectory) -> None:
    here = os.open(run.path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def with_no_number(run: RunDirectory) -> None:
    run.summary.write_text(run.summary.read_text().replace('"env_steps": ', '"env_steps": NaN, "was": ', 1))


def with_a_large_config(run: RunDirectory) -> None:
    os.truncate(run.config, 3 << 30)


def with_a_fifo(run: RunDirectory) -> None:
    run.summary.unlink()
    os.mkfifo(run.summary)


def with_a_link(run: RunDirectory) -> None:
    run.metrics.unlink()
    run.metrics.symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (with_digits, "summary.json is no JSON that a run writes: it has a whole number of 1329 bits"),
        (with_a_deep_row, "killed"),
        (with_a_row_of_digits, "killed"),
        (with_a_long_row, "finished"),
        (with_deep_directories, "finished"),
        (with_no_number, "summary.json is no JSON that a run writes"),
        (with_a_large_config, "config.toml: it has more than 1048576 bytes"),
        (with_a_fifo, "it is no regular file"),
        (with_a_link, "it is a link, and must not be"),
    ],
)
def test_a_damaged_run_is_a_line_of_the_table_and_hides_no_other(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    damage: Callable[[RunDirectory], None],
    why: str,
) -> None:
    good, damaged = make_run(tmp_path, 1), make_run(tmp_path, 1)
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", damaged.path / "d"], check=True))
    damage(damaged)
    assert list_things("runs", out=tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    (line,) = (line for line in lines if str(damaged.path) in line)
    assert why in {"killed", "finished"} or " damaged " in line
    assert why in line
    assert any(str(good.path) in line and " finished " in line for line in lines)
    assert show(str(damaged.path)) == stop(str(damaged.path)) == 0
    said = capsys.readouterr().out
    assert said.count(why) >= 2
    read = tianji.Run(damaged.path)
    for of_run in ("config", "summary", "metrics"):
        with suppress(TianjiError):
            getattr(read, of_run)


def leaves(table: dict[str, Any], *above: str) -> Iterator[tuple[str, ...]]:
    for key, value in table.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from leaves(value, *above, key)


@pytest.mark.parametrize("value", ["[]", "{}", "null", "-1", '"text"', "1e999"])
def test_no_value_in_a_summary_keeps_a_run_from_being_listed_or_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    run = make_run(tmp_path, 1)
    whole = json.loads(run.summary.read_text())
    for *above, last in leaves(whole):
        document = json.loads(json.dumps(whole))
        table = document
        for key in above:
            table = table[key]
        table[last] = "HERE"
        run.summary.write_text(json.dumps(document).replace('"HERE"', value))
        (row,) = listed(tmp_path, capsys)
        assert row["status"] in {"finished", "stopped", "damaged", "killed"}
        assert (row["status"] == "damaged") == ("summary.json" in row["reason"])
        if value == "1e999":
            assert row["status"] == "damaged"
        assert show(str(run.path)) == show(str(run.path), json_to="-") == stop(str(run.path)) == 0
        capsys.readouterr()


def test_no_name_of_a_directory_is_obeyed_by_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "\x1b[31mred\x07", 1)
    assert stop(str(run.path)) == 0
    assert watch(str(run.path)) == 0
    said = capsys.readouterr()
    assert "red" in said.out
    assert not {"\x1b", "\x07"} & set(said.out + said.err)


def test_a_directory_without_runs_is_said_to_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list_things("runs", out=tmp_path / "nowhere") == 0
    assert "there are no runs in" in capsys.readouterr().out
    with pytest.raises(UsageError, match="--out says where runs are"):
        list_things("agents", out=tmp_path)


def test_of_many_rows_only_the_last_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, 1, 2)
    with run.metrics.open("r+b") as file:
        whole = file.read()
        file.seek(0)
        file.write(whole.splitlines(keepends=True)[0] * 3000 + whole)
        file.write(b'{"kind": "evaluation", "env_steps": 5}\n')  # A row of another kind.
        file.write(b'{"elapsed_s": 9')  # Which is being written.
    row = last_row(run.metrics)
    assert row is not None
    assert row.updates == 700
    assert read_state(run).status == "finished"
    read = []
    monkeypatch.setattr(
        "tianji_cli.telemetry.run_state.parsed", lambda line: read.append(line) or row if read else None
    )
    last_row(run.metrics)
    assert len(read) < 5


def test_a_run_of_another_host_runs_as_long_as_it_writes_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, ends=False, host="elsewhere")
    assert read_state(run).status == "running"
    long_ago = time.time() - 100
    os.utime(run.metrics, (long_ago, long_ago))
    assert read_state(run).status == "killed"
    over = make_run(tmp_path, 1, host="elsewhere")
    assert read_state(over).status == "finished"


def test_a_resumed_run_that_was_killed_is_not_what_the_session_before_came_to(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, 2)
    resumed = Telemetry(run, Display(), 2)
    resumed.begin()
    resumed.update(build_snapshot(3))
    assert read_state(run).status == "running"
    resumed._metrics.close()
    state = read_state(run)
    assert (state.status, state.env_steps) == ("killed", 3 * 45_200)


def test_a_session_that_was_killed_before_its_first_update_is_not_what_the_session_before_came_to(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, 2)
    note_session(run, 0, number=1)
    assert read_state(run).status == "finished"
    note_session(run, 2, number=2)
    resumed = Telemetry(run, Display(), 2)
    resumed.begin()
    resumed.update(build_snapshot(2))
    resumed._metrics.close()
    assert read_state(run).status == "killed"
    (run.path / "sessions.jsonl").unlink()
    assert read_state(run).status == "finished", "of an earlier version's run that is not known"


def test_the_writer_of_a_file_is_found_and_a_reader_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.touch()
    with path.open():
        assert writer_here(path) is None
    code = "import sys; file = open(sys.argv[1], 'a'); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        assert writer_here(path) == writer.pid
        writer.communicate()
    assert writer_here(path) is None


def test_a_run_is_shown_with_its_config_its_result_and_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, 1, 2)
    assert show("ppo_cartpole", out=tmp_path) == 0
    out = capsys.readouterr().out
    assert out.startswith("ppo_cartpole finished: ")
    assert "environment  gym CartPole-v1, 8 in each actor\n" in out
    assert "stops at     env_steps 1000000; seed 3\n" in out
    assert "checkpoints  none yet\n" in out
    assert f"logs         {run.path}/logs\n" in out
    assert show("ppo_cartpole", out=tmp_path, json_to="-") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["config"]["environment"]["num_envs"] == 8
    assert document["summary"]["status"] == document["status"] == "finished"
    run.summary.write_text('{"status": "finished", "updates": 700}')
    assert show("ppo_cartpole", out=tmp_path) == 0
    assert "summary.json is no summary of a run: reason: Field required" in capsys.readouterr().out


def test_a_log_that_was_cut_is_gone_on_with_where_it_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "actor-2.log"
    for module in (regular, of_runs):
        monkeypatch.setattr(module, "LOG_BYTES", 1000)
    log.write_text("".join(f"{number:09}\n" for number in range(201)))
    followed = of_runs._Log(log)
    assert list(followed.lines(rest=False)) == [f"{number:09}" for number in range(201)]
    regular.bound_log(log)
    with log.open("a") as file:
        file.write("newer\n")
    assert list(followed.lines(rest=False)) == ["newer"]
    log.write_text("anew\n")
    assert list(followed.lines(rest=False)) == ["anew"]


def test_logs_are_prefixed_if_there_are_several_and_obey_no_escape_sequence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, 1)
    run.log("root", 0).write_text("begun\n")
    run.log("buffer-learner", 1).write_bytes(b"one\n\x1b[2Jtwo\xff")
    run.log("actor", 2).write_text("")
    assert logs("ppo_cartpole", out=tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "root-0           | begun",
        "buffer-learner-1 | one",
        "buffer-learner-1 | \ufffd[2Jtwo\ufffd",
    ]
    assert logs("ppo_cartpole", "learner-1", out=tmp_path) == 0
    assert capsys.readouterr().out.splitlines()[0] == "one"
    with pytest.raises(UsageError, match="no log of 'actor-3'; there are root-0, buffer-learner-1, actor-2"):
        logs("ppo_cartpole", "actor-3", out=tmp_path)


def test_a_reader_of_logs_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1)
    run.log("root", 0).write_text("a line\n" * 100_000)
    command = [sys.executable, "-m", "tianji_cli", "logs", str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 130


def test_what_a_link_in_a_run_leads_to_stays(tmp_path: Path) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    kept.mkdir()
    (kept / "data").write_text("precious")
    run, other = make_run(out, 1), make_run(out, 1)
    (run.path / "link").symlink_to(kept)
    (run.path / "checkpoints/link").symlink_to(kept)
    linked = out / "ppo_cartpole/7"
    linked.symlink_to(other.path)
    with pytest.raises(UsageError, match="7 is a link"):
        rm([str(run.path), str(linked)], yes=True)
    assert run.path.is_dir()
    assert rm([str(run.path)], yes=True) == 0
    assert (kept / "data").read_text() == "precious"
    assert not run.path.exists()
    assert other.path.is_dir()


def test_on_a_terminal_rm_asks_first(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1)
    for answer, status in ((b"n", 2), (b"y", 0)):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "tianji_cli", "rm", str(run.path)]
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.write(ours, answer + b"\n")
            assert process.wait(60) == status
        os.close(theirs)
        said = os.read(ours, 1 << 16).decode()
        os.close(ours)
        assert "remove it? [y/N]" in said
        assert run.path.exists() == (answer == b"n")


def test_what_is_no_run_or_in_use_is_not_removed(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1)
    (tmp_path / "letters").mkdir()
    with pytest.raises(UsageError, match="no run"):
        rm([str(tmp_path / "letters")], yes=True)
    with directory_lock(run.checkpoints), pytest.raises(UsageError, match="is running"):
        rm([str(run.path)], yes=True)
    assert run.path.is_dir()
    assert (tmp_path / "letters").is_dir()


def test_configs_are_listed_with_what_they_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_things("configs", json_to="-") == 0
    configs = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["configs"]}
    groups = configs["ppo_cartpole_groups"]
    assert (groups["agent"], groups["environment"]) == ("ppo", "CartPole-v1")
    assert groups["description"] == "Two groups on two cores"


def test_a_run_is_shown_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "elsewhere", 1)
    monkeypatch.chdir(tmp_path)
    assert show(str(run.path), json_to="-") == 0
    assert json.loads(capsys.readouterr().out)["name"] == str(run.path)


def test_the_runs_of_several_seeds_are_removed_by_the_name_of_their_directory(tmp_path: Path) -> None:
    seeds = SeedsDirectory.create("ppo_cartpole", [3, 7], CONFIG, tmp_path)
    seeds.runs[3].write_config(CONFIG)
    other = make_run(tmp_path, 1)
    name = f"ppo_cartpole/{seeds.path.name}"
    with directory_lock(seeds.path), pytest.raises(RunDirectoryError, match="another command trains"):
        rm([name], yes=True, out=tmp_path)
    assert len(seeds.runs) == 2
    assert rm([name], yes=True, out=tmp_path) == 0
    assert list((tmp_path / "ppo_cartpole").iterdir()) == [other.path]
