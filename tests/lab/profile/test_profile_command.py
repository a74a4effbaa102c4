"""Claims about `tianji profile`, as a user runs it. Its trainings are made up, except in the last tests."""

from __future__ import annotations

import json
import math
import os
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from cli.quick import PNG
from cli.sessions import kill_session
from cli.warm import WarmCommands
from lab.profile.conftest import Find
from lab.profile.made_up_measurements import DQN, PPO, made_up

from tianji_cli.config.loader import load_config
from tianji_cli.errors import RunFailed
from tianji_cli.files.traces import SPAN, WHAT, TracedProcess
from tianji_cli.main import main
from tianji_cli.runs.timeline.timeline import Lane, Timeline
from tianji_cli.wire.reports import LearnerReport
from tianji_lab.environment import describe
from tianji_lab.profile import run as command
from tianji_lab.profile.candidates import Candidates
from tianji_lab.profile.model import Cluster
from tianji_lab.profile.parts import Measured
from tianji_lab.profile.split import split_of
from tianji_lab.profile.trainer import Trained

ROOT = Path(__file__).parents[3]
KEYS = {
    *("schema", "config", "overrides", "environment", "warnings", "measurements", "cluster", "as_it_is"),
    *("candidates", "race", "recommended", "writable", "equation_4", "bottleneck", "extrapolated", "verify"),
}
SPLIT = {"learners", "learner_cores", "actors", "num_envs", "groups", "inference", "pinned"}


@dataclass(frozen=True)
class Ended:
    """A command that is over."""

    status: int
    out: str
    err: str


Run = Callable[..., Ended]


class MadeUpTrainer:
    """Trainings that take no time, and give more with more environments.

    Attributes:
        trained: settings of all trainings of a test.
        fails_after: trainings, after which one fails.
    """

    trained: ClassVar[list[tuple[str, ...]]] = []
    fails_after: ClassVar[int] = 1000

    def __init__(self, config: str, overrides: Sequence[str]) -> None:
        load_config(config, overrides)  # As often as it likes, from wherever: short trainings do.
        self.config, self.overrides = config, overrides
        assert not config.startswith("/dev")

    def __enter__(self) -> MadeUpTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def train(self, settings: Sequence[str], seconds: float, *, traced: bool = False) -> Trained:
        assert seconds >= 3.0
        if len(self.trained) >= self.fails_after:
            raise RunFailed("a training failed")
        self.trained.append(tuple(settings))
        size = next(int(one.partition("=")[2]) for one in settings if one.startswith("environment.num_envs="))
        return Trained(1e3 * size, 4e3 * size, LearnerReport(), made_up_timeline() if traced else None)


