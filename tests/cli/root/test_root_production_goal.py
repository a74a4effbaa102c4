"""Production is stopped once what is under way suffices, and asked for again if some of that is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tianji_cli.config.loader import load_config
from tianji_cli.files.counters import ProductionFile, ProductionPage
from tianji_cli.files.saved import Progress
from tianji_cli.plan.plan import Host, make_plan
from tianji_cli.root.job_view import Overview
from tianji_cli.root.observers import goals as production_goal
from tianji_cli.root.observers.goals import ProductionGoal
from tianji_cli.wire.messages import Allow, Register, Report
from tianji_cli.wire.reports import BufferReport, LearnerReport

EACH = 64 * 64  # Env steps in a fragment.
ROLLOUT = 2 * EACH
ACTORS = 4


def registered(rank: int) -> Register:
    return Register(rank=rank, incarnation=1, pid=7, address="")


class Told:
    """In place of the control channel: what each rank was told last."""

    def __init__(self) -> None:
        self.fragments: dict[int, int | None] = {}

    def send(self, rank: int, message: Any) -> bool:
        assert isinstance(message, Allow)
        self.fragments[rank] = message.fragments
        return True


class Job:
    """Four actors whose counters a test moves, and a learner that receives what it says."""

    def __init__(self, goal: int, *overrides: str, earlier: int = 0) -> None:
        settings = (f"experiment.stop={{env_steps={goal}}}", f"distribution.actor.num={ACTORS}", *overrides)
        config = load_config("configs/ppo_cartpole.toml", [*settings, f"training.rollout_steps={ROLLOUT}"])
        self.plan = make_plan(config, [Host("here", (0, 1))])
        self.file = ProductionFile(None, ACTORS)
        self.pages = [ProductionPage(self.file, actor) for actor in range(ACTORS)]
        self.pushed = [0] * ACTORS
        self.overview = Overview(config, self.plan, self.file, [Progress(env_steps=earlier)])
        self.control = Told()
        self.job: Any = SimpleNamespace(
            config=config,
            plan=self.plan,
            overview=self.overview,
            control=self.control,
            killed=set(),
            lost_ranks=set(),
            parked=set(),
            near_goal=False,
        )
        self.goal = ProductionGoal(self.job)
        self.goal.on_begin()

    def make(self, actor: int, fragments: int, begun: int = 0) -> None:
        """Push fragments, and begin another one with so many samples."""
        for _ in range(fragments):
            self.pages[actor].begin(1)
            self.pages[actor].count(EACH)
            self.pages[actor].push()
        self.pages[actor].count(begun)
        self.pushed[actor] += fragments

    def receive(self, actor: int, fragments: int) -> None:
        counts = (fragments * EACH, 0, 0, fragments, fragments * EACH)
        buffer = BufferReport(receptions=((actor, 0, *counts),))
        learner = LearnerReport(env_steps=fragments * EACH, rho=4.0)
        report = Report(rank=1, incarnation=0, roles=[buffer, learner], busy_s=[0.0, 0.0], running_s=1.0)
        self.overview.workers[1].update(report)

    def look(self, killed: set[tuple[int, int]] = frozenset()) -> dict[int, int | None]:  # type: ignore[assignment]
        self.job.killed = set(killed)
        self.goal.deadline = 0.0
        self.goal.on_turn()
        return self.control.fragments


ALL = range(2, 2 + ACTORS)  # Ranks of the actors.


def test_nothing_is_said_before_enough_is_under_way() -> None:
    job = Job(4 * EACH)
    job.make(0, 1, begun=1)
    job.make(1, 1)
    assert job.look() == {}


def test_all_are_told_to_begin_no_more_once_enough_has_begun_though_nothing_has_arrived() -> None:
    job = Job(4 * EACH)
    for actor in range(ACTORS):
        job.make(actor, 0, begun=1)
    assert job.look() == dict.fromkeys(ALL, 0)


def test_what_does_not_fill_a_rollout_does_not_suffice() -> None:
    job = Job(3 * EACH)
    for actor in range(3):
        job.make(actor, 1)
    assert job.look() == {}
    job.make(3, 0, begun=1)
    assert job.look() == dict.fromkeys(ALL, 0)


def test_as_many_go_on_as_make_up_for_what_a_killed_actor_had_begun() -> None:
    job = Job(4 * EACH)
    for actor in range(ACTORS):
        job.make(actor, 0, begun=1)
    job.look()
    job.overview.ended[3, 0] = job.file.read(3)
    job.file.begin(3, 1)
    said = job.look(killed={(3, 0)})
    assert sorted(fragments for fragments in said.values() if fragments is not None) == [0, 0, 1, 1]


def test_actors_of_one_process_make_up_between_them_for_what_was_lost() -> None:
    job = Job(4 * EACH, "distribution.inference.num=1")
    for actor in range(ACTORS):
        job.make(actor, 0, begun=1)
    assert job.look() == {3: 0, 4: 0}, "each rank has two actors"
    for actor in (2, 3):
        job.overview.ended[actor, 0] = job.file.read(actor)
        job.file.begin(actor, 1)
    assert job.look(killed={(2, 0), (3, 0)}) == {3: 2, 4: 0}


def test_what_was_received_of_a_killed_actor_counts() -> None:
    job = Job(4 * EACH)
    job.make(0, 2, begun=5)
    job.receive(0, 2)
    job.make(1, 1)
    job.make(2, 1)
    assert job.look(killed={(0, 0)}) == dict.fromkeys(ALL, 0)


def test_an_actor_that_is_restarted_is_told_too() -> None:
    job = Job(4 * EACH)
    job.goal.on_message(registered(2))
    assert job.control.fragments == {}
    for actor in range(ACTORS):
        job.make(actor, 0, begun=1)
    job.look()
    job.control.fragments.clear()
    job.goal.on_message(registered(2))
    job.goal.on_message(registered(1))  # The learner makes no fragments.
    assert job.control.fragments == {2: 0}


def test_all_go_on_for_good_if_what_suffices_does_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(4 * EACH)
    for actor in range(ACTORS):
        job.make(actor, 1)
    job.look()
    monkeypatch.setattr(production_goal, "STALL_S", -1.0)
    monkeypatch.setattr(Overview, "session_train_s", -1.0)
    assert job.look() == dict.fromkeys(ALL)
    assert job.goal.deadline == float("inf")
    job.control.fragments.clear()
    job.goal.on_message(registered(2))
    assert job.control.fragments == {}, "one that is restarted goes on, too"


def test_counters_are_looked_at_the_more_often_the_sooner_the_goal_may_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job(16 * EACH)
    looks = []
    # (seconds, fragments made by then): 8 a second, and 4 actors may each begin one more before a look.
    for now, made in ((10.0, 0), (10.2, 4), (11.0, 8), (11.25, 12)):
        monkeypatch.setattr("time.monotonic", lambda now=now: now)
        job.make(0, made - sum(job.pushed))
        job.goal.on_turn()
        looks.append(round(job.goal.deadline - now, 3))
    half_way_s = 4 / 8 / 2
    assert looks == [0.5, 0.3, half_way_s, 0.02]
    assert job.control.fragments == {}


def test_what_earlier_sessions_received_counts() -> None:
    job = Job(6 * EACH, earlier=2 * EACH)
    job.make(0, 3)
    assert job.look() == {}
    job.make(0, 1)
    assert job.look() == dict.fromkeys(ALL, 0)


def test_in_step_and_without_the_rule_nothing_is_counted() -> None:
    in_step = Job(4 * EACH, 'distribution.mode="sync"', "distribution.actor.num=2")
    assert in_step.goal.deadline == float("inf")
    assert Job(4 * EACH, "experiment.stop={wall_s=5}").goal.deadline == float("inf")
