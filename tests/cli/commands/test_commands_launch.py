"""`tianji launch slurm` without a Slurm: the script it writes, and what it refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tianji_cli.config.loader import load_config
from tianji_cli.main import main

ZMQ = 'distribution.transport="zmq"'
MPI = 'distribution.transport="mpi"'
ACTORS = ("--set", "distribution.actor.num=4")

UNSAID = """\
[experiment]
stop = { env_steps = 100_000 }
[environment]
type = "gym"
id = "CartPole-v1"
num_envs = 8
[agent]
type = "ppo"
[training]
rollout_steps = 2048
minibatch_size = 128
[distribution.actor]
send_size = 16
"""
"""A rollout has 16 fragments."""


def launch(place: Path, monkeypatch: pytest.MonkeyPatch, *options: str, config: str = "ppo_cartpole") -> int:
    monkeypatch.chdir(place)
    with pytest.raises(SystemExit) as ended:
        main(["launch", "slurm", config, *options])
    assert isinstance(ended.value.code, int)
    return ended.value.code


RANGE = ("--set", "distribution.hosts={ min = 1, max = 3 }")


@pytest.mark.parametrize(
    "options",
    [
        ("--nodes=1",),
        ("--nodes=3", "--set", ZMQ),
        ("--nodes=2", "--set", MPI),
        ("--nodes=3", "--set", ZMQ, "--requeue", "--actor-partition=cpu", "--gpus=2"),
        ("--set", ZMQ, *RANGE, *ACTORS),
    ],
)
def test_print_shows_a_script_that_bash_can_read_and_makes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
) -> None:
    assert launch(tmp_path, monkeypatch, *options, "--print") == 0
    script = capsys.readouterr().out
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert f"run={tmp_path}/experiments/ppo_cartpole/1\n" in script
    assert not list(tmp_path.iterdir())


def test_every_rank_of_mpi_is_given_its_node_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(tmp_path, monkeypatch, "--nodes=2", "--print", "--set", MPI, *ACTORS) == 0
    script = capsys.readouterr().out
    nodes = script.partition("for node in ")[2].partition(";")[0].split()
    root, learner, *actors, evaluator = nodes
    assert f"--ntasks={len(nodes)} " in script
    assert (root, learner, evaluator) == ("0", "0", "0")
    assert actors == sorted(actors)
    assert set(actors) == {"0", "1"}


def test_options_reach_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--partition=big", "--time=2:00:00", "--account=ours", "--cpus-per-node=16", "--name=mine")
    assert launch(tmp_path, monkeypatch, "--nodes=2", "--print", "--set", ZMQ, *asked) == 0
    options = {line for line in capsys.readouterr().out.splitlines() if line.startswith("#SBATCH")}
    assert options >= {
        "#SBATCH --job-name=mine",
        "#SBATCH --nodes=2",
        "#SBATCH --mincpus=16",
        "#SBATCH --partition=big",
        "#SBATCH --time=2:00:00",
        "#SBATCH --account=ours",
    }


def test_a_job_of_two_partitions_has_gpus_in_the_first_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--partition=gpu", "--gpus=a100:2", "--actor-partition=cpu", "--qos=high", "--requeue")
    free = ("--sbatch=--constraint=ib", "--sbatch=--exclusive")
    assert launch(tmp_path, monkeypatch, "--nodes=3", "--print", "--set", ZMQ, *ACTORS, *asked, *free) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("#SBATCH")]
    split = lines.index("#SBATCH hetjob")
    assert {f"#SBATCH {option}" for option in ("--nodes=1", "--partition=gpu", "--gpus-per-node=a100:2")} <= {
        *lines[:split]
    }
    wanted = ("--qos=high", "--requeue", "--open-mode=append", "--no-kill", "--constraint=ib", "--exclusive")
    assert {f"#SBATCH {option}" for option in wanted} <= {*lines[:split]}
    assert lines[split + 1 :] == ["#SBATCH --nodes=2", "#SBATCH --mincpus=2", "#SBATCH --partition=cpu"]


def test_seeds_are_an_array_with_a_run_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert launch(tmp_path, monkeypatch, "--seeds=3,11") == 0
    runs = [tmp_path / f"experiments/ppo_cartpole/{number}" for number in (1, 2)]
    assert [load_config(str(run / "config.toml")).experiment.seed for run in runs] == [3, 11]
    assert all((run / "job.key").exists() for run in runs)
    script = (runs[0] / "job.sbatch").read_text()
    assert f"runs=({runs[0]} {runs[1]})\nrun=" in script
    assert "#SBATCH --array=0-1\n" in script


def test_a_requeued_job_keeps_the_settings_that_it_goes_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert launch(tmp_path, monkeypatch) == 0
    run = tmp_path / "experiments/ppo_cartpole/1"
    (run / "checkpoints/last").mkdir(parents=True)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["launch", "slurm", f"--resume={run}", "--requeue", "--print", "--set", "training.epochs=3"])
    assert ended.value.code == 0
    script = capsys.readouterr().out
    chooses = script.partition('"$tianji" train')[0] + 'printf "%s\\n" "${what[@]}"'
    said = subprocess.run(["bash"], input=chooses, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["--resume", str(run), "--set", "training.epochs=3"]
    assert not (run / "job.key").exists()  # The next session makes its own.


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("ppo_cartpole", "--resume=some"), "name a config to train, or a run to go on with"),
        ((), "name a config to train, or a run to go on with"),
        (("ppo_cartpole", "--array=2"), "--array goes with --sweep"),
        (("--resume=some", "--seeds=2"), "--seeds begins new runs"),
        (("ppo_cartpole", "--sweep", "--requeue"), "sbatch its script once more"),
        (("ppo_cartpole", "--actor-partition=cpu"), "and there is one"),
        (("--resume=nothing",), "no run"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["launch", "slurm", *options, "--print"])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def test_without_nodes_as_many_are_asked_for_as_the_config_has_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(tmp_path, monkeypatch, "--print", "--set", ZMQ, "--set", "distribution.hosts=3") == 0
    assert "#SBATCH --nodes=3\n" in capsys.readouterr().out


def test_what_the_config_leaves_to_the_machine_is_chosen_for_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (tmp_path / "sbatch").chmod(0o755)
    (tmp_path / "mine.toml").write_text(UNSAID)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for number, (cpus, chosen) in enumerate({"2": (4, False), "40": (16, True)}.items(), start=1):
        asked = ("--nodes=2", f"--cpus-per-node={cpus}", "--set", ZMQ)
        assert launch(tmp_path, monkeypatch, *asked, config="mine.toml") == 0
        distribution = load_config(str(tmp_path / f"experiments/mine/{number}/config.toml")).distribution
        assert (distribution.actor.num.max, distribution.pin_cores) == chosen


def test_a_config_that_cannot_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(tmp_path, monkeypatch, "--nodes=2", "--print") == 2
    said = capsys.readouterr().err
    assert "--nodes: distribution.hosts: 'shm' does not reach from one host to another" in said
    assert "as zmq, mpi and ucx do, and distribution.hosts is 2" in said


def test_without_sbatch_the_error_says_where_to_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert launch(tmp_path, monkeypatch, "--nodes=2", "--set", ZMQ) == 1
    assert "sbatch is not on this machine's PATH" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another group")
def test_a_place_that_a_group_may_write_to_is_worth_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sbatch = tmp_path / "bin/sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text("#!/bin/sh\necho 7\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(sbatch.parent), prepend=os.pathsep)
    os.chown(tmp_path, -1, 54_321)
    tmp_path.chmod(0o775)
    assert launch(tmp_path, monkeypatch, "--nodes=2", "--set", ZMQ) == 0
    said = capsys.readouterr()
    assert said.out.startswith("submitted job 7: ")
    assert f"tianji: warning: {tmp_path} may be written to by the group 54321" in said.err