def made_up_timeline() -> Timeline:
    """An actor that steps for a second."""
    process = TracedProcess(rank=1, title="actor", roles=("actor 0",), host="here", cores=(0,))
    spans = np.array([(0.0, 1.0, 0, WHAT.index("step"))], SPAN)
    return Timeline("made up", 1.0, (process,), (Lane("actor 0", process, spans, 1.0),))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Settings of all trainings."""
    monkeypatch.setattr(MadeUpTrainer, "trained", [])
    return MadeUpTrainer.trained


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trained: list[tuple[str, ...]]
) -> Run:
    """Runs `tianji profile` in this process, on a machine of so many cores that is not measured in truth."""
    monkeypatch.setattr(command, "Trainer", MadeUpTrainer)

    def ends(*arguments: str, cores: int = 2) -> Ended:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))

        def measure(trainer: MadeUpTrainer, **_: object) -> Measured:
            measurements = made_up(trainer.config, cores, overrides=trainer.overrides)
            return Measured(measurements, describe([], measurements.busy))

        monkeypatch.setattr(command, "measure_parts", measure)
        with pytest.raises(SystemExit) as ended:
            main(["profile", *arguments])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, said.out, said.err)

    return ends


def numbers(value: object) -> Iterator[float]:
    """All numbers of a JSON document."""
    if isinstance(value, dict):
        for inside in value.values():
            yield from numbers(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from numbers(inside)
    elif isinstance(value, int | float):
        yield value


def never(*_: object, **__: object) -> Measured:
    raise AssertionError("measured")


def flat(text: str) -> str:
    return " ".join(text.split())


# -- what it gives ---------------------------------------------------------------------------------------


def test_without_arguments_the_shipped_ppo_cartpole_is_profiled(run: Run) -> None:
    ended = run("--quiet")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("configs/ppo_cartpole.toml on 2 cores")
    assert "RECOMMENDED\n1 learner with 1 core and 1 actor of 64 environments\n" in ended.out
    # JSON on stdout is all that is printed there.
    assert json.loads(run("--json", "-").out).keys() == KEYS


@pytest.mark.parametrize(
    ("config", "cores", "options"),
    [(PPO, 1, []), (PPO, 2, []), (DQN, 16, []), (DQN, 16, ["--cores", "40", "--nodes", "8"])],
)
def test_the_document_has_every_key_and_finite_numbers(
    run: Run, tmp_path: Path, trained: list[Any], config: str, cores: int, options: list[str]
) -> None:
    ended = run(config, *options, "--json", str(tmp_path / "x.json"), cores=cores)
    assert ended.status == 0, ended.err
    document = json.loads((tmp_path / "x.json").read_text())
    assert document.keys() == KEYS
    assert all(math.isfinite(number) for number in numbers(document))
    assert document["recommended"].keys() == SPLIT
    assert document["bottleneck"].keys() == {"kind", "words"}
    assert document["measurements"]["cores"] == cores
    best = document["candidates"][0]
    rates = [best[name] for name in ("production", "reception", "consumption")]
    assert best["throughput"] <= min(rates) * (1 + 1e-9)
    assert best["env_steps_per_s"] == pytest.approx(best["throughput"] / document["measurements"]["rho"])
    assert document["verify"] == []
    # Other machines are predicted; on this one the best have raced.
    assert {bool(document["extrapolated"]), document["race"] is None, not trained} == {bool(options)}


def test_the_recommended_split_has_won_the_race_whatever_was_predicted(run: Run, tmp_path: Path) -> None:
    ended = run(DQN, "--json", str(tmp_path / "x.json"))
    assert ended.status == 0, ended.err
    document = json.loads((tmp_path / "x.json").read_text())
    rows = document["race"]["rows"]
    assert len(rows) <= 6
    assert document["recommended"]["num_envs"] == 128, "that is the fastest in these trainings"
    assert {key: rows[0][key] for key in SPLIT} == document["recommended"]
    assert [row["measured"] for row in rows] == sorted((row["measured"] for row in rows), reverse=True)
    for row in rows:
        assert row["measured"] == pytest.approx(4e3 * row["num_envs"])
        assert row["measured_steps_per_s"] == pytest.approx(1e3 * row["num_envs"])
        assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
    own = split_of(load_config(DQN))
    assert any(all(row[key] == getattr(own, key) for key in SPLIT) for row in rows)


def test_an_earlier_document_is_predicted_from_without_measuring_or_training(
    run: Run, tmp_path: Path, trained: list[Any]
) -> None:
    first = run(DQN, "--json", str(tmp_path / "a.json"), cores=16)
    assert first.status == 0
    trained.clear()
    second = run(DQN, "--from", str(tmp_path / "a.json"), "--json", str(tmp_path / "b.json"), cores=16)
    assert (second.status, second.err, trained) == (0, "", [])
    a, b = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert b["environment"].pop("measured") == f"earlier, and taken from {tmp_path / 'a.json'}"
    assert b["race"] is None
    assert all(a[key] == b[key] for key in ("measurements", "environment", "candidates", "as_it_is"))
    assert f"earlier, and taken from {tmp_path / 'a.json'}" in flat(second.out)


def test_its_picture_is_drawn(run: Run, earlier: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = run("--from", str(earlier), "--out", str(out))
    assert ended.status == 0, ended.err
    assert json.loads((out / "profile.json").read_text()).keys() == KEYS
    assert (out / "profile.png").read_bytes().startswith(PNG)


def test_the_written_config_runs_with_the_recommended_split(run: Run, tmp_path: Path) -> None:
    to = tmp_path / "tuned.toml"
    ended = run(DQN, "--write", str(to), "--json", str(tmp_path / "x.json"), cores=16)
    assert ended.status == 0, ended.err
    assert f"{to} is written: " in ended.out
    document = json.loads((tmp_path / "x.json").read_text())
    split = split_of(load_config(str(to)))
    assert {key: getattr(split, key) for key in SPLIT} == document["recommended"] == document["writable"]
    before, after = (tomllib.loads(Path(path).read_text()) for path in (ROOT / DQN, to))
    before["distribution"], before["environment"]["num_envs"] = after["distribution"], split.num_envs
    assert before == after


def test_where_nothing_is_recommended_nothing_is_written_and_everything_else_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Candidates, "_why_not", lambda *_: "distribution.actor.num: no actors today")
    ended = run(
        *("--cores", "40", "--nodes", "8"),
        *("--write", str(tmp_path / "x.toml"), "--json", str(tmp_path / "x.json")),
    )
    assert json.loads((tmp_path / "x.json").read_text())["writable"] is None
    assert ended.status == 1
    assert "--write: no split of these cores is recommended" in ended.err
    assert not (tmp_path / "x.toml").exists()
    assert "RECOMMENDED" in ended.out


REPLACES = ("--set", "distribution.actor={ num = 1 }")
"""A section as a whole, in place of that of a base."""
TWO_HOSTS = (
    *("--set", "distribution.hosts=2", "--set", 'distribution.transport={ local = "shm", remote = "zmq" }'),
    *("--set", "distribution.actor.num=3", "--set", "environment.num_envs=16"),
)


def test_nodes_are_the_hosts_of_the_config_if_nobody_says_otherwise(run: Run, tmp_path: Path) -> None:
    to = tmp_path / "tuned.toml"
    ended = run(*TWO_HOSTS, "--json", str(tmp_path / "x.json"), "--write", str(to))
    assert ended.status == 0, ended.err
    document = json.loads((tmp_path / "x.json").read_text())
    assert document["cluster"]["nodes"] == 2
    assert all("distribution.hosts=2" in candidate["settings"] for candidate in document["candidates"])
    assert all("distribution.hosts" not in candidate["changes"] for candidate in document["candidates"])
    assert load_config(str(to)).distribution.hosts.max == 2
    assert "--verify" not in ended.out


def test_the_config_as_it_is_has_its_own_hosts(run: Run, found: Find, tmp_path: Path) -> None:
    run(*TWO_HOSTS, "--json", str(tmp_path / "two.json"))
    run(*TWO_HOSTS, "--nodes", "1", "--json", str(tmp_path / "one.json"))
    two, one = (json.loads((tmp_path / name).read_text()) for name in ("two.json", "one.json"))
    assert two["as_it_is"] == one["as_it_is"]
    assert two["as_it_is"]["cores"] == 4
    assert "cores" not in two["as_it_is"]["limits"]
    assert (two["race"], one["cluster"]["nodes"]) == (None, 1)
    assert one["race"] is not None
    there = found(overrides=TWO_HOSTS[1::2], cluster=Cluster(2, nodes=2, link_bytes_per_s=1e6))
    assert there.model.predict(split_of(there.model.job)).limits.keys() >= {"link"}


# -- what it proves --------------------------------------------------------------------------------------


def test_verify_trains_five_times_with_each_that_raced_the_winner_first(
    run: Run, trained: list[tuple[str, ...]], tmp_path: Path
) -> None:
    ended = run("--verify", "--out", str(tmp_path / "out"), "--json", str(tmp_path / "x.json"))
    assert ended.status == 0, ended.err
    assert "VERIFIED" in ended.out
    document = json.loads((tmp_path / "x.json").read_text())
    checks, rows = document["verify"], document["race"]["rows"]
    assert len(checks) == len(rows)
    assert {key: checks[0][key] for key in SPLIT} == document["recommended"]
    assert all(len(check["measured_runs"]) == 5 for check in checks)
    raced = sum(len(row["measured_runs"]) for row in rows)
    assert len(trained) == raced + 5 * len(checks) + 1, "the last one is traced, and none of those measured"
    assert (tmp_path / "out" / "timeline.png").read_bytes().startswith(PNG)


NONE_IS_LEFT = "every split of the race failed, so there is no result: a training failed"


@pytest.mark.parametrize(
    ("fails_after", "falls_back", "why"),
    [(0, None, NONE_IS_LEFT), (3, True, "a training failed"), (20, False, "a training failed")],
)
def test_what_was_found_is_there_even_if_trainings_fail(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails_after: int,
    falls_back: bool | None,
    why: str,
) -> None:
    monkeypatch.setattr(MadeUpTrainer, "fails_after", fails_after)
    files = {name: tmp_path / name for name in ("x.json", "x.toml")}
    ended = run(
        *("--verify", "--json", str(files["x.json"]), "--write", str(files["x.toml"])),
        *("--out", str(tmp_path / "out")),
    )
    assert ended.status == 1, "all fail, or that which is traced at last"
    assert ended.err.splitlines()[-1] == f"tianji: error: {why}"
    assert "RECOMMENDED" in ended.out
    document = json.loads(files["x.json"].read_text())
    race = document["race"]
    assert (None if race is None else race["fell_back"]) is falls_back
    # A split that no training has shown to be good is written nowhere.
    assert files["x.toml"].exists() is (falls_back is not None)
    assert {place.name for place in (tmp_path / "out").iterdir()} >= {"profile.json", "profile.png"}


def test_it_is_there_even_if_nobody_reads_what_is_printed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(command, "print_profile", gone)
    run("--quiet", "--json", str(tmp_path / "x.json"), "--write", str(tmp_path / "x.toml"))
    assert json.loads((tmp_path / "x.json").read_text()).keys() == KEYS
    assert load_config(str(tmp_path / "x.toml")).distribution.actor.num.max == 1


def test_a_config_from_a_pipe_is_profiled_and_written(run: Run, tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.write(writes, (ROOT / DQN).read_bytes())
    os.close(writes)
    to = tmp_path / "tuned.toml"
    ended = run(f"/dev/fd/{reads}", "--write", str(to))
    os.close(reads)
    assert ended.status == 0, ended.err
    assert to.read_text().startswith((ROOT / DQN).read_text().partition("\n")[0])
    assert load_config(str(to)).training == load_config(DQN).training


# -- mistakes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["configs/ppo_cartpol.toml"], "did you mean 'configs/ppo_cartpole.toml'?"),
        (["--set", "training.gama=1"], "training.gama: unknown key"),
        (["--cores", "0"], "--cores"),
        (["--nodes", "0"], "--nodes"),
        (["--gpus", "0"], "--gpus"),
        (["--gpus", "2"], "--set distribution.device=cuda"),
        (["--link-mb", "-1"], "is no speed"),
        (["--link-mb", "inf"], "is no speed"),
        (["--link-mb", "nan"], "is no speed"),
        (["--write", "/nowhere/x.toml"], "/nowhere"),
        (["--write", "."], "directory"),
        (["--write", "/proc/x.toml"], "--write /proc/x.toml: cannot be written"),
        (["--write", "x" * 300], "cannot be written: File name too long"),
        (["child.toml", "--write", "x.toml", *REPLACES], "cannot be written so that it means"),
        (["--from", "nothing.json"], "cannot read nothing.json"),
        (["--from", "."], "cannot read ."),
        (["--verify", "--nodes", "2"], "2 nodes are to be split: --nodes 1 would be right"),
        (["--verify", *TWO_HOSTS], "2 nodes are to be split: --nodes 1 would be right"),
        (["--verify", "--cores", "3"], "2 usable cores, and 3 are to be split: --cores 2 would be right"),
        (["--verify", "--cores", "1"], "2 usable cores, and 1 are to be split: --cores 2 would be right"),
        (["--out"], "--out"),
        (["--json"], "--json"),
        (["--quite"], "--quiet"),
        (["a.toml", "b.toml"], "b.toml"),
        (["--out", "/proc/nowhere/x"], "/proc/nowhere"),
        (["--json", "/proc/nowhere/x"], "/proc/nowhere"),
    ],
)
def test_a_mistake_is_told_in_a_few_lines_before_anything_is_measured(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], said: str
) -> None:
    monkeypatch.setattr(command, "busy_share", never)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "child.toml").write_text('extends = "configs/ppo_cartpole.toml"')
    ended = run(*options)
    assert ended.status == 1 + ("/proc/nowhere/x" not in options)
    assert said in flat(ended.err.replace("│", " "))
    assert 1 <= len(ended.err.strip().splitlines()) <= 5
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_nothing_is_trained_for_another_machine(run: Run, tmp_path: Path, trained: list[Any]) -> None:
    path = str(tmp_path / "elsewhere.json")
    assert run(DQN, "--json", path, cores=16).status == 0
    trained.clear()
    ended = run(DQN, "--from", path, "--verify")
    assert (ended.status, trained) == (2, [])
    assert "2 usable cores, and 16 are to be split: measure here, without --from" in ended.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[1]", "another kind of file"),
        ('{"rows": []}', "no 'measurements'"),
        ('{"measurements": {"cores": 2}}', "measurements."),
        ('{"measurements": 3}', "measurements"),
        ({"schema_number": 99}, "schema 99"),
        ({"fingerprint": "x"}, "other settings"),
        ({"parts": []}, "other settings"),
    ],
)
def test_what_is_no_earlier_profile_of_this_work_is_refused(
    run: Run, earlier: Path, text: str | dict[str, Any], said: str
) -> None:
    document = json.loads(earlier.read_text())
    earlier.write_text(text if isinstance(text, str) else damaged(document, **text))
    ended = run("--from", str(earlier))
    assert ended.status == 2
    assert said in ended.err
    assert len(ended.err.strip().splitlines()) == 1
    assert ended.out == ""


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("training.gamma=0.5", "other settings"),
        ("environment.num_envs=32", "with 64 environments an actor, and environment.num_envs is 32"),
    ],
)
def test_measurements_of_other_work_or_sizes_are_refused(
    run: Run, earlier: Path, setting: str, said: str
) -> None:
    ended = run("--from", str(earlier), "--set", setting)
    assert ended.status == 2
    assert said in ended.err


def damaged(document: dict[str, Any], **changes: Any) -> str:
    return json.dumps({**document, "measurements": {**document["measurements"], **changes}})


def test_under_a_launcher_of_several_it_is_refused(run: Run) -> None:
    for variables in (
        {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_PORT": "here:1"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "1"},
        {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"},
    ):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            ended = run()
        assert (ended.status, ended.out) == (2, "")
        assert "profile measures one host" in ended.err


def test_the_members_of_a_population_are_no_split_to_choose(run: Run) -> None:
    ended = run("configs/ppo_lunarlander_population.toml")
    assert (ended.status, ended.out) == (2, "")
    assert "population: its members are groups" in ended.err


# -- in a process of its own -----------------------------------------------------------------------------


Tianji = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def tianji(warm_commands: WarmCommands, tmp_path: Path) -> Tianji:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = warm_commands.begin_kept(arguments, tmp_path, os.environ)
        try:
            said = command.communicate(timeout=200)
        finally:
            kill_session(command.pid)
        return subprocess.CompletedProcess(arguments, command.wait(), *said)

    return run


def test_ten_thousand_cores_are_answered_from_a_file(earlier: Path, tianji: Tianji) -> None:
    done = tianji("profile", "--from", str(earlier), "--cores", "1000", "--nodes", "10", "--json", "-")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["extrapolated"]
    helped = tianji("profile", "--help").stdout
    options = (
        "--cores",
        "--nodes",
        "--gpus",
        "--link-mb",
        "--race-s",
        "--verify",
        "--write",
        "--from",
        "--set",
        "--out",
    )
    assert all(option in helped for option in (*options, "--json", "--quiet"))


# -- with what is measured in truth ----------------------------------------------------------------------


def test_a_real_machine_is_measured_and_what_is_written_trains(
    config: str, tmp_path: Path, tianji: Tianji
) -> None:
    measured, tuned = tmp_path / "measured.json", tmp_path / "tuned.toml"
    done = tianji(
        *("profile", config, "--quiet", "--race-s", "1"), *("--json", str(measured), "--write", str(tuned))
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    document = json.loads(measured.read_text())
    assert document["measurements"]["cores"] == len(os.sched_getaffinity(0))
    assert all(math.isfinite(number) for number in numbers(document))
    assert all(row["measured"] > 0 for row in document["race"]["rows"])
    assert len(document["race"]["rows"]) >= 2
    times = ("act_s", "step_s", "push_s", "receive_s", "update_s", "draw_s")
    for part in document["measurements"]["parts"]:
        assert all(part[name] > 0 for name in times)
    trained = tianji("train", str(tuned), "--out", str(tmp_path / "runs"), "--quiet", "--json", "-")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["status"] == "finished"
    assert tianji("profile", config, "--from", str(measured), "--json", "-").returncode == 0
