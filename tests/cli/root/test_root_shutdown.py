"""Who stops when: buffers, then those who hear from them; and nobody is named twice."""

from types import SimpleNamespace
from typing import Any

import pytest
from cli.root.stub_job import stub_job

from tianji_cli.plan.graph import ChannelEdge
from tianji_cli.plan.plan import Plan, PlannedProcess
from tianji_cli.root.shutdown import (
    SAVE_LIMIT_S,
    SILENT_S,
    STOP_LIMIT_S,
    WIND_DOWN_LIMIT_S,
    Shutdown,
    StoppingOrder,
)

CHANNELS = (
    ChannelEdge("fragments", ("actor",), ("buffer",), drained=True),
    ChannelEdge("arrivals", ("buffer",), ("learner",), drained=True),
    ChannelEdge("priorities", ("learner",), ("buffer",)),
    ChannelEdge("headers", ("learner",), ("follower",)),
    ChannelEdge("fragments-recorder", ("actor",), ("recorder",), drained=True),
)


def plan(*roles: tuple[str, ...], groups: tuple[int | None, ...] = ()) -> Plan:
    of_rank = groups or (None, *(0 for _ in roles[1:]))
    processes = (
        PlannedProcess(rank, names, of_rank[rank], "here", (), 1) for rank, names in enumerate(roles)
    )
    return Plan(tuple(processes), "shm", "shm", CHANNELS)


PARTED = plan(("root",), ("buffer",), ("learner",), ("actor",))
COLOCATED = plan(("root",), ("buffer", "learner"), ("actor",))


def test_a_learner_beside_its_buffer_stops_at_once() -> None:
    order = StoppingOrder(COLOCATED)
    assert order.next({1}, set()) == {1}
    assert order.next({1}, set()) == set()


def test_a_learner_stops_when_its_buffer_has_said_its_last_word_though_it_still_saves() -> None:
    order = StoppingOrder(PARTED)
    assert order.next({1, 2}, set()) == {1}
    assert order.next({1, 2}, set()) == set()
    assert order.next({1, 2}, {1}) == {2}
    assert order.next({1, 2}, {1}) == set()


def test_a_learner_whose_buffer_has_died_stops_too() -> None:
    order = StoppingOrder(PARTED)
    assert order.next({1, 2}, set()) == {1}
    assert order.next({2}, set()) == {2}


SEVERAL = plan(("root",), ("buffer", "learner"), ("follower",), ("recorder",), ("actor",))
TWO_GROUPS = plan(
    ("root",), ("buffer",), ("learner",), ("actor",), ("buffer",), ("learner",), ("actor",),
    groups=(None, 0, 0, 0, 1, 1, 1),
)  # fmt: skip


def test_followers_and_roles_of_the_user_stop_with_their_learner() -> None:
    order = StoppingOrder(SEVERAL)
    assert order.next({1, 2, 3}, set()) == {1, 2, 3}
    assert order.next({1, 2, 3}, {3}) == set()


def test_a_buffer_that_is_late_keeps_no_other_group_waiting() -> None:
    order = StoppingOrder(TWO_GROUPS)
    assert order.next({1, 2, 4, 5}, set()) == {1, 4}
    assert order.next({1, 2, 4, 5}, {1}) == {2}
    assert order.next({4, 5}, {1, 2, 4}) == {5}


class StagedShutdown:
    """A shutdown whose clock, processes and messages are a test's."""

    def __init__(self, plan: Plan, ranks: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.told: list[tuple[int, str]] = []
        self.killed: list[set[int]] = []
        self.given_up: list[set[int]] = []
        self.said: list[str] = []
        self.pool = SimpleNamespace(ranks=ranks, abort=lambda ranks, _: self.killed.append(set(ranks)))
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        control: Any = SimpleNamespace(
            send=lambda rank, message: self.told.append((rank, type(message).__name__))
        )
        actors = {process.rank for process in plan.carrying("actor")}
        self.job = stub_job(
            plan,
            self.said,
            config=SimpleNamespace(
                distribution=SimpleNamespace(buffer=SimpleNamespace(save_with_checkpoint=True))
            ),
            control=control,
            pool=self.pool,
            producers=actors,
            receivers={process.rank for process in plan.trainers} - actors,
            members=SimpleNamespace(stopped=set()),
            fail=self.said.append,
        )
        deaths: Any = SimpleNamespace(lose=self.lose)
        self.shutdown = Shutdown(self.job, deaths)

    def lose(self, ranks: set[int], _cause: str) -> bool:
        self.given_up.append(set(ranks))
        return False


def test_actors_stop_while_the_others_make_ready_and_are_killed_when_none_has_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = StagedShutdown(
        plan(("root",), ("buffer",), ("learner",), ("actor",), ("actor",)), {1, 2, 3, 4}, monkeypatch
    )
    shutdown = stage.shutdown
    shutdown.begin()
    assert sorted(stage.told) == [(1, "WindDown"), (2, "WindDown"), (3, "Stop"), (4, "Stop")]
    assert not shutdown.actors_are_gone()
    stage.now += 1.0
    stage.pool.ranks = {1, 2, 4}
    assert not shutdown.actors_are_gone()
    assert shutdown.deadline == stage.now + WIND_DOWN_LIMIT_S, (
        "one has stopped, so the other has its time again"
    )
    for _ in range(2):
        stage.now = shutdown.deadline
        assert not shutdown.actors_are_gone()
    assert stage.killed == [{4}, {4}]
    (said,) = stage.said
    assert "did not stop within" in said
    stage.pool.ranks = {1, 2}
    assert shutdown.actors_are_gone()


def test_many_actors_that_close_at_once_have_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = set(range(2, 18))
    stage = StagedShutdown(plan(("root",), ("learner",), *[("actor",)] * 16), {1, *actors}, monkeypatch)
    assert not stage.shutdown.actors_are_gone()
    assert stage.shutdown.deadline == stage.now + 8.0
    stage.pool.ranks = {1, 17}
    assert not stage.shutdown.actors_are_gone()
    assert stage.shutdown.deadline == stage.now + WIND_DOWN_LIMIT_S, "one alone hangs"
    assert stage.killed == []


def test_a_buffer_has_time_to_save_and_a_learner_less_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = StagedShutdown(PARTED, {1, 2}, monkeypatch)
    shutdown, began = stage.shutdown, stage.now
    assert not shutdown.all_are_gone()
    assert (stage.told, shutdown.deadline) == ([(1, "Stop")], began + SILENT_S)
    stage.now = shutdown.deadline
    assert not shutdown.all_are_gone()
    (said,) = stage.said
    assert "to save its replay" in said
    assert shutdown.deadline == began + SAVE_LIMIT_S
    stage.job.members.stopped.add(1)
    assert not shutdown.all_are_gone()
    assert stage.told[1:] == [(2, "Stop")]
    assert shutdown.deadline == stage.now + STOP_LIMIT_S
    stage.now = shutdown.deadline
    assert not shutdown.all_are_gone()
    assert stage.given_up == stage.killed == [{2}]
    assert stage.said[1:] == ["learner (group 0) did not stop in time and was killed"]
    stage.pool.ranks = set()
    assert shutdown.all_are_gone()
    assert shutdown.deadline == float("inf")
