"""Which deaths a job of several groups survives, and what is lost with whom."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli.root.stub_job import stub_job

from tianji_cli.errors import ProcessExit
from tianji_cli.files.directories import LinkedDirectories
from tianji_cli.plan.graph import ChannelEdge
from tianji_cli.plan.plan import Plan, PlannedProcess
from tianji_cli.root.deaths import Deaths
from tianji_cli.root.job_view import choose_best
from tianji_cli.root.running_job import RunningJob
from tianji_cli.wire.messages import Begin
from tianji_cli.wire.reports import LearnerReport

ROOT, LEARNER_0, ACTOR_0, BUFFER_1, LEARNER_1, ACTOR_1, ACTOR_2 = range(7)
PLAN = Plan(
    tuple(
        PlannedProcess(rank, (role,), group, "here", (), 1, actors=actors)
        for rank, (role, group, actors) in enumerate(
            [
                ("root", None, ()),
                ("learner", 0, ()),
                ("actor", 0, (0,)),
                ("buffer", 1, ()),
                ("learner", 1, ()),
                ("actor", 1, (1,)),
                ("actor", 1, (2,)),
            ]
        )
    ),
    "shm",
    "shm",
    (ChannelEdge("fragments", ("actor",), ("buffer",), drained=True, route="share"),),
)


def begun(rank: int, incarnation: int) -> Begin:
    return Begin(number=rank, rank=rank, incarnation=incarnation)


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def job(events: list[str]) -> Any:
    learners = {process.rank: process.group for process in PLAN.carrying("learner")}
    one = stub_job(PLAN, events, lost={}, killed=set(), learners=learners)
    one.ranks_of = lambda group: RunningJob.ranks_of(one, group)
    return one


def test_a_group_is_given_up_once_and_its_ranks_are_no_longer_among_the_living(
    job: Any, events: list[str]
) -> None:
    deaths = Deaths(job)
    assert deaths.lose({LEARNER_1}, "it was killed")
    assert deaths.lose({BUFFER_1}, "it was ended")
    assert events == ["group 1 is lost: it was killed; the others go on"]
    assert job.lost == {1: "it was killed"}
    assert RunningJob.living.fget(job) == {LEARNER_0, ACTOR_0}  # type: ignore[attr-defined]
    assert job.ranks_of(1) == {BUFFER_1, LEARNER_1, ACTOR_1, ACTOR_2}


@pytest.mark.parametrize("ranks", [{LEARNER_0}, {ROOT}, {LEARNER_0, LEARNER_1}])
def test_the_job_cannot_do_without_its_first_group(job: Any, events: list[str], ranks: set[int]) -> None:
    assert not Deaths(job).lose(ranks, "it was killed")
    assert (job.lost, events) == ({}, [])


def test_where_processes_cannot_die_alone_no_group_is_given_up(job: Any) -> None:
    job.bound = True
    assert not Deaths(job).lose({LEARNER_1}, "it was killed")


def test_actors_are_orphaned_by_the_death_of_their_own_buffer_alone(job: Any) -> None:
    deaths = Deaths(job)
    deaths.note(begun(LEARNER_1, 0), in_order=False)
    deaths.note(begun(ACTOR_1, 3), in_order=False)
    assert (job.killed, deaths.orphaned) == ({(1, 3)}, set())
    deaths.note(begun(BUFFER_1, 0), in_order=False)
    assert deaths.orphaned == {1, 2}


def test_a_buffer_that_had_said_its_last_word_orphans_nobody(job: Any) -> None:
    deaths = Deaths(job)
    deaths.note(begun(BUFFER_1, 0), in_order=True)
    assert deaths.orphaned == set()


def test_the_reason_of_the_end_names_the_groups_that_did_not_live_to_see_it(job: Any) -> None:
    deaths = Deaths(job)
    assert deaths.described("9 s of training") == "9 s of training"
    deaths.lose({LEARNER_1}, "it was killed")
    assert deaths.described("9 s of training") == "9 s of training; without group 1, lost on the way"


def test_the_reason_of_the_end_names_the_buffers_that_did_not_live_to_see_it(job: Any) -> None:
    job.lost_ranks = {BUFFER_1, ACTOR_1, ACTOR_2}
    assert Deaths(job).described("9 s") == "9 s; without buffer (group 1), lost on the way"


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Three groups that have each saved a policy."""
    for group in range(3):
        place = tmp_path / f"group-{group}" if group else tmp_path
        with LinkedDirectories(place, ("best",)).fill("best", "best-10") as directory:
            (directory / "model.safetensors").write_text(f"group {group}")
    return tmp_path


