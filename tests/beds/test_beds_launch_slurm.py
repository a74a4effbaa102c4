"""`tianji launch slurm` on a real Slurm: it trains over both nodes, stops in order, says what is wrong."""

import contextlib
import csv
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from beds.slurm import CPUS, Slurm
from beds.training import TIANJI, finished_summary, hosts_of, write_config

MPI = pytest.param("mpi", marks=pytest.mark.alone)  # MPI's own start and end keep a core busy for each rank.


def launch(slurm: Slurm, place: Path, config: Path, *options: str) -> int:
    """Submit a job, and give its number."""
    done = slurm.run(TIANJI, "launch", "slurm", config, "--nodes=2", "--out=out", *options, cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("submitted job ")
    return int(done.stdout.split()[2].rstrip(":"))


def ended(slurm: Slurm, job: int | str) -> str:
    """Wait for a job's end."""
    deadline = time.monotonic() + 90
    while (state := slurm.job_state(job)) in {"PENDING", "RUNNING", "COMPLETING"}:
        assert time.monotonic() < deadline, f"job {job} is still {state}"
        time.sleep(0.1)
    return state


def log(run: Path) -> str:
    return "".join(path.read_text() for path in (run / "logs").glob("slurm-*.out"))


@pytest.mark.parametrize(
    "transport",
    [MPI, {"local": "shm", "remote": "zmq"}, pytest.param("zmq", marks=pytest.mark.soak)],
    ids=str,
)
def test_a_launched_job_trains_over_both_nodes(
    slurm: Slurm, tmp_path: Path, transport: str | dict[str, str]
) -> None:
    job = launch(slurm, tmp_path, write_config(tmp_path, transport))
    run = tmp_path / "out/run/1"
    assert ended(slurm, job) == "COMPLETED", log(run)
    hosts = hosts_of(finished_summary(run))
    assert hosts[0] == "n1"
    assert set(hosts.values()) == {"n1", "n2"}, hosts


@pytest.mark.parametrize("transport", [MPI, pytest.param("zmq", marks=pytest.mark.soak)])
def test_slurms_warning_ends_a_job_in_order_with_a_checkpoint(
    slurm: Slurm, tmp_path: Path, transport: str
) -> None:
    endless = "experiment.stop={env_steps=1000000000}"
    job = launch(slurm, tmp_path, write_config(tmp_path, transport), "--set", endless)
    run = tmp_path / "out/run/1"
    deadline = time.monotonic() + 60
    while not trained(run):
        assert slurm.job_state(job) in {"PENDING", "RUNNING"}, log(run)
        assert time.monotonic() < deadline, log(run)
        time.sleep(0.1)
    # What Slurm itself does at the time that --signal=B:TERM@60 names.
    slurm.run("scancel", "--batch", "--signal=TERM", str(job))
    assert ended(slurm, job) == "FAILED"
    assert slurm.exit_status(job) == 130, log(run)
    assert json.loads((run / "summary.json").read_text())["status"] == "stopped"
    assert (run / "checkpoints/last/model.safetensors").is_file()


def until_trained(slurm: Slurm, job: int, run: Path, sessions: int = 1) -> None:
    """Wait until the run's newest session has made an update."""
    deadline = time.monotonic() + 90
    while not (trained(run) and len((run / "sessions.jsonl").read_text().splitlines()) == sessions):
        assert slurm.job_state(job) in {"PENDING", "RUNNING", "COMPLETING"}, log(run)
        assert time.monotonic() < deadline, log(run)
        time.sleep(0.1)


def test_a_job_that_was_warned_twice_is_queued_again_and_goes_on_to_its_goal(
    slurm: Slurm, tmp_path: Path
) -> None:
    goal = "experiment.stop={env_steps=300_000}"
    job = launch(slurm, tmp_path, write_config(tmp_path, "zmq"), "--requeue", "--set", goal)
    run = tmp_path / "out/run/1"
    for session in (1, 2):
        until_trained(slurm, job, run, session)
        slurm.run("scancel", "--batch", "--signal=TERM", str(job))
        begin_again(slurm, job)
    assert ended(slurm, job) == "COMPLETED", log(run)
    summary = finished_summary(run)
    assert summary["session"]["number"] == 3
    assert summary["env_steps"] >= 300_000


def begin_again(slurm: Slurm, job: int) -> None:
    """Wait until a job is queued again, and have Slurm begin it soon; by itself it waits two minutes.

    In the second of the job's end its nodes would refuse it: "Job credential revoked".
    """
    deadline = time.monotonic() + 60
    while slurm.job_state(job) != "PENDING":
        assert time.monotonic() < deadline, slurm.job_state(job)
        time.sleep(0.1)
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+2")


def trained(run: Path) -> bool:
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("}")]
    return bool(rows) and rows[-1]["updates"] > 0


def test_a_host_that_cannot_join_ends_the_job(slurm: Slurm, tmp_path: Path) -> None:
    launch(slurm, tmp_path, write_config(tmp_path, "zmq"))
    slurm.cancel_all()
    # As on a cluster whose second node does not see the run directory.
    run = tmp_path / "out/run/1"
    for used in ("metrics.jsonl", "summary.json"):
        (run / used).unlink(missing_ok=True)
    script = (run / "job.sbatch").read_text()
    assert script.count('--key "$run/job.key"') == 1
    (run / "job.sbatch").write_text(script.replace('--key "$run/job.key"', '--key "$run/nowhere.key"'))
    job = int(slurm.run("sbatch", "--parsable", run / "job.sbatch", cwd=tmp_path).stdout)
    assert ended(slurm, job) == "FAILED", log(run)
    assert "nowhere.key" in log(run)


