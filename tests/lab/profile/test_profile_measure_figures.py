"""Windows become seconds of each piece of work."""

from __future__ import annotations

from typing import Any

import pytest

from tianji_lab.profile.building import Phase
from tianji_lab.profile.probe.protocol import Acted, ActedWindow, Learned, LearnedWindow
from tianji_lab.profile.schedule import Notebook


def acted(fragments: int, busy_s: float) -> ActedWindow:
    return ActedWindow(
        wall_s=1.0,
        fragments=fragments,
        samples=100 * fragments,
        busy_s=busy_s,
        act_s=0.25 * busy_s,
        step_s=0.5 * busy_s,
    )


def learned(**changes: Any) -> LearnedWindow:
    usual: dict[str, Any] = {
        "wall_s": 1.0,
        "fragments": 4,
        "updates": 40,
        "versions": 4,
        "uses": 400,
        "store_s": 0.04,
        "update_s": 0.4,
        "draw_s": 0.08,
        "rest_s": 0.02,
    }
    return LearnedWindow(**{**usual, **changes})


def test_each_window_that_all_actors_side_by_side_have_is_a_repeat_of_their_median() -> None:
    notebook = Notebook()
    notebook.add(Phase(8, actors=1), False, [Acted(windows=(acted(10, 0.5), acted(4, 0.1)))], None)
    notebook.add(Phase(8, actors=1), False, [Acted(windows=(acted(2, 0.2),))], None)
    answers = [Acted(windows=(acted(10, busy_s), acted(10, 0.5))) for busy_s in (0.1, 0.2)]
    notebook.add(Phase(8, actors=3), True, [*answers, Acted(windows=(acted(10, 9.0),))], None)
    alone, three = notebook.actors()
    assert (alone.num_envs, alone.side_by_side, alone.crowded, alone.samples) == (8, 1, False, 100)
    assert alone.fragment_s.values == pytest.approx((0.05, 0.025, 0.1))
    assert alone.act_s.values == pytest.approx((0.0125, 0.00625, 0.025))
    assert alone.step_s.values == pytest.approx((0.025, 0.0125, 0.05))
    assert three.fragment_s.values == pytest.approx((0.02,))


def test_settings_do_not_mix_and_both_roles_of_a_phase_count() -> None:
    notebook = Notebook()
    one = [Acted(windows=(acted(10, 0.5),))]
    notebook.add(Phase(8, actors=1), False, one, None)
    notebook.add(Phase(16, actors=1), False, one, None)
    for cores in (1, 2):
        beside = Phase(8, actors=1, learner_cores=cores)
        notebook.add(beside, True, one, Learned(windows=(learned(),)))
    seen = [(of.num_envs, of.crowded, len(of.fragment_s.values)) for of in notebook.actors()]
    assert seen == [(8, False, 1), (8, True, 2), (16, False, 1)]
    assert [(of.cores, of.crowded) for of in notebook.learners()] == [(1, True), (2, True)]


def test_roles_that_share_cores_are_kept_apart() -> None:
    notebook = Notebook()
    one, both = [Acted(windows=(acted(10, 0.5),))], [Acted(windows=(acted(10, 0.8),))] * 2
    notebook.add(Phase(8, actors=1, learner_cores=1), True, one, Learned(windows=(learned(),)))
    assert notebook.sharing() is None
    unpinned = Phase(8, actors=2, learner_cores=1, unpinned=True)
    notebook.add(unpinned, True, both, Learned(windows=(learned(update_s=0.6),)))
    sharing = notebook.sharing()
    assert sharing is not None
    assert sharing.actors.fragment_s.values == pytest.approx((0.08,))
    assert sharing.learner.update_s.values == pytest.approx((0.015,))
    assert [of.fragment_s.values for of in notebook.actors()] == [pytest.approx((0.05,))]
    assert [of.update_s.values for of in notebook.learners()] == [pytest.approx((0.01,))]


def test_the_pieces_of_a_learners_work_are_divided_by_what_they_are_done_for() -> None:
    notebook = Notebook()
    windows = (learned(), learned(update_s=0.8))
    notebook.add(Phase(8, learner_cores=1), False, [], Learned(windows=windows))
    halves = learned(updates=80, uses=400)
    notebook.add(Phase(8, learner_cores=1, share=2), False, [], Learned(windows=(halves,)))
    whole, half = notebook.learners()
    # With a share of the batch no more updates lie between versions than with all of it.
    assert (whole.uses_per_update, half.uses_per_update) == (10, 5)
    assert (whole.updates_per_version, half.updates_per_version) == (10, 10)
    assert whole.update_s.values == pytest.approx((0.01, 0.02))
    assert whole.draw_s.values == pytest.approx((0.002, 0.002))
    assert whole.publish_s.values == pytest.approx((0.005, 0.005))
    assert whole.store_s.values == pytest.approx((0.01, 0.01))
