"""What is said of measurements on a machine that was not quiet."""

from __future__ import annotations

import pytest
from lab.profile.made_up_measurements import made_up, repeated

from tianji_lab.profile.measurements import Measurements, Repeated, middle_half, warnings

WILD = Repeated(values=(1.0, 2.0, 1.0, 2.0, 1.0, 2.0))


def with_actor(measured: Measurements, fragment_s: Repeated, crowded: bool = False) -> Measurements:
    """Replace the first actor that ran alone, or the first that did not."""
    first = next(actor for actor in measured.actors if actor.crowded == crowded)
    actors = tuple(
        actor.model_copy(update={"fragment_s": fragment_s}) if actor is first else actor
        for actor in measured.actors
    )
    return measured.model_copy(update={"actors": actors})


def with_learners(measured: Measurements, **pieces: Repeated) -> Measurements:
    learners = tuple(learner.model_copy(update=pieces) for learner in measured.learners)
    return measured.model_copy(update={"learners": learners})


def test_a_busy_machine_and_a_job_too_slow_to_be_measured_whole_are_named_and_a_quiet_one_is_not() -> None:
    assert made_up().busy < 0.1
    assert warnings(made_up()) == []
    (said,) = warnings(made_up().model_copy(update={"busy": 0.6}))
    assert said == "this machine is too busy to measure: 60 % of its cores were at work with something else"
    (said,) = warnings(made_up().model_copy(update={"unmeasured": tuple("abcde")}))
    assert said == "this job is too slow for all of it to be measured in time. Left out: a; b; c; 2 more"
    (one,) = warnings(made_up().model_copy(update={"unmeasured": ("a",)}))
    assert one.endswith("Left out: a")


def test_one_disturbed_repeat_of_many_moves_no_median_and_is_not_worth_a_word() -> None:
    assert middle_half(Repeated(values=(1.0, 1.1, 50.0, 1.0))) == pytest.approx(0.1 / 1.05)
    assert middle_half(Repeated(values=(1.0, 50.0, 1.0))) == 49
    assert middle_half(Repeated(values=(3.0,))) == 0
    once = repeated(1.0, 0.01).values
    assert warnings(with_actor(made_up(), Repeated(values=(*once, 50.0)))) == []


def test_a_noisy_figure_is_named_with_the_cores_that_were_at_work() -> None:
    (said,) = warnings(with_actor(made_up(), WILD))
    assert said.startswith("too noisy: half of the repeats of 1 actor of ")
    assert said.endswith(" environments lay more than 67 % apart")
    (said,) = warnings(with_actor(made_up(), WILD, crowded=True))
    assert " environments with all cores at work lay " in said


def test_pieces_of_an_update_that_take_next_to_no_time_may_be_noisy() -> None:
    quiet = made_up()
    assert warnings(with_learners(quiet, draw_s=Repeated(values=tuple(1e-9 * s for s in WILD.values)))) == []
    said = warnings(with_learners(quiet, update_s=WILD))
    assert said[0].startswith("too noisy: half of the repeats of updates (learner on ")
