"""A run with `distribution.restart` goes on by itself when it has lost what it needs."""

import json
import signal
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS, Run
from ports import free_address

RESTARTS: dict[str, Any] = {
    "experiment": {"checkpoint_every_s": 0.3},
    "distribution": {"restart": True, "transport": "zmq", "actor": {"num": 2}},
}
AGAIN = "the run begins again, from its last checkpoint"


def sessions(run: Run) -> int:
    return len((run.path / "sessions.jsonl").read_text().splitlines())


def train_in_session(workplace: Any, run: Run, number: int) -> None:
    """Train until a session has begun, and saved more than the ones before."""
    workplace.until(lambda: sessions(run) == number, f"session {number}")
    run.train_until(run.env_steps + 3000)
    saved = run.saved_env_steps
    workplace.until(lambda: run.saved_env_steps > saved, "it saves")


def kill_learner(run: Run) -> None:
    run.command.kill("buffer and learner")


def test_a_killed_learner_begins_again_and_again(workplace: Any) -> None:
    run = workplace.train(RESTARTS, workplace.with_goal())
    for number in (1, 2):
        workplace.until((run.path / "sessions.jsonl").exists, "it begins")
        train_in_session(workplace, run, number)
        kill_learner(run)
        workplace.until(lambda number=number: run.log.count(AGAIN) == number, "it goes on")
    train_in_session(workplace, run, 3)
    run.reach_goal()
    summary = run.finish()
    assert summary["status"] == "finished"
    assert summary["session"]["number"] == 3


def test_hosts_join_the_next_session(workplace: Any) -> None:
    address = free_address()
    two = {"distribution": {"hosts": 2}}
    run = workplace.train(RESTARTS, two, ENDLESS, options=("--quiet", "--listen", address))
    workplace.until((run.path / "job.key").exists, "the key is written")
    host = workplace.command("join", address, "--key", str(run.path / "job.key"))
    workplace.until((run.path / "sessions.jsonl").exists, "it begins")
    train_in_session(workplace, run, 1)
    kill_learner(run)
    train_in_session(workplace, run, 2)
    assert host.pids("actor 1")
    run.command.signal_all(signal.SIGINT)
    run.finish(130)
    host.wait(0)
    assert "the job begins again; its workers here are ended" in host.stderr


@pytest.mark.parametrize(
    "why", [{"distribution": {"restart": False}}, {"experiment": {"checkpoint_every_s": 1e6}}], ids=str
)
def test_without_the_setting_or_a_checkpoint_it_ends(workplace: Any, why: dict[str, Any]) -> None:
    run = workplace.train(RESTARTS, ENDLESS, why)
    run.train_until(3000)
    kill_learner(run)
    run.command.wait(1)
    assert AGAIN not in run.log
    assert json.loads((run.path / "summary.json").read_text())["status"] == "failed"
