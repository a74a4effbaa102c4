"""The work of a running job becomes the capacities of the model, and these a bottleneck."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianji_cli.root.bottleneck import (
    BOUND_BY_WAITING,
    HostCores,
    Observation,
    Work,
    observed_bottleneck,
)
from tianji_cli.telemetry.bottleneck import (
    BOUND_BY_RECEPTION,
    IN_BALANCE,
    SAMPLE_BOUND,
    TRAINING_BOUND,
    Bottleneck,
    bottleneck,
)


def ten_seconds(
    produced: float, actors_s: float, uses: float, learner_s: float, *, actors: int = 1, buffer_s: float = 0.1
) -> Observation:
    """A job of which ten seconds were seen."""
    return Observation(
        Work(produced, actors_s, 10.0 * actors, actors),
        Work(produced, buffer_s, 10.0, 1),
        Work(uses, learner_s, 10.0, 1),
    )


def test_several_actors_produce_together_and_who_has_not_worked_has_no_capacity() -> None:
    # Each made 100 samples in one busy second.
    assert Work(count=300.0, busy_s=3.0, running_s=30.0, members=3).capacity == 300.0
    assert Work(count=300.0, busy_s=3.0, running_s=30.0, members=3).busy == 0.1
    assert (Work(members=3).capacity, Work().busy) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("seen", "named"),
    [
        # Actors always busy: 1000 samples/s, 4000 uses/s. The learner made them in 3 of 10 seconds: 13,333/s.
        (ten_seconds(10_000, 10.0, 40_000, 3.0), SAMPLE_BOUND),
        (ten_seconds(10_000, 5.0, 40_000, 9.9), TRAINING_BOUND),
        (ten_seconds(10_000, 9.6, 40_000, 10.0), IN_BALANCE),
        (ten_seconds(10_000, 3.0, 40_000, 3.5, buffer_s=10.0), BOUND_BY_RECEPTION),
        # Two sides that wait most of the time.
        (ten_seconds(10_000, 4.0, 40_000, 2.0), BOUND_BY_WAITING),
        (ten_seconds(10_000, 8.0, 40_000, 4.0, actors=2), BOUND_BY_WAITING),
    ],
)
def test_a_job_is_bound_by_its_busy_side(seen: Observation, named: Bottleneck) -> None:
    assert observed_bottleneck(seen, 4.0, "free") == named


def test_who_waits_by_choice_is_in_step() -> None:
    named = observed_bottleneck(ten_seconds(10_000, 6.0, 40_000, 2.0), 4.0, "in step")
    assert named is not None
    assert named.kind == "in step"
    assert "75% of the time goes to the actors, 25% to the learner" in named.words


def test_roles_of_one_process_are_named_by_what_they_take_of_it() -> None:
    named = observed_bottleneck(ten_seconds(10_000, 2.0, 40_000, 8.0, actors=2), 4.0, "none")
    assert named is not None
    assert named.kind == "training-bound"
    assert "the learner 80%, the actors 20%" in named.words


def test_nothing_is_named_before_all_sides_have_worked() -> None:
    seen = ten_seconds(10_000, 4.0, 40_000, 9.0)
    assert observed_bottleneck(seen, 4.0, "free") is not None
    for silent in ("actors", "buffers", "learners"):
        without = Observation(**(vars(seen) | {silent: Work(0.0, 0.0, 10.0, 1)}))
        assert observed_bottleneck(without, 4.0, "free") is None


amounts = st.floats(1e-3, 1e6)


@given(amounts, amounts, amounts, amounts, st.integers(1, 1000), st.floats(0.1, 100))
def test_a_busy_side_is_named_as_the_model_names_it(
    produced: float, actors_s: float, uses: float, learner_s: float, actors: int, rho: float
) -> None:
    seen = Observation(
        Work(produced, actors_s, 0.0, actors),
        Work(produced, 1e-9, 1.0, 1),
        Work(uses, learner_s, learner_s, 1),
    )
    by_model = bottleneck(actors * produced / actors_s * rho, produced / 1e-9 * rho, uses / learner_s)
    assert observed_bottleneck(seen, rho, "free") == by_model


def test_what_was_done_later_is_told_from_what_was_done_before() -> None:
    earlier, later = ten_seconds(100, 1.0, 400, 2.0, actors=4), ten_seconds(300, 4.0, 800, 9.0, actors=4)
    assert later.since(earlier).actors == Work(200, 3.0, 0.0, 4)
    assert later.since(earlier).learners == Work(400, 7.0, 0.0, 1)
    assert (earlier + later).learners == Work(1200, 11.0, 20.0, 2)


ANOTHER = "distribution.actor.num = 2"


def cores(idle: float, *, shared: bool = False) -> HostCores:
    return HostCores(there=2, shared=shared, idle=idle, would_use_them=ANOTHER)


def test_of_idle_cores_it_is_said_what_would_use_them_where_that_would_help() -> None:
    waits = ten_seconds(10_000, 10.0, 40_000, 3.0)
    named = observed_bottleneck(waits, 4.0, "free", cores(idle=0.7))
    assert named is not None
    assert named.kind == "sample-bound"
    assert f"0.7 of 2 cores are idle: {ANOTHER} would use them" in named.words
    trains = ten_seconds(10_000, 5.0, 40_000, 9.9)
    # Something else on the machine uses the core.
    assert observed_bottleneck(waits, 4.0, "free", cores(idle=0.1)) == SAMPLE_BOUND
    assert observed_bottleneck(trains, 4.0, "free", cores(idle=0.5)) == TRAINING_BOUND


def test_beside_cores_that_are_all_at_work_it_is_not_said_whose_work_that_is() -> None:
    # Actors that sleep in their steps are busy by the clock, while other programs keep the cores at work.
    waits = ten_seconds(20_000, 18.0, 80_000, 6.0, actors=2)
    named = observed_bottleneck(waits, 4.0, "free", cores(idle=0.1, shared=True))
    assert named is not None
    assert named.kind == "sample-bound"
    assert named.words == (
        "all 2 cores are at work; the roles' busy time: the actors 75%, the learner 25%; more cores may help"
    )
