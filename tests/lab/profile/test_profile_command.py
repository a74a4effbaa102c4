"""Claims about `tianji profile`, as a user runs it. What it measures is made up, except in the last test."""

from __future__ import annotations

import json
import math
import os
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli.quick import PNG
from cli.sessions import kill_session
from cli.warm import WarmCommands
from lab.profile.conftest import Find
from lab.profile.made_up_measurements import DQN, PPO, Job, made_up, repeated

from tianji_cli.config.loader import load_config
from tianji_cli.errors import RunFailed
from tianji_cli.main import main
from tianji_lab.profile import measure as measuring
from tianji_lab.profile import run as command
from tianji_lab.profile.building import Subject
from tianji_lab.profile.measurements import Measurements
from tianji_lab.profile.scaling import Cluster
from tianji_lab.profile.search import Candidate, Search
from tianji_lab.profile.settings import split_of
from tianji_lab.profile.verify import Verified

ROOT = Path(__file__).parents[3]
KEYS = {
    *("schema", "config", "overrides", "environment", "warnings", "measurements", "cluster", "as_it_is"),
    *("candidates", "recommended", "writable", "bottleneck", "extrapolated", "simulated", "breaks_first"),
    "verify",
}
SPLIT = {"learners", "learner_cores", "actors", "num_envs", "groups", "pinned"}


@dataclass(frozen=True)
class Ended:
    """A command that is over."""

    status: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `tianji profile` in this process, on a machine of two cores that is not measured in truth."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})

    def ends(*arguments: str, job: Job = PPO, cores: int = 2) -> Ended:
        def measure(subject: Subject, *_: object) -> Measurements:
            load_config(subject.config)  # As often as it likes, from wherever: probes do.
            assert not subject.config.startswith("/dev")
            return made_up(job, cores).model_copy(update={"config": subject.config})

        monkeypatch.setattr(measuring, "measure", measure)
        with pytest.raises(SystemExit) as ended:
            main(["profile", *arguments])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, said.out, said.err)

    return ends


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Candidate]:
    """Trainings come to 5 % less than predicted; who was trained with is written down."""
    seen: list[Candidate] = []

    def verify(_: str, __: Sequence[str], candidates: Sequence[Candidate], **___: object) -> list[Verified]:
        seen.extend(candidates)
        return [
            Verified(
                candidate.prediction,
                uses_per_s=repeated(0.95 * candidate.prediction.throughput, 0.06),
                steps_per_s=repeated(candidate.prediction.throughput / candidate.prediction.rho, 0.06),
            )
            for candidate in candidates
        ]

    monkeypatch.setattr(command, "verify", verify)
    return seen


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


def never(*_: object, **__: object) -> Measurements:
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
    ("job", "cores", "options"),
    [(PPO, 1, []), (PPO, 2, []), (DQN, 16, []), (DQN, 16, ["--cores", "40", "--nodes", "8"])],
)
def test_the_document_has_every_key_and_finite_numbers(
    run: Run, tmp_path: Path, job: Job, cores: int, options: list[str]
) -> None:
    ended = run(job.config, *options, "--json", str(tmp_path / "x.json"), job=job, cores=cores)
    assert ended.status == 0, ended.err
    document = json.loads((tmp_path / "x.json").read_text())
    assert document.keys() == KEYS
    assert all(math.isfinite(number) for number in numbers(document))
    assert document["recommended"].keys() == SPLIT
    assert document["bottleneck"].keys() == {"kind", "words"}
    assert document["measurements"]["cores"] == cores
    best = document["candidates"][0]
    assert {key: best[key] for key in SPLIT} == document["recommended"]
    rates = [best[name] for name in ("production", "reception", "consumption")]
    assert best["throughput"] <= min(rates) * (1 + 1e-9)
    assert best["env_steps_per_s"] == pytest.approx(best["throughput"] / document["measurements"]["rho"])
    # How groups average is not measured anywhere, nor was what roles do that share a core.
    extrapolates = bool(options) or document["recommended"]["groups"] > 1 or cores == 1
    assert bool(document["extrapolated"]) is extrapolates
    assert (document["simulated"] is not None) is extrapolates
    assert (document["breaks_first"] is not None) is extrapolates
    assert document["verify"] == []


def test_an_earlier_document_gives_the_same_answer_without_measuring(run: Run, tmp_path: Path) -> None:
    first = run(DQN.config, "--json", str(tmp_path / "a.json"), job=DQN, cores=16)
    assert first.status == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "measure", never)
        second = run(
            DQN.config, "--from", str(tmp_path / "a.json"), "--json", str(tmp_path / "b.json"), job=PPO
        )
    assert second.status == 0, second.err
    assert second.err == ""
    a, b = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert b["environment"].pop("measured") == f"earlier, and taken from {tmp_path / 'a.json'}"
    assert a == b
    assert f"earlier, and taken from {tmp_path / 'a.json'}" in flat(second.out)


