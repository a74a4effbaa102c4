"""Who holds its group's actors back: named after some seconds, by most of the time of that group's actors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cli.root.stub_job import stub_job

from tianji_cli.plan.plan import Plan, PlannedProcess
from tianji_cli.root.bottleneck import BackPressure, Receiver, bound_by
from tianji_cli.root.observers.announcements import Announcements
from tianji_cli.wire.messages import Report
from tianji_cli.wire.reports import ActorReport


def plan() -> Plan:
    """Two groups of a learner and two actors each."""
    processes = [PlannedProcess(0, ("root",), None, "here", (), 1)]
    for group in range(2):
        processes.append(PlannedProcess(len(processes), ("buffer", "learner"), group, "here", (), 1))
        for _ in range(2):
            rank = len(processes)
            processes.append(PlannedProcess(rank, ("actor",), group, "here", (), 1, actors=(rank,)))
    return Plan(tuple(processes), "shm", "shm")


class Waiting:
    """Actors that wait for shares of the time, by rank and role."""

    def __init__(self) -> None:
        self.plan = plan()
        self.held = BackPressure(self.plan)
        self.now_s = 0.0
        self.waited_s: dict[int, dict[str, float]] = {}

    def go(self, seconds: int, shares: Mapping[int, Mapping[str, float]]) -> Receiver | None:
        found = None
        for _ in range(seconds):
            self.now_s += 1.0
            for rank, of_roles in shares.items():
                known = self.waited_s.setdefault(rank, {})
                for name, share in of_roles.items():
                    known[name] = known.get(name, 0.0) + share
                self.note(rank, known)
            found = self.held.current(self.now_s)
        return found

    def note(self, rank: int, waited_s: dict[str, Any]) -> None:
        said = ActorReport(waited_s=waited_s)
        self.held.note(
            self.plan.processes[rank],
            Report(rank=rank, incarnation=0, roles=[said], busy_s=[0.0], running_s=self.now_s),
        )


def test_a_role_is_named_once_actors_have_waited_for_it_for_some_seconds() -> None:
    waiting = Waiting()
    assert waiting.go(5, {2: {"tape": 1.0}, 3: {"tape": 1.0}}) is None
    assert waiting.go(1, {2: {"tape": 1.0}, 3: {"tape": 1.0}}) == Receiver("tape", 0)
    assert waiting.go(6, {2: {"tape": 0.0}, 3: {"tape": 0.0}}) is None, "it has caught up"


def test_less_than_half_of_a_group_s_time_is_no_fault_and_groups_are_told_apart() -> None:
    assert Waiting().go(9, {2: {"tape": 0.9}, 3: {"tape": 0.05}}) is None
    assert Waiting().go(9, {5: {"tape": 0.4, "judge": 0.6}, 6: {"judge": 0.5}}) == Receiver("judge", 1)


def test_a_restarted_actor_s_count_that_begins_anew_names_nobody() -> None:
    waiting = Waiting()
    waiting.go(3, {2: {"tape": 1.0}, 3: {"tape": 1.0}})
    waiting.go(5, {2: {"tape": 0.0}, 3: {"tape": 0.0}})
    waiting.note(2, {})
    assert waiting.held.current(waiting.now_s + 1) is None


def test_over_the_whole_session_all_the_time_that_actors_were_there_counts() -> None:
    waiting = Waiting()
    assert waiting.held.overall() is None
    waiting.go(1, {2: {"tape": 1.0}, 3: {"tape": 1.0}})
    assert waiting.held.overall() is None, "it was too short to tell"
    waiting.go(2, {2: {"tape": 1.0}, 3: {"tape": 1.0}})
    waiting.go(2, {2: {"tape": 0.0}, 3: {"tape": 0.0}})
    assert waiting.held.overall() == Receiver("tape", 0)
    waiting.go(1, {2: {"tape": 0.0}, 3: {"tape": 0.0}})
    assert waiting.held.overall() is None


def test_the_role_is_named_to_the_user_once() -> None:
    said: list[str] = []
    announcements = Announcements(stub_job(plan(), said))
    for waits_for in (None, Receiver("tape", 1), Receiver("tape", 1), None, Receiver("tape", 1)):
        announcements.check_waiting(waits_for)
    assert said == ["actors wait for tape (group 1), which claims its fragments too slowly or not at all"]
    assert "the role tape (group 1)" in bound_by(Receiver("tape", 1)).words
