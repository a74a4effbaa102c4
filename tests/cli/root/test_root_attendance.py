"""Actors, and inference apart, hear which actors of their group are there."""

from typing import Any

import pytest
from cli.root.stub_job import stub_job

from tianji_cli.plan.plan import Plan, PlannedProcess
from tianji_cli.root.observers.attendance import Attendance
from tianji_cli.wire.messages import Attending, Register

PLAN = Plan(
    (
        PlannedProcess(0, ("root",), None, "here", (), 1),
        PlannedProcess(1, ("buffer", "learner"), 0, "here", (), 1),
        PlannedProcess(2, ("actor",), 0, "here", (), 1, actors=(0,)),
        PlannedProcess(3, ("actor", "actor"), 0, "there", (), 1, actors=(1, 2)),
        PlannedProcess(4, ("buffer", "learner"), 1, "here", (), 1),
        PlannedProcess(5, ("actor",), 1, "here", (), 1, actors=(3,)),
        PlannedProcess(6, ("inference",), 0, "here", (), 1),
    ),
    "shm",
    "zmq",
)


@pytest.fixture
def sent() -> dict[int, list[int]]:
    return {}


@pytest.fixture
def job(sent: dict[int, list[int]]) -> Any:
    class Control:
        def send(self, rank: int, message: Attending) -> None:
            sent[rank] = message.actors

    return stub_job(PLAN, [], control=Control())


def registered(rank: int) -> Register:
    return Register(rank=rank, incarnation=1, pid=1, address="")


def test_where_all_are_there_nobody_is_told(job: Any, sent: dict[int, list[int]]) -> None:
    attendance = Attendance(job)
    attendance.on_begin()
    attendance.on_tick(None)  # type: ignore[arg-type]
    attendance.on_message(registered(2))
    assert sent == {}


def test_of_a_group_those_that_are_there_hear_who_else_is(job: Any, sent: dict[int, list[int]]) -> None:
    attendance = Attendance(job)
    job.vacant |= {3}
    attendance.on_begin()
    assert sent == {2: [0], 6: [0]}
    sent.clear()
    attendance.on_message(registered(2))
    attendance.on_message(registered(1))
    assert sent == {2: [0]}, "an actor that was restarted hears it, too"
    sent.clear()
    attendance.on_tick(None)  # type: ignore[arg-type]
    assert sent == {}
    job.vacant.clear()
    attendance.on_tick(None)  # type: ignore[arg-type]
    assert sent == {2: [0, 1, 2], 3: [0, 1, 2], 6: [0, 1, 2]}


def test_a_parked_actor_is_not_there_and_hears_nothing_when_it_begins(
    job: Any, sent: dict[int, list[int]]
) -> None:
    attendance = Attendance(job)
    attendance.on_begin()
    job.parked |= {3}
    attendance.on_tick(None)  # type: ignore[arg-type]
    assert sent == {2: [0], 6: [0]}
    sent.clear()
    attendance.on_message(registered(3))  # It would look for itself among the others.
    assert sent == {}
