"""The bottleneck of a job, from its roles' reports: lately and over all, once enough is known."""

from __future__ import annotations

import errno
import itertools
import os
from dataclasses import replace
from typing import Any

import pytest

from tianji_algos.models.settings import CNNActorCriticSettings, MLPActorCriticSettings
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings
from tianji_cli.config.schema import Component, JobConfig, UserRoleSection
from tianji_cli.files.counters import ProductionFile, ProductionPage
from tianji_cli.limits import CpuLimit
from tianji_cli.plan.plan import Host, Plan, make_plan
from tianji_cli.root.bottleneck import BOUND_BY_WAITING, MOST_MARKS, WorkLog
from tianji_cli.root.job_view import Overview, WorkerView, role_states
from tianji_cli.telemetry.snapshot import Account
from tianji_cli.wire.messages import PageReport, Report
from tianji_cli.wire.reports import ActorReport, BufferReport, FollowerReport, LearnerReport, UserReport

RHO = 4.0
HOST = Host("here", (0, 1))


def job(actors: int = 2, **distribution: Any) -> JobConfig:
    return JobConfig(
        experiment={"name": "x", "stop": {"env_steps": 10}, "eval_episodes": 0},
        environment={"type": "gym", "id": "CartPole-v1"},
        agent=Component(type="ppo", settings=PPOAgentSettings()),
        model=Component(type="mlp_actor_critic", settings=MLPActorCriticSettings()),
        training=Component(type="ppo", settings=PPOSettings()),
        distribution={"actor": {"num": actors}, **distribution},
    )


class Pace:
    """A job that goes on at a pace, and whose processes report it.

    Args:
        config: the job.
        version: that its learner begins with.
    """

    def __init__(self, config: JobConfig, version: int = 0) -> None:
        self.plan: Plan = make_plan(config, [HOST])
        self.idle = self.idle_s = 0.0
        self.log = WorkLog(config, self.plan, lambda: self.idle_s)
        self.views = {process.rank: WorkerView() for process in self.plan.processes}
        self.shown: dict[str, float | None] = {}
        self.now_s = 0.0
        self.made = float(version)
        self.incarnation = dict.fromkeys(range(len(self.plan.processes)), 0)
        self.busy = {process.rank: [0.0] * len(process.roles) for process in self.plan.processes}
        self.running = dict.fromkeys(self.busy, 0.0)
        self.produced = dict.fromkeys(range(self.plan.num_actors), 0)
        self.received = self.uses = 0
        self.waited_s = 0.0
        self.suspended: set[int] = set()
        self.report()

    def report(self) -> None:
        said = {
            "actor": ActorReport(waited_s={"tape": self.waited_s}),
            "buffer": BufferReport(receptions=((0, 0, self.received, 0, 0, 1, self.received),)),
            "learner": LearnerReport(rho=RHO, version=int(self.made), session_consumed=self.uses),
            "follower": FollowerReport(version=int(self.made)),
        }
        for process in self.plan.trainers:
            report = Report(
                rank=process.rank,
                incarnation=self.incarnation[process.rank],
                roles=[said.get(role, UserReport()) for role in process.roles],
                busy_s=list(self.busy[process.rank]),
                running_s=self.running[process.rank],
            )
            self.views[process.rank].update(report)
            self.views[process.rank].pid = 1
            self.log.note(process, report, {actor: self.produced[actor] for actor in process.actors})

    def go(
        self,
        seconds: float,
        *,
        actors: float,
        learner: float,
        buffer: float = 0.01,
        versions: float = 5.0,
        uses_per_s: float = 8000.0,
        waiting: float = 0.0,
    ) -> list[str | None]:
        """Go on for so long, each role busy for a share of it; gives the names in between.

        A busy actor makes 1000 samples a second; all wait for a share of the time for a role of the user's.
        """
        names: list[str | None] = []
        shares = {"actor": actors, "learner": learner, "follower": learner, "buffer": buffer}
        for _ in range(round(seconds / 0.2)):
            self.now_s += 0.2
            self.idle_s += 0.2 * self.idle
            self.waited_s += 0.2 * waiting
            for process in self.plan.trainers:
                if process.rank in self.suspended:
                    continue
                self.running[process.rank] += 0.2
                for i, role in enumerate(process.roles):
                    self.busy[process.rank][i] += 0.2 * shares.get(role, 0.0)
            for actor in self.produced:
                self.produced[actor] += round(200 * actors)
            self.received += round(200 * actors) * len(self.produced)
            self.uses += round(0.2 * uses_per_s * learner)
            self.made += 0.2 * versions if learner else 0.0
            self.report()
            found = self.log.current(self.now_s)
            names.append(None if found is None else found.kind)
            states = role_states(
                self.plan, self.views, lambda view: view.busy(self.now_s, self.log.window_began(self.now_s))
            )
            self.shown = {state.role: state.busy for state in states}
        return names


