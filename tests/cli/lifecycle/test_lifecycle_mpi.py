"""Jobs whose processes mpiexec starts: who becomes who, how they end, and what ends them."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli.boom import BOOM
from cli.lifecycle.conftest import ENDLESS, TIANJI

MPI: dict[str, Any] = {"distribution": {"transport": "mpi", "actor": {"num": 2}}}
ONE_ACTOR = {"distribution": {"actor": {"num": 1}}}
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))


def under_mpiexec(workplace: Any, ranks: int, *changes: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    """Start ranks by hand, as a user does, and wait for their end."""
    command = [MPIEXEC, "-n", str(ranks), str(TIANJI), "train", str(workplace.config(MPI, *changes))]
    command += ["--out", "out", "--quiet"]
    return subprocess.run(
        command, cwd=workplace.place, capture_output=True, text=True, timeout=120, check=False
    )


def processes(run: Any) -> dict[int, psutil.Process]:
    """All processes of a job by pid; mpiexec gives its ranks a session of their own."""
    return {process.pid: process for process in psutil.Process(run.command.pid).children(recursive=True)}


def wait_for(ended: dict[int, psutil.Process]) -> None:
    _, alive = psutil.wait_procs(list(ended.values()), timeout=30)
    assert alive == [], "no rank outlives its job"


@pytest.mark.soak
def test_a_config_that_names_mpi_starts_itself_under_mpiexec(workplace: Any) -> None:
    run = workplace.train(MPI, {"experiment": {"eval_episodes": 3}})
    summary = run.finish()
    assert (summary["status"], summary["transport"]) == ("finished", "mpi")
    assert summary["evaluation"]["episodes"] == 3
    assert [role["role"] for role in summary["roles"]] == [
        "root", "buffer", "learner", "actor", "actor", "evaluator"
    ]  # fmt: skip
    assert (summary["lost"], summary["in_flight"]) == (0, 0)


@pytest.mark.soak
@pytest.mark.parametrize("transport", ["mpi", "zmq"])
def test_ranks_started_by_hand_take_their_roles_from_the_plan(workplace: Any, transport: str) -> None:
    ended = under_mpiexec(workplace, 4, {"distribution": {"transport": transport}})
    assert ended.returncode == 0, ended.stderr
    (run,) = (workplace.place / "out/run").iterdir()
    assert (run / "summary.json").is_file()
    assert "run finished" in ended.stdout


@pytest.mark.parametrize("ranks", [3, *(pytest.param(one, marks=pytest.mark.soak) for one in (1, 6))])
def test_a_wrong_number_of_ranks_is_an_error_that_says_the_right_one(workplace: Any, ranks: int) -> None:
    ended = under_mpiexec(workplace, ranks)
    assert ended.returncode == 2
    assert ended.stderr.count("tianji: error") == 1, "only the root speaks"
    assert f"started {ranks} processes and this job has 4: mpiexec -n 4" in ended.stderr
    assert not (workplace.place / "out").exists()


def test_a_wrong_config_ends_all_ranks_with_one_message(workplace: Any) -> None:
    ended = under_mpiexec(workplace, 4, {"environment": {"num_envs": -1}})
    assert ended.returncode == 2
    assert ended.stderr.count("num_envs") == 1


def test_an_exception_in_one_rank_ends_the_job_with_that_exception(workplace: Any) -> None:
    workplace.module(BOOM)
    run = workplace.train(MPI, ONE_ACTOR, ENDLESS, {"environment": {"type": "my_env:Boom", "id": ""}})
    summary = run.finish(1)
    assert "RuntimeError: the boom" in summary["reason"]


AGAIN = """
from tianji_cli.roles.user_role import UserRole

class Again(UserRole):
    restartable = True
    def turn(self):
        return False
