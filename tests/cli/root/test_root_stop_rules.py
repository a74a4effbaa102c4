"""The rules that the root minds, and when it looks at what."""

from typing import Any

import pytest

from tianji_cli.config.schema import Stop
from tianji_cli.root.observers.goals import StopRules
from tianji_cli.wire.messages import Finished
from tianji_cli.wire.reports import LearnerReport


class Said:
    """Reports of two learners, and their seconds of training."""

    def __init__(self, *env_steps: int) -> None:
        self.env_steps = env_steps
        self.looks = 0

    def learners(self) -> dict[int, LearnerReport]:
        return {group: LearnerReport(env_steps=steps) for group, steps in enumerate(self.env_steps)}

    @property
    def session_train_s(self) -> float:
        self.looks += 1
        return 60.0


@pytest.fixture
def rules(job: Any) -> Any:
    def make(said: Said, groups: int = 2, **stop: Any) -> StopRules:
        return StopRules(job(said, groups, stop), lambda _: None)

    return make


@pytest.fixture
def job() -> Any:
    from types import SimpleNamespace as Part  # noqa: PLC0415

    def make(said: Said, groups: int, stop: dict[str, Any]) -> Any:
        config = Part(experiment=Part(stop=Stop(**stop)), distribution=Part(groups=groups))
        ends: list[tuple[str, str]] = []
        return Part(
            config=config,
            overview=said,
            outcome=None,
            stuck=None,
            ends=ends,
            examiners={9},
            plan=Part(processes=[Part(group=rank) for rank in range(3)]),
            lost={2: "it was killed"},
            finish=lambda reason: ends.append(("finished", reason)),
            fail=lambda reason: ends.append(("failed", reason)),
            cause=lambda rank, what: f"rank {rank}{what}",
        )

    return make


def test_steps_of_several_groups_are_added_up_without_a_look_at_the_actors_pages(rules: Any) -> None:
    said = Said(600, 400)
    assert rules(said, env_steps=1000, wall_s=1.0).steps_reached() == "1000 environment steps"
    assert rules(said, env_steps=1001, wall_s=1.0).steps_reached() is None
    assert rules(said, groups=1, env_steps=1000).steps_reached() is None, "a single learner minds its own"
    assert said.looks == 0


def test_time_is_up_when_it_is(rules: Any) -> None:
    assert rules(Said(), wall_s=60.0).time_reached() == "60 s of training"
    assert rules(Said(), wall_s=61.0).time_reached() is None
    assert rules(Said(), env_steps=1).time_reached() is None


def test_a_goal_of_a_learner_ends_the_job_and_names_its_group_unless_that_is_lost(job: Any) -> None:
    one = job(Said(), 3, {"env_steps": 1})
    rules = StopRules(one, lambda _: None)
    for rank in (1, 2, 9):
        rules.on_message(Finished(rank=rank, reason="a mean return of 7"))
    assert one.ends == [("finished", "a mean return of 7 in group 1"), ("finished", "a mean return of 7")]
    alone = job(Said(), 1, {"env_steps": 1})
    StopRules(alone, lambda _: None).on_message(Finished(rank=0, reason="a mean return of 7"))
    assert alone.ends == [("finished", "a mean return of 7")]


@pytest.mark.parametrize("stuck", [None, 1])
def test_a_job_whose_time_is_up_has_failed_if_an_actor_hangs_and_nothing_was_made_since(
    job: Any, stuck: int | None
) -> None:
    one = job(Said(), 1, {"wall_s": 60.0})
    one.stuck = stuck
    snapshot: Any = None
    StopRules(one, lambda _: "enough").on_tick(snapshot)
    hangs = "rank 1 hangs, and nothing was made or learnt since: 60 s of training"
    assert one.ends[0] == (("failed", hangs) if stuck else ("finished", "60 s of training"))


def test_what_the_caller_has_enough_of_ends_the_job(job: Any) -> None:
    one = job(Said(), 1, {"env_steps": 1})
    snapshot: Any = "the snapshot"
    StopRules(one, lambda seen: f"enough of {seen}").on_tick(snapshot)
    assert one.ends == [("finished", "enough of the snapshot")]