def test_how_busy_roles_are_is_shown_of_the_seconds_that_the_bottleneck_is_found_in() -> None:
    pace = Pace(job(1))
    pace.go(10, actors=0.9, learner=0.3)
    assert pace.go(2, actors=0.3, learner=0.9)[-1] == "sample-bound", "three of the last five seconds were"
    work = pace.log._marks[-1].done.since(pace.log._marks[0].done)
    assert pace.shown["actor"] == pytest.approx(work.actors.busy)
    assert work.actors.busy == pytest.approx(0.66, abs=0.03)
    learner, buffer = pace.shown["learner"], pace.shown["buffer"]
    assert learner is not None
    assert buffer is not None
    assert learner + buffer == pytest.approx(work.learners.busy)


def test_how_busy_roles_are_is_of_the_last_seconds_whatever_holds_the_job_back() -> None:
    pace = Pace(job(1))
    pace.go(10, actors=0.9, learner=0.3)
    names = pace.go(200, actors=0.1, learner=0.05, waiting=0.9, versions=0.01)
    assert names[-1] == "communication-bound"
    assert pace.shown["actor"] == pytest.approx(0.1)
    pace.go(6, actors=0.9, learner=0.3)
    assert pace.shown["actor"] == pytest.approx(0.9)
    pace.suspended = {process.rank for process in pace.plan.carrying("learner")}
    pace.go(600, actors=0.2, learner=0.0)
    assert pace.shown["actor"] == pytest.approx(0.2)
    assert all(len(view._marks) <= MOST_MARKS for view in pace.views.values())


def test_a_worker_that_has_ended_or_begun_anew_is_busy_with_nothing_of_before() -> None:
    pace = Pace(job(1))
    pace.go(10, actors=1.0, learner=0.5)
    rank = pace.plan.carrying("actor")[0].rank
    pace.incarnation[rank], pace.busy[rank], pace.running[rank] = 1, [0.0], 0.0
    pace.go(0.4, actors=0.5, learner=0.5)
    assert pace.shown["actor"] == pytest.approx(0.5)
    pace.views[rank].pid = None
    assert pace.views[rank].busy(pace.now_s, pace.now_s - 5) is None


def test_the_slower_side_is_named() -> None:
    # Two actors feed 2 x 1000 x 4 = 8000 uses/s, exactly what the learner makes.
    assert Pace(job(2)).go(6, actors=1, learner=1)[-1] == "balanced"
    assert Pace(job(1)).go(6, actors=1, learner=0.5)[-1] == "sample-bound"
    assert Pace(job(4)).go(6, actors=0.5, learner=1)[-1] == "training-bound"


def test_the_network_is_named_where_it_holds_the_learner_back_and_a_smaller_one_exists() -> None:
    large = CNNActorCriticSettings(encoder="impala_large")
    settings = [large, CNNActorCriticSettings(encoder="impala_small"), MLPActorCriticSettings()]
    for of_model, named in zip(settings, (True, False, False), strict=True):
        model = Component(type="model", settings=of_model)
        pace = Pace(job(4).model_copy(update={"model": model}))
        pace.go(6, actors=0.5, learner=1)
        for found in (pace.log.current(pace.now_s), pace.log.overall(6.0)):
            assert found is not None
            assert found.kind == "training-bound"
            assert ("model.encoder = 'impala_small' takes less" in found.words) is named
        pace = Pace(job(1).model_copy(update={"model": model}))
        pace.go(6, actors=1, learner=0.3)
        assert "impala" not in str(pace.log.overall(6.0))


@pytest.mark.parametrize("actors", [0.2, 0.99])
def test_learners_that_follow_change_nothing_of_who_is_slower(actors: float) -> None:
    alone, several = (Pace(job(1, learner={"num": num})) for num in (1, 2))
    names = [pace.go(4, actors=actors, learner=0.5)[-1] for pace in (alone, several)]
    assert names[0] == names[1] is not None


def test_groups_add_up() -> None:
    alone, several = (Pace(job(1, groups=groups)) for groups in (1, 2))
    for pace in (alone, several):
        pace.go(4, actors=0.99, learner=0.5)
    of_one, of_both = alone.log._total(), several.log._total()
    assert of_both.actors.capacity == pytest.approx(2 * of_one.actors.capacity)
    assert of_both.learners.capacity == pytest.approx(2 * of_one.learners.capacity)