def test_a_job_that_slurm_refuses_leaves_no_run(slurm: Slurm, tmp_path: Path) -> None:
    config = write_config(tmp_path, "zmq")
    command = (TIANJI, "launch", "slurm", config, "--nodes=2", "--partition=none", "--out=out")
    refused = slurm.run(*command, cwd=tmp_path)
    assert refused.returncode == 1
    assert "invalid partition specified: none" in refused.stderr
    assert not list((tmp_path / "out/run").iterdir())


SLOW_AT_FIRST = """
import time
from pathlib import Path

import gymnasium

class SlowAtFirst(gymnasium.Wrapper):
    def __init__(self, go):
        super().__init__(gymnasium.make("CartPole-v1"))
        self._go = Path(go)

    def step(self, action):
        if not self._go.exists():
            time.sleep(0.005)
        return super().step(action)

def make(go: str):
    return SlowAtFirst(go)
"""


def launch_sweep(slurm: Slurm, place: Path, trials: int, *options: str) -> tuple[str, str]:
    """Submit two jobs that share trials, in ``sw``; each takes all CPUs of a node, so they are on both."""
    (place / "slow_at_first.py").write_text(SLOW_AT_FIRST)
    config = write_config(place, "inproc")
    config.write_text(
        f"{config.read_text()}\n[sweep]\nmetric = 'mean_100'\nsampler = 'random'\ntrials = {trials}\n"
        "[sweep.parameters]\ntraining.learning_rate = { low = 1e-4, high = 1e-2, log = true }\n"
    )
    asked = ("--sweep", "--array=2", f"--cpus-per-node={CPUS}", "--out=sw")
    command = (TIANJI, "launch", "slurm", config, *asked, *options)
    done = slurm.run(*command, cwd=place, environment={"PYTHONPATH": str(place)})
    assert done.returncode == 0, done.stderr
    return tasks(done.stdout.split()[2].rstrip(":"))


def tasks(array: str) -> tuple[str, str]:
    return f"{array}_0", f"{array}_1"


def journal(sweep: Path) -> list[dict[str, Any]]:
    lines = (sweep / "journal.log").read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def owners(sweep: Path) -> dict[int, list[str]]:
    """The nodes that took each trial, in that order."""
    found: dict[int, list[str]] = {}
    for line in journal(sweep):
        if "worker" in line.get("user_attr", {}):
            found.setdefault(line["trial_id"], []).append(line["user_attr"]["worker"].partition("-")[0])
    return found


def test_the_jobs_of_an_array_share_the_trials_of_a_sweep(slurm: Slurm, tmp_path: Path) -> None:
    jobs = launch_sweep(slurm, tmp_path, 6)
    place = tmp_path / "sw"
    states = {ended(slurm, job) for job in jobs}
    assert states == {"COMPLETED"}, log(place)
    summary = json.loads((place / "summary.json").read_text())
    assert (summary["status"], summary["trials"]) == ("finished", 6)
    assert {node for took in owners(place).values() for node in took} == {"n1", "n2"}


def test_another_job_does_the_rest_of_an_array_that_was_killed_and_cancelled(
    slurm: Slurm, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    slow = f'environment={{type="slow_at_first:make",num_envs=8,options={{go="{go}"}}}}'
    one_at_once = f"distribution.learner.cores={len(os.sched_getaffinity(0))}"
    first, second = launch_sweep(slurm, tmp_path, 2, "--set", slow, "--set", one_at_once)
    place = tmp_path / "sw"
    deadline = time.monotonic() + 60
    while not all(trained(place / f"trials/{trial}/1") for trial in (0, 1)):
        assert time.monotonic() < deadline, log(place)
        time.sleep(0.1)
    assert {tuple(took) for took in owners(place).values()} == {("n1",), ("n2",)}
    kill(first)
    assert ended(slurm, first) == "FAILED"
    slurm.run("scancel", second)
    assert ended(slurm, second) == "CANCELLED"
    assert "0 of 2 trials are over" in log(place)
    # One on each node again: what was killed is known to be dead on its own node at once.
    go.touch()
    search = {"PYTHONPATH": str(tmp_path)}
    again = slurm.run("sbatch", "--parsable", place / "job.sbatch", cwd=tmp_path, environment=search)
    assert {ended(slurm, one) for one in tasks(again.stdout.strip())} == {"COMPLETED"}, log(place)
    with (place / "trials.csv").open() as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["finished"] * 2
    ends = [one["trial_id"] for one in journal(place) if one["op_code"] == 6 and one["state"] in {1, 2, 3}]
    assert sorted(ends) == [0, 1], "none counts twice"
    assert {len(took) for took in owners(place).values()} == {2}
    assert (place / "best.toml").exists()
    assert list((place / "workers").iterdir()) == []


def kill(task: str) -> None:
    """SIGKILL all processes of a job in an array, as a node that loses its power does."""
    array, _, place = task.partition("_")
    variables = {f"SLURM_ARRAY_JOB_ID={array}".encode(), f"SLURM_ARRAY_TASK_ID={place}".encode()}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            if variables <= set((process / "environ").read_bytes().split(b"\0")):
                os.kill(int(process.name), signal.SIGKILL)
