"""Which processes the root takes for hanging, and what it says of training that stands still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from cli.root.stub_job import stub_job

from tianji_cli.config.loader import load_config
from tianji_cli.plan.graph import EXAMINER
from tianji_cli.plan.plan import Host, make_plan
from tianji_cli.root.observers import hangs
from tianji_cli.root.observers.hangs import HANGS_S, HangWatch
from tianji_cli.wire.messages import Report

EVALUATION = "experiment.evaluation={every_s=10, episodes=1, max_s=10.0}"
LEARNER, ACTOR, OTHER = 1, 2, 3


class Watched:
    """A job whose clock, reports and processes are a test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *overrides: str, actors: int = 1) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(hangs.time, "monotonic", lambda: self.now_s)
        config = load_config("configs/ppo_cartpole.toml", [f"distribution.actor.num={actors}", *overrides])
        plan = make_plan(config, [Host("here", (0, 1))])
        ranks = {process.rank for process in plan.trainers}
        self.said: list[str] = []
        self.aborted: list[tuple[set[int], str]] = []
        self.is_suspended = False
        pool = SimpleNamespace(
            ranks=ranks,
            is_suspended=lambda _rank: self.is_suspended,
            abort=lambda ranks, how: self.aborted.append((ranks, how)),
        )
        members = SimpleNamespace(registered=ranks)
        self.job = stub_job(plan, self.said, config=config, pool=pool, members=members)
        self.watch = HangWatch(self.job)

    def report(self, rank: int, running_s: float) -> None:
        roles: list[Any] = []
        report = Report.model_construct(rank=rank, incarnation=0, roles=roles, busy_s=[], running_s=running_s)
        self.watch.on_message(report)

    def tick(self, env_steps: int = 0, updates: int = 0) -> None:
        learner = SimpleNamespace(env_steps=env_steps, updates=updates)
        snapshot: Any = SimpleNamespace(learner=learner, produced=env_steps)
        self.watch.on_tick(snapshot)


def test_no_time_counts_in_which_an_examiner_or_the_root_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Watched(monkeypatch, EVALUATION, "environment.step_limit_s=1e6")
    (examiner,) = one.job.plan.carrying(EXAMINER)
    assert 10.0 + HANGS_S == 85.0

    def hanging(*, until_s: float, is_suspended: bool = False) -> list[set[int]]:
        one.is_suspended = is_suspended
        while one.now_s < until_s and not one.aborted:
            one.now_s += 1.0
            one.tick()
        return [ranks for ranks, _ in one.aborted]

    assert hanging(until_s=50.0) == []
    one.now_s = 200.0
    assert hanging(until_s=260.0) == [], "the root was asleep"
    assert hanging(until_s=400.0, is_suspended=True) == []
    assert hanging(until_s=475.0) == [], "it was asleep"
    assert hanging(until_s=490.0) == [{examiner.rank}]
    assert "does not come back from a step, an action or a picture after 85 s: ending it" in one.said[-1]


def test_a_process_hangs_that_is_silent_for_ten_times_as_long_as_ever_and_for_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Watched(monkeypatch, "environment.step_limit_s=60", actors=2)
    one.now_s = 1.0
    one.report(ACTOR, 0.0)
    one.report(OTHER, 0.0)
    one.now_s = 8.0
    one.report(ACTOR, 7.0)
    found = {}
    while one.now_s < 100.0:
        one.now_s += 1.0
        one.tick()
        for (rank,), how in one.aborted:
            found[rank] = (one.now_s, how)
        one.aborted.clear()
        assert one.job.stuck == (None if one.now_s <= 11.0 else OTHER if one.now_s <= 78.0 else ACTOR)
        one.report(OTHER, one.now_s) if one.now_s > 62.0 else None
    words = "in a step, an action or a picture"
    assert found == {OTHER: (62.0, f"hung for 60 s {words}"), ACTOR: (79.0, f"hung for 70 s {words}")}
    one.tick(env_steps=1)
    assert one.job.stuck is None, "something was made since"


def test_where_processes_cannot_die_alone_a_hang_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Watched(monkeypatch, "environment.step_limit_s=60")
    failures: list[str] = []
    one.job.bound, one.job.fail = True, failures.append
    one.job.cause = lambda rank, what: f"rank {rank}{what}"
    for second in range(1, 62):
        one.now_s = float(second)
        one.tick()
    assert failures == [f"rank {ACTOR} hung for 60 s in a step, an action or a picture"]


def test_what_is_late_is_said_once_and_that_it_is_heard_of_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Watched(monkeypatch, "environment.step_limit_s=1e6")
    for second in range(1, 12):
        one.now_s = float(second)
        one.report(LEARNER, one.now_s)
        one.tick()
    one.report(ACTOR, 1.0)
    assert one.said == ["nothing heard of actor 0 (group 0) for 10 s", "actor 0 (group 0) is heard of again"]


def test_a_training_in_which_nothing_goes_on_says_so_once_and_again_when_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Watched(monkeypatch, "environment.step_limit_s=1e6")
    one.job.pool.ranks = set()
    for second, steps, updates in ((0, 0, 0), (29, 0, 0), (58, 5, 0), (87, 5, 1), (116, 5, 1)):
        one.now_s = float(second)
        one.tick(steps, updates)
    assert one.said == [], "something was made or learnt in every half minute"
    for second in (118, 200):
        one.now_s = float(second)
        one.tick(5, 1)
    assert one.said == ["no environment step and no update for 30 s"]
    one.tick(6, 1)
    assert one.said[1:] == ["training goes on"]
    assert one.job.worked_s == 3 * hangs.PAUSE_S, "pauses count for two seconds each"
