"""This host as a node whose fork server does not listen: nothing is waited for, and nothing is forgotten."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.errors import ProcessExit
from tianji_cli.launch import node as node_module
from tianji_cli.launch.node import SILENT_S, LocalNode, Silence
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import make_plan
from tianji_cli.wire.messages import HERE, Began, Exited, Kill, StartNoMore

MANY = 20_000
"""More requests than any buffer of a socket takes."""


def job_of(place: Path) -> Job:
    """A job whose workers find no root, and end."""
    job = load_config("configs/ppo_cartpole.toml")
    (place / "logs").mkdir(exist_ok=True)
    return Job("", dump_config(job), make_plan(job), place, place, path=tuple(sys.path))


def start_actor(node: LocalNode) -> int:
    return node.start(rank=2, incarnation=0, env_steps=0).number


def ended(number: int) -> Exited:
    """News of the end of a worker, in a way that is not known."""
    return Exited(node=HERE, number=number, exit=ProcessExit())


def suspend(node: LocalNode) -> None:
    os.kill(node.pid, signal.SIGSTOP)
    while node.suspended_server is None:
        node.wait(0.01)


@pytest.fixture
def node() -> Iterator[LocalNode]:
    with LocalNode() as node:
        yield node


def test_requests_wait_for_no_server_and_all_are_answered_for_when_it_is_ended(node: LocalNode) -> None:
    suspend(node)
    numbers = [start_actor(node) for _ in range(MANY)]
    assert node.check() == []
    node.send(StartNoMore())
    assert node.check() == [ended(number) for number in numbers]


def test_what_the_server_did_not_take_at_once_it_takes_when_it_goes_on(node: LocalNode) -> None:
    suspend(node)
    for _ in range(MANY):
        start_actor(node)
    os.kill(node.pid, signal.SIGCONT)
    while not node.server_lost:
        node.wait(1.0)
        node.check()
    assert "says what the job is before it asks for a worker" in node.cause_of_loss()
    assert node.cause_of_loss() == node.failure


def test_requests_that_the_server_cancels_are_answered_for(node: LocalNode, tmp_path: Path) -> None:
    node.begin(job_of(tmp_path))
    numbers = [start_actor(node) for _ in range(20)]  # The server is still starting, and reads all at once.
    node.send(StartNoMore())
    while not (news := node.check()):
        node.wait(1.0)
    assert news == [ended(number) for number in numbers]


def test_one_job_may_follow_another_and_nothing_said_of_the_first_concerns_it(
    node: LocalNode, tmp_path: Path
) -> None:
    job = job_of(tmp_path)
    for _ in range(2):
        node.begin(job)
        node.send(StartNoMore())
        late = start_actor(node)
        assert node.check() == [ended(late)], "it came too late"
        node.end_job()
        node.begin(job)
        number = start_actor(node)
        assert not node.starts_no_more
        news: list[Began | Exited] = []
        while not (news and isinstance(news[-1], Exited)):
            node.wait(1.0)
            news += node.check()
        assert [(type(one), one.number) for one in news] == [(Began, number), (Exited, number)]
        node.send(StartNoMore())
        node.end_job()
    assert not node.server_lost


def test_a_worker_that_is_killed_before_it_begins_is_killed_when_it_does(
    node: LocalNode, tmp_path: Path
) -> None:
    node.begin(job_of(tmp_path))
    suspend(node)
    number = start_actor(node)
    node.send(Kill(number=number))
    os.kill(node.pid, signal.SIGCONT)
    news: list[Began | Exited] = []
    while not (news and isinstance(news[-1], Exited)):
        node.wait(1.0)
        news += node.check()
    assert news[-1] == Exited(node=HERE, number=number, exit=ProcessExit(status=-signal.SIGKILL))


@pytest.mark.parametrize(
    ("turns_s", "too_long"),
    [
        pytest.param([1.0] * int(SILENT_S), False, id="as long as it may last"),
        pytest.param([1.0] * int(SILENT_S) + [0.1], True, id="longer"),
        pytest.param([1.0, 90.0, 1.0], False, id="suspended"),
        pytest.param([90.0] + [1.0] * int(SILENT_S) + [0.1], True, id="suspended, then longer"),
    ],
)
def test_silence_counts_only_while_its_process_is_awake(
    monkeypatch: pytest.MonkeyPatch, turns_s: list[float], too_long: bool
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(node_module.time, "monotonic", lambda: now_s)
    silence = Silence()
    for turn_s in turns_s:
        now_s += turn_s
        answer = silence.is_too_long()
    assert answer is too_long