@pytest.mark.parametrize(
    ("distribution", "idle", "said"),
    [
        ({}, 0.7, "0.7 of 2 cores are idle: distribution.actor.num = 2 with distribution.pin_cores = false"),
        ({"pin_cores": False}, 0.7, "0.7 of 2 cores are idle: distribution.actor.num = 2 would use them"),
        ({}, 0.2, "more actors, or more environments in each, would help"),
        ({"hosts": 2}, 0.7, "more actors, or more environments in each, would help"),
    ],
)
def test_what_would_use_an_idle_core_is_said_if_there_is_one(
    distribution: dict[str, Any], idle: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    config = job(1, **distribution)
    pace = Pace(config)
    if config.distribution.hosts.max > 1:
        pace.log = WorkLog(config, make_plan(config, [HOST, Host("there", (0, 1))]), lambda: pace.idle_s)
    pace.idle = idle
    pace.go(6, actors=1, learner=0.25)
    for named in (pace.log.current(pace.now_s), pace.log.overall(6.0)):
        assert named is not None
        assert named.kind == "sample-bound"
        assert said in named.words


def test_cores_of_the_user_s_roles_are_among_those_that_pins_would_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    role = UserRoleSection(type="mine:Judge", settings=PPOSettings(), cores=1)
    pace = Pace(job(1).model_copy(update={"roles": {"judge": role}}))
    pace.idle = 1.0
    pace.go(6, actors=1, learner=0.25)
    assert "distribution.actor.num = 2 with distribution.pin_cores = false" in str(pace.log.current(6.0))


def test_a_buffer_beside_the_learner_takes_the_learners_time() -> None:
    # 8000 uses in a second of which the buffer took as much again: 4000 uses/s against 8000.
    assert Pace(job(2)).go(6, actors=0.5, learner=0.5, buffer=0.5)[-1] == "training-bound"


def test_nothing_is_named_before_two_seconds_of_updates() -> None:
    pace = Pace(job(1))
    assert set(pace.go(20, actors=1, learner=0)) == {None}, "a warm-up tells nothing"
    names = pace.go(4, actors=1, learner=0.2)
    assert set(names[:10]) == {None}
    assert set(names[12:]) == {"sample-bound"}


def test_a_run_with_rollouts_of_many_seconds_is_named_once_it_has_made_two() -> None:
    pace = Pace(job(1))
    names = pace.go(60, actors=1, learner=0.4, versions=0.1)
    assert set(names[:95]) == {None}
    assert set(names[-100:]) == {"sample-bound"}


def test_a_clock_of_idle_cores_that_cannot_be_read_now_and_then_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pace = Pace(job(1))
    readable = pace.log._idle_s

    def unreadable() -> float:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for clock, name in ((unreadable, None), (readable, "sample-bound"), (unreadable, "sample-bound")):
        monkeypatch.setattr(pace.log, "_idle_s", clock)
        assert pace.go(10, actors=0.9, learner=0.3)[-1] == name


def test_a_window_forgets_what_was_long_ago() -> None:
    pace = Pace(job(1))
    assert pace.go(60, actors=1, learner=0.5)[-1] == "sample-bound"
    assert pace.go(12, actors=0.4, learner=1, uses_per_s=1600)[-1] == "training-bound"
    assert len(pace.log._marks) < 40


def test_two_sides_near_the_border_do_not_take_turns_on_the_screen() -> None:
    pace = Pace(job(2))
    names: list[str | None] = []
    for _ in range(30):  # 8000 uses/s would be in limiter with up to 8889.
        names += pace.go(3, actors=1, learner=0.9, uses_per_s=8400)
        names += pace.go(3, actors=1, learner=0.9, uses_per_s=9600)
    changes = sum(before != after for before, after in itertools.pairwise(names))
    assert changes <= 2
    assert pace.go(9, actors=1, learner=0.8, uses_per_s=10_000)[-1] == "sample-bound"


def test_waiting_of_both_sides_is_the_way_between_them() -> None:
    assert Pace(job(2)).go(6, actors=0.3, learner=0.3)[-1] == "communication-bound"


def test_in_step_nobodys_waiting_is_a_fault() -> None:
    assert Pace(job(2, mode="sync")).go(6, actors=0.3, learner=0.3)[-1] == "in step"


def test_one_process_is_named_by_what_most_of_it_goes_to() -> None:
    pace = Pace(job(2, transport="inproc"))
    assert pace.go(6, actors=0.1, learner=0.7)[-1] == "training-bound"
    named = pace.log.current(pace.now_s)
    assert named is not None
    assert "the learner 78%, the actors 22%" in named.words


def test_what_a_restarted_actor_did_before_is_not_forgotten() -> None:
    pace = Pace(job(1))
    pace.go(6, actors=1, learner=0.5)
    rank = pace.plan.carrying("actor")[0].rank
    pace.incarnation[rank] += 1
    pace.busy[rank], pace.running[rank], pace.produced[0] = [0.0], 0.0, 0
    assert set(pace.go(6, actors=1, learner=0.5)) == {"sample-bound"}
    total = pace.log._total().actors
    assert (total.count, total.members) == (12_000, 1)
    assert total.busy_s == pytest.approx(12.0)


def test_the_whole_session_is_named_without_what_came_before_and_after_training() -> None:
    pace = Pace(job(4), version=1000)
    pace.go(8, actors=0, learner=0)  # Others import their libraries.
    pace.go(4, actors=0.4, learner=0.9)
    pace.go(8, actors=0, learner=0)  # A large replay is saved.
    named = pace.log.overall(train_s=4.0)
    assert named is not None
    assert named.kind == "training-bound"
    assert pace.log.overall(train_s=20.0) == BOUND_BY_WAITING


@pytest.mark.parametrize(("seconds", "versions"), [(0.4, 20.0), (1.6, 20.0), (10.0, 0.05)])
def test_a_session_that_was_too_short_has_no_name(seconds: float, versions: float) -> None:
    pace = Pace(job(2))
    pace.go(seconds, actors=1, learner=1, versions=versions)
    assert pace.log.overall(seconds) is None


def test_a_job_that_never_began_has_no_name() -> None:
    config = job(2)
    log = WorkLog(config, make_plan(config, [HOST]))
    assert log.current(5.0) is None
    assert log.overall(5.0) is None


def test_the_overview_takes_samples_from_the_pages_when_a_report_comes() -> None:
    config = job(1)
    plan = make_plan(config, [HOST, Host("there", (0, 1))])
    production = ProductionFile(None, plan.num_actors)
    view = Overview(config, plan, production)
    page = ProductionPage(production, 0)
    learner, actor = plan.carrying("learner")[0], plan.carrying("actor")[0]
    for second in range(1, 4):
        page.count(1000)
        said = LearnerReport(rho=RHO, version=9 * second, session_consumed=4000 * second)
        buffer = BufferReport(receptions=((0, 0, 1000 * second, 0, 0, 1, 0),))
        for rank, roles, busy_s in (
            (learner.rank, [buffer, said], [0.01 * second, 0.3 * second]),
            (actor.rank, [ActorReport()], [0.98 * second]),
        ):
            pages = [] if plan.is_local(rank) else [elsewhere(1000 * second)]
            view.note(
                Report(rank=rank, incarnation=0, roles=roles, busy_s=busy_s, running_s=second, pages=pages)
            )
    account = Account(produced=3000, received=3000, in_flight=0, lost=0, dropped=0)
    too_short = view.summary("finished", "done", account, 0)
    assert too_short.bottleneck is None
    view.workers[learner.rank].report.roles[1] = replace(said, session_train_s=3.0)  # type: ignore[union-attr]
    summary = view.summary("finished", "done", account, 0)
    assert summary.bottleneck is not None
    assert summary.bottleneck.kind == "sample-bound"
    assert view._work._total().actors.count == 3000


def elsewhere(produced: int) -> PageReport:
    return PageReport(
        number=0,
        incarnation=0,
        first_step_age_s=1.0,
        unfinished=0,
        pushed=1,
        finished=produced,
        dropped=0,
        recent=0,
        lost=0,
    )


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize(("throttled", "named"), [(0.65, True), (0.1, False)])
def test_a_cpu_limit_that_is_used_up_is_named_whoever_waits_for_whom(
    mode: str, throttled: float, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    pace = Pace(job(1, mode=mode))
    pace.idle = 1.0  # The machine's other cores, which the quota keeps from this job.

    def limit() -> CpuLimit:
        periods = round(10 * pace.now_s)
        return CpuLimit(0.5, periods, round(throttled * periods))

    monkeypatch.setattr("tianji_cli.root.bottleneck.cpu_limit", limit)
    pace.go(20, actors=1, learner=0.25)
    for found in (pace.log.current(pace.now_s), pace.log.overall(20.0)):
        assert found is not None
        assert ("the CPU limit of 0.5 cores is used up in 6" in found.words) == named
        assert "idle" not in found.words