"""


def test_a_role_that_would_restart_elsewhere_is_named_before_the_start(workplace: Any) -> None:
    (workplace.place / "again.py").write_text(AGAIN)
    role = {"roles": {"again": {"type": "again:Again", "reads": ["policy"]}}}
    ended = under_mpiexec(workplace, 5, {"distribution": {"transport": "zmq"}}, role)
    assert ended.returncode == 0, ended.stderr
    why = "an MPI launcher ends all processes when one dies: no restart of again (group 0)"
    assert why in (workplace.place / "out/run/1/logs/root-0.log").read_text()


@pytest.mark.parametrize("engine", ["shm", pytest.param("mpi", marks=pytest.mark.soak)])
def test_a_killed_rank_ends_the_job_with_its_cause_and_a_checkpoint_to_go_on_from(
    workplace: Any, engine: str
) -> None:
    run = workplace.train(MPI, ONE_ACTOR, ENDLESS, {"experiment": {"checkpoint_every_s": 0.2}})
    run.train_until(5000)
    workplace.until(lambda: run.saved_env_steps > 0, "a checkpoint")
    ranks = processes(run)
    (actor,) = [rank for rank in ranks.values() if "tianji: actor 0" in " ".join(rank.cmdline())]
    actor.kill()
    run.command.wait(1)
    # Whether mpiexec leaves the root the time to say more is chance.
    assert "killed by SIGKILL" in run.command.last_words or "has died" in run.command.last_words
    wait_for(ranks)
    saved = run.saved_env_steps
    goal, over = f"experiment.stop.env_steps={saved + 4000}", f"distribution.transport={engine!r}"
    again = workplace.resume(run, "--set", goal, "--set", over)
    again.command.wait(0)
    assert again.summary["env_steps"] >= saved + 4000


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_signal_stops_the_job_in_order(workplace: Any, number: signal.Signals) -> None:
    run = workplace.train(MPI, ONE_ACTOR, ENDLESS)
    run.train_until(2000)
    run.command.signal_all(number)
    summary = run.finish(130)
    assert summary["status"] == "stopped"
    assert run.saved_env_steps == summary["env_steps"]


def test_a_run_under_mpiexec_stops_when_it_is_told_to(workplace: Any) -> None:
    run = workplace.train(MPI, ONE_ACTOR, ENDLESS)
    run.train_until(2000)
    ranks = processes(run)
    told = workplace.command("stop", str(run.path))
    told.wait(0)
    assert f"{run.path} stopped: SIGTERM" in told.stdout
    summary = run.finish(130)
    assert run.saved_env_steps == summary["env_steps"] >= 2000
    wait_for(ranks)
    workplace.environment = {"HYDRA_HOST_FILE": "/nowhere"}
    again = workplace.resume(run)
    again.command.wait(1)
    assert "mpiexec has ended the job" in again.command.last_words
    assert again.summary == summary, "what it came to before is not lost"


def test_a_job_whose_command_is_killed_leaves_no_rank_behind(workplace: Any) -> None:
    run = workplace.train(MPI, ONE_ACTOR, ENDLESS)
    run.train_until(2000)
    ranks = processes(run)
    assert len(ranks) >= 3
    run.command.process.kill()
    wait_for(ranks)


HANGS = """
import gymnasium, numpy, setproctitle, time

class Hangs(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return numpy.zeros(3, numpy.float32), {}

    def step(self, action):
        if "evaluator" in setproctitle.getproctitle():
            time.sleep(3600)
        return numpy.zeros(3, numpy.float32), 1.0, True, False, {}
"""


def test_an_evaluation_that_hangs_does_not_make_a_finished_job_a_failed_one(workplace: Any) -> None:
    workplace.module(HANGS)
    changes = {
        "experiment": {"eval_episodes": 3, "eval_max_s": 0.5},
        "environment": {"type": "my_env:Hangs", "id": ""},
    }
    ended = under_mpiexec(workplace, 4, ONE_ACTOR, changes)
    assert "run finished" in ended.stdout
    assert ended.returncode == 0, ended.stderr
    summary = json.loads((workplace.place / "out/run/1/summary.json").read_text())
    assert (summary["status"], summary["transport"]) == ("finished", "mpi")
    assert (summary["lost"], summary["in_flight"]) == (0, 0)
    assert "the evaluation was ended; the job is aborted" in ended.stderr


def test_mpi_over_several_hosts_is_left_to_its_launcher(workplace: Any) -> None:
    run = workplace.train(MPI, {"distribution": {"hosts": 2}})
    run.command.wait(2)
    assert "mpiexec -hosts A,B -n 4" in run.command.stderr
    assert "tianji launch slurm" in run.command.stderr
