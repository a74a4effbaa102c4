"""Which deaths a job of several groups survives, and what is lost with whom."""

from pathlib import Path

import pytest

from tianji_cli.files.directories import LinkedDirectories
from tianji_cli.plan.plan import Plan, PlannedProcess
from tianji_cli.plan.spec import ProcessSpec
from tianji_cli.root.groups import GroupLosses
from tianji_cli.root.job_view import choose_best
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
)


def spec(rank: int, incarnation: int) -> ProcessSpec:
    return ProcessSpec(rank, incarnation, PLAN.processes[rank].title, Path(f"{rank}.log"))


@pytest.fixture
def events() -> list[str]:
    return []


def test_a_group_is_given_up_once_and_its_ranks_are_no_longer_among_the_living(events: list[str]) -> None:
    losses = GroupLosses(PLAN, events.append)
    assert losses.lose({LEARNER_1}, "it was killed")
    assert losses.lose({BUFFER_1}, "it was ended")
    assert events == ["group 1 is lost: it was killed; the others go on"]
    assert losses.causes == {1: "it was killed"}
    assert losses.living == {LEARNER_0, ACTOR_0}
    assert losses.includes(ACTOR_2)
    assert not losses.includes(ACTOR_0)
    assert losses.ranks_of(1) == {BUFFER_1, LEARNER_1, ACTOR_1, ACTOR_2}


@pytest.mark.parametrize("ranks", [{LEARNER_0}, {ROOT}, {LEARNER_0, LEARNER_1}])
def test_the_job_cannot_do_without_its_first_group(events: list[str], ranks: set[int]) -> None:
    losses = GroupLosses(PLAN, events.append)
    assert not losses.lose(ranks, "it was killed")
    assert (losses.causes, events) == ({}, [])


def test_where_processes_cannot_die_alone_no_group_is_given_up(events: list[str]) -> None:
    assert not GroupLosses(PLAN, events.append, bound=True).lose({LEARNER_1}, "it was killed")


def test_actors_are_orphaned_by_the_death_of_their_own_buffer_alone(events: list[str]) -> None:
    losses = GroupLosses(PLAN, events.append)
    losses.note(spec(LEARNER_1, 0), in_order=False)
    losses.note(spec(ACTOR_1, 3), in_order=False)
    assert (losses.killed, losses.orphaned) == ({(1, 3)}, set())
    losses.note(spec(BUFFER_1, 0), in_order=False)
    assert losses.orphaned == {1, 2}


def test_a_buffer_that_had_said_its_last_word_orphans_nobody(events: list[str]) -> None:
    losses = GroupLosses(PLAN, events.append)
    losses.note(spec(BUFFER_1, 0), in_order=True)
    assert losses.orphaned == set()


def test_the_reason_of_the_end_names_the_groups_that_did_not_live_to_see_it(events: list[str]) -> None:
    losses = GroupLosses(PLAN, events.append)
    assert losses.described("9 s of training") == "9 s of training"
    losses.lose({LEARNER_1}, "it was killed")
    assert losses.described("9 s of training") == "9 s of training; without group 1, lost on the way"


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


def test_actors_of_a_group_that_is_started_anew_are_no_orphans_any_more(events: list[str]) -> None:
    losses = GroupLosses(PLAN, events.append)
    for rank in (BUFFER_1, LEARNER_1, ACTOR_1, ACTOR_2):
        losses.note(spec(rank, 0), in_order=False)
    assert losses.orphaned == {1, 2}
    losses.forget_orphans(1)
    assert losses.orphaned == set()
    assert losses.killed == {(1, 0), (2, 0)}
