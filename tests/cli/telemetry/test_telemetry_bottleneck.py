"""Three rates say which side holds a job back, and the words say what would help."""

from __future__ import annotations

import pytest

from tianji_cli.telemetry.bottleneck import MORE_CORES, OWN_CORES, bottleneck, in_step, on_shared_cores


@pytest.mark.parametrize(
    ("production", "reception", "consumption", "kind"),
    [
        (100.0, 1000.0, 200.0, "sample-bound"),
        (200.0, 1000.0, 100.0, "training-bound"),
        (200.0, 90.0, 100.0, "communication-bound"),
        (100.0, 90.0, 200.0, "communication-bound"),
        (100.0, 1000.0, 91.0, "balanced"),
        (91.0, 1000.0, 100.0, "balanced"),
        (100.0, 1000.0, 89.0, "training-bound"),
        (89.0, 1000.0, 100.0, "sample-bound"),
        (100.0, 95.0, 100.0, "balanced"),
        (100.0, 89.0, 100.0, "communication-bound"),
    ],
)
def test_the_slowest_of_three_rates_is_named_and_a_tenth_between_them_is_balance(
    production: float, reception: float, consumption: float, kind: str
) -> None:
    assert bottleneck(production, reception, consumption).kind == kind


def test_words_say_what_helps_and_what_does_not() -> None:
    assert "more actors will not help" in bottleneck(2, 9, 1).words
    assert "a faster learner would not" in bottleneck(1, 9, 2).words
    assert "neither more actors nor a faster learner will help" in bottleneck(2, 1, 2).words
    assert str(bottleneck(2, 9, 1)).startswith("training-bound: more actors")
    # In step they say who has how much of the time: 1/300 s and 1/100 s are a quarter and three quarters.
    named = in_step(300.0, 100.0)
    assert named.kind == "in step"
    assert "25% of the time goes to the actors, 75% to the learner" in named.words


def test_on_shared_cores_the_role_that_needs_most_of_them_names_the_kind() -> None:
    named = on_shared_cores(OWN_CORES, 1.0, 0.0, 3.0)
    assert named.kind == "training-bound"
    assert "(the learner 75%, the actors 25%)" in named.words
    assert on_shared_cores(OWN_CORES, 3.0, 2.0, 1.0).kind == "sample-bound"
    assert on_shared_cores(MORE_CORES, 1.0, 2.0, 0.0).kind == "communication-bound"