def test_an_earlier_document_is_of_use_with_another_split_and_its_picture_is_drawn(
    run: Run, earlier: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ended = run("--from", str(earlier), "--set", "environment.num_envs=32", "--out", str(out))
    assert ended.status == 0, ended.err
    assert json.loads((out / "profile.json").read_text()).keys() == KEYS
    assert (out / "profile.png").read_bytes().startswith(PNG)


def test_the_written_config_runs_with_the_recommended_split(run: Run, tmp_path: Path) -> None:
    to = tmp_path / "tuned.toml"
    ended = run(DQN.config, "--write", str(to), "--json", str(tmp_path / "x.json"), job=DQN, cores=16)
    assert ended.status == 0, ended.err
    assert f"{to} is written: " in ended.out
    document = json.loads((tmp_path / "x.json").read_text())
    split = split_of(load_config(str(to)))
    assert {key: getattr(split, key) for key in SPLIT} == document["recommended"] == document["writable"]
    before, after = (tomllib.loads(Path(path).read_text()) for path in (ROOT / DQN.config, to))
    before["distribution"], before["environment"]["num_envs"] = after["distribution"], split.num_envs
    assert before == after


def test_what_cannot_be_run_is_not_written_but_the_best_that_can(run: Run, tmp_path: Path) -> None:
    to = tmp_path / "tuned.toml"
    # Actors with many environments would have more in flight than this replay holds.
    small = ("--set", "distribution.buffer.capacity=2048", "--set", "training.warmup_steps=1000")
    ended = run(DQN.config, *small, "--cores", "4", "--write", str(to), job=DQN)
    assert ended.status == 0, ended.err
    assert "the best that can be run" in ended.out
    written = split_of(load_config(str(to)))
    assert (written.groups, written.num_envs) == (2, 32)


def test_where_nothing_can_be_run_nothing_is_written_and_everything_else_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is a split for every config that is known to be valid; one that says no to all is made up.
    monkeypatch.setattr(Search, "_refusal", lambda *_: "distribution.actor.num: no actors today")
    ended = run(
        *("--cores", "40", "--nodes", "8"),
        *("--write", str(tmp_path / "x.toml"), "--json", str(tmp_path / "x.json")),
    )
    assert json.loads((tmp_path / "x.json").read_text())["writable"] is None
    assert ended.status == 1
    assert "--write: none of these splits can be run" in ended.err
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
    assert load_config(str(to)).distribution.hosts == 2
    assert "--verify" not in ended.out


def test_the_config_as_it_is_has_its_own_hosts(run: Run, found: Find, tmp_path: Path) -> None:
    run(*TWO_HOSTS, "--json", str(tmp_path / "two.json"))
    run(*TWO_HOSTS, "--nodes", "1", "--json", str(tmp_path / "one.json"))
    two, one = (json.loads((tmp_path / name).read_text()) for name in ("two.json", "one.json"))
    assert two["as_it_is"] == one["as_it_is"]
    assert two["as_it_is"]["cores"] == 4
    assert "cores" not in two["as_it_is"]["limits"]
    there = found(overrides=TWO_HOSTS[1::2], cluster=Cluster(2, nodes=2, link_bytes_per_s=1e6))
    assert there.as_it_is == there.search.predict(there.as_it_is.split)
    assert there.as_it_is.limits.keys() >= {"link"}
    assert one["cluster"]["nodes"] == 1
    assert "distribution.hosts" in one["candidates"][0]["changes"]


def test_what_was_not_measured_for_lack_of_time_is_not_searched(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made_up(PPO, 2)
    in_part = whole.model_copy(
        update={
            "actors": tuple(each for each in whole.actors if each.num_envs == 64 or not each.crowded),
            "learners": tuple(each for each in whole.learners if each.num_envs != 16),
            "averaging": (),
        }
    )
    path = tmp_path / "in_part.json"
    run("--json", str(path))
    path.write_text(damaged(json.loads(path.read_text()), **in_part.model_dump(mode="json")))
    document = json.loads(run("--from", str(path), "--cores", "40", "--nodes", "2", "--json", "-").out)
    assert {candidate["num_envs"] for candidate in document["candidates"]} == {64}


@pytest.mark.parametrize(
    "options", [["--cores", "1"], ["--cores", "4", "--set", "distribution.transport=inproc"]]
)
def test_roles_that_share_cores_are_simulated_unless_they_share_a_process(
    run: Run, options: list[str]
) -> None:
    document = json.loads(run(*options, "--json", "-").out)
    assert "cores" in document["candidates"][0]["limits"]
    assert (document["simulated"] is None) is ("distribution.transport=inproc" in options)
    assert document["breaks_first"] is not None


# -- what it proves --------------------------------------------------------------------------------------


def test_verify_trains_with_the_choice_and_four_others_which_are_listed_beforehand(
    run: Run, trained: list[Candidate], tmp_path: Path
) -> None:
    ended = run("--verify", "--json", str(tmp_path / "x.json"))
    assert ended.status == 0, ended.err
    assert "PREDICTED BESIDE MEASURED" in ended.out
    document = json.loads((tmp_path / "x.json").read_text())
    checks = document["verify"]
    assert len(checks) == len(trained) == 5
    assert {check["pinned"] for check in checks} == {True, False}
    listed = ended.out.partition("TO BE TRAINED WITH")[2].partition("PREDICTED BESIDE MEASURED")[0]
    assert len([line for line in listed.splitlines() if " x " in line]) == 5
    assert {key: checks[0][key] for key in SPLIT} == document["recommended"]
    for check in checks:
        assert check.keys() >= {*SPLIT, "predicted", "measured", "measured_runs"}
        assert check["measured"] == pytest.approx(0.95 * check["predicted"])
        assert len(check["measured_runs"]) == 6


@pytest.mark.usefixtures("warm_children")
def test_the_choice_is_trained_with_once_more_and_its_timeline_is_left(
    run: Run, trained: list[Candidate], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ended = run("--verify", "--out", str(out), "--json", str(tmp_path / "x.json"))
    assert ended.status == 0, ended.err
    assert (out / "timeline.png").read_bytes().startswith(PNG)
    checks = json.loads((tmp_path / "x.json").read_text())["verify"]
    assert len(checks) == len(trained), "what is traced is none of what was measured"


def test_what_was_found_is_there_even_if_a_training_fails(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> list[Verified]:
        raise RunFailed("a training failed")

    monkeypatch.setattr(command, "verify", fails)
    files = {name: tmp_path / name for name in ("x.json", "x.toml")}
    ended = run(
        *("--verify", "--json", str(files["x.json"]), "--write", str(files["x.toml"])),
        *("--out", str(tmp_path / "out")),
    )
    assert ended.status == 1
    assert ended.err.splitlines()[-1] == "tianji: error: a training failed"
    assert "RECOMMENDED" in ended.out
    assert json.loads(files["x.json"].read_text())["verify"] == []
    assert load_config(str(files["x.toml"])).distribution.actor.num == 1
    assert {place.name for place in (tmp_path / "out").iterdir()} == {"profile.json", "profile.png"}


def test_it_is_there_even_if_nobody_reads_what_is_printed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(command, "print_result", gone)
    run("--quiet", "--json", str(tmp_path / "x.json"), "--write", str(tmp_path / "x.toml"))
    assert json.loads((tmp_path / "x.json").read_text()).keys() == KEYS
    assert load_config(str(tmp_path / "x.toml")).distribution.actor.num == 1


def test_a_config_from_a_pipe_is_profiled_and_written(run: Run, tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.write(writes, (ROOT / DQN.config).read_bytes())
    os.close(writes)
    to = tmp_path / "tuned.toml"
    ended = run(f"/dev/fd/{reads}", "--write", str(to), job=DQN)
    os.close(reads)
    assert ended.status == 0, ended.err
    assert to.read_text().startswith((ROOT / DQN.config).read_text().partition("\n")[0])
    assert load_config(str(to)).training == load_config(DQN.config).training


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
    monkeypatch.setattr(measuring, "measure", never)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "child.toml").write_text('extends = "configs/ppo_cartpole.toml"')
    ended = run(*options)
    assert ended.status == 1 + ("/proc/nowhere/x" not in options)
    assert said in flat(ended.err.replace("│", " "))
    assert 1 <= len(ended.err.strip().splitlines()) <= 5
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_nothing_is_trained_for_another_machine(run: Run, tmp_path: Path, trained: list[Candidate]) -> None:
    path = str(tmp_path / "elsewhere.json")
    assert run(DQN.config, "--json", path, job=DQN, cores=16).status == 0
    ended = run(DQN.config, "--from", path, "--verify")
    assert ended.status == 2
    assert "2 usable cores, and 16 are to be split: measure here, without --from" in ended.err
    assert run(DQN.config, "--from", path, "--verify", "--cores", "2").status == 0
    assert all(candidate.split.cores == 2 for candidate in trained if candidate.split.pinned)


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
        ({"actors": []}, "lacks some"),
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
        ("environment.num_envs=8", "16, 32, 64 environments an actor, and environment.num_envs is 8"),
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
    assert document["breaks_first"]["words"]
    helped = tianji("profile", "--help").stdout
    options = ("--cores", "--nodes", "--gpus", "--link-mb", "--verify", "--write", "--from", "--set", "--out")
    assert all(option in helped for option in (*options, "--json", "--quiet"))


# -- with what is measured in truth ----------------------------------------------------------------------


@pytest.mark.usefixtures("warm_children")
def test_a_real_machine_is_measured_and_what_is_written_trains(
    config: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tianji: Tianji,
) -> None:
    monkeypatch.setattr(command, "measure_here", partial(measuring.measure_here, budget_s=5.0))
    measured, tuned = tmp_path / "measured.json", tmp_path / "tuned.toml"
    with pytest.raises(SystemExit) as ended:
        main(["profile", config, "--quiet", "--json", str(measured), "--write", str(tuned)])
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    assert said.err == ""
    document = json.loads(measured.read_text())
    assert document["measurements"]["cores"] == len(os.sched_getaffinity(0))
    assert all(math.isfinite(number) for number in numbers(document))
    assert document["candidates"][0]["throughput"] > 0
    trained = tianji("train", str(tuned), "--out", str(tmp_path / "runs"), "--quiet", "--json", "-")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["status"] == "finished"
    assert tianji("profile", config, "--from", str(measured), "--json", "-").returncode == 0