def test_best_leads_to_the_group_with_the_highest_mean_that_lives(
    checkpoints: Path, events: list[str]
) -> None:
    learners = {group: LearnerReport(best_mean_100=mean) for group, mean in enumerate([20.0, 30.0, 40.0])}
    assert choose_best(checkpoints, learners, {2}, events.append) == 1
    assert (checkpoints / "best/model.safetensors").read_text() == "group 1"
    assert events == []


def test_without_a_mean_the_first_group_has_the_best_policy(checkpoints: Path, events: list[str]) -> None:
    learners = {0: LearnerReport(), 1: LearnerReport()}
    assert choose_best(checkpoints, learners, set(), events.append) == 0
    assert (checkpoints / "best/model.safetensors").read_text() == "group 0"


def test_a_link_that_cannot_be_written_is_reported(tmp_path: Path, events: list[str]) -> None:
    place = tmp_path / "group-1/best"
    place.mkdir(parents=True)
    (place / "model.safetensors").touch()
    (tmp_path / "best").mkdir()
    choose_best(tmp_path, {1: LearnerReport(best_mean_100=3.0)}, set(), events.append)
    assert len(events) == 1
    assert "group 1" in events[0]


class Population:
    """The job of a population of two members, whose processes a test ends."""

    def __init__(self, job: Any) -> None:
        self.job = job
        self.started: list[tuple[int, int, int]] = []
        ranks = {process.rank for process in PLAN.trainers}
        self.pool = SimpleNamespace(
            ranks=ranks,
            is_lost=lambda _rank: False,
            may_restart=lambda _now_s: True,
            kill=lambda _ranks: None,
        )
        environment = SimpleNamespace(on_error="raise")
        job.config = SimpleNamespace(population=object(), environment=environment)
        job.pool, job.producers, job.restartable = self.pool, {ACTOR_0, ACTOR_1, ACTOR_2}, set()
        job.members = SimpleNamespace(stopped=set(), leave=lambda _ranks: None, incarnation=lambda _rank: 0)
        job.overview = SimpleNamespace(
            workers={rank: SimpleNamespace() for rank in ranks},
            learners=lambda: {1: LearnerReport(env_steps=70)},
            keep=lambda _rank: None,
        )
        job.cause = lambda rank, what: f"rank {rank}{what}"
        job.start = lambda *started: self.started.append(started)
        self.deaths = Deaths(job)

    def end(self, rank: int, *, killed: bool) -> None:
        self.pool.ranks.discard(rank)
        worker: Any = SimpleNamespace(rank=rank, begin=begun(rank, 0), killed=killed, hung="")
        self.deaths.handle(worker, ProcessExit(status=-9))


def test_a_member_is_started_anew_once_all_its_processes_are_gone_and_its_actors_are_no_orphans(
    job: Any, events: list[str]
) -> None:
    population = Population(job)
    population.end(BUFFER_1, killed=False)
    assert len(events) == 1
    assert events[0].endswith("member 1 is started anew")
    assert population.deaths.orphaned == {1, 2}
    for rank in (LEARNER_1, ACTOR_1, ACTOR_2):
        assert population.started == []
        population.end(rank, killed=True)
    assert population.started == [(rank, 1, 70) for rank in (BUFFER_1, LEARNER_1, ACTOR_1, ACTOR_2)]
    assert population.deaths.orphaned == set()
    assert job.killed == {(1, 0), (2, 0)}
