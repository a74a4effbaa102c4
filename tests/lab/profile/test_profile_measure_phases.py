"""Which roles run side by side, and where: as a job of that size would be placed."""

from __future__ import annotations

import pytest

from tianji_cli.config.loader import load_config
from tianji_cli.plan.plan import Host, make_plan
from tianji_lab.profile.building import Part, Phase, Place, Room, all_phases


def room(cores: int, actor_cores: int = 1) -> Room:
    return Room.of(range(100, 100 + cores), actor_cores)


def sharing(actors: int) -> Phase:
    """A learner and so many actors of 8 environments on all cores."""
    return Phase(8, actors=actors, learner_cores=1, unpinned=True)


def test_on_two_cores_everything_is_measured_alone_and_with_both_cores_at_work() -> None:
    assert all_phases(room(2), 8, [], [2]) == [
        Phase(8, actors=1),
        Phase(8, learner_cores=1),
        Phase(8, actors=1, learner_cores=1),
        sharing(2),
        Phase(8, actors=2),
        Phase(8, learner_cores=2),
        Phase(8, learner_cores=1, share=2),
        Phase(8, actors=1, learner_cores=1, share=2),
    ]


def test_many_cores_multiply_no_phases() -> None:
    phases = all_phases(room(64), 8, [2, 4, 8, 16, 32], [2, 4])
    assert len(phases) == len(set(phases)) == 5 * 3 + 1 + 6 + 11 + 4
    assert {phase.actors for phase in phases if not phase.learner_cores} == {1, 2, 4, 8, 16, 32, 64}
    beside = {(phase.learner_cores, phase.actors) for phase in phases if phase.learner_cores and phase.actors}
    assert beside == {(1, 64), (1, 63), (2, 62), (4, 60), (8, 56), (16, 48), (32, 32)}
    assert Phase(8, learner_cores=64) in phases
    phases = all_phases(room(6), 8, [], [])
    assert {phase.actors for phase in phases if not phase.learner_cores} == {1, 2, 4, 6}
    assert {phase.learner_cores for phase in phases} == {0, 1, 2, 4, 6}


def test_what_is_needed_most_comes_first_since_time_may_be_over_before_the_end() -> None:
    phases = all_phases(room(8), 8, [2, 4, 8, 16, 32], [2])
    configured, two_cores = phases[:4], phases[4:7]
    assert configured == [
        Phase(8, actors=1),
        Phase(8, learner_cores=1),
        Phase(8, actors=7, learner_cores=1),
        sharing(8),
    ]
    assert two_cores == [
        Phase(8, actors=2),
        Phase(8, learner_cores=2),
        Phase(8, actors=6, learner_cores=2),
    ]
    sizes = list(dict.fromkeys(phase.num_envs for phase in phases[7:19]))
    assert set(sizes[:2]) == {4, 16}
    assert set(sizes[2:]) == {2, 32}
    assert all(phase.num_envs == 8 for phase in phases[19:])
    assert [phase.share for phase in phases[-2:]] == [2, 2]


@pytest.mark.parametrize("cores", [1, 2, 3, 5, 8, 100, 1000])
@pytest.mark.parametrize("actor_cores", [1, 2])
def test_every_role_has_a_probe_and_pinned_ones_have_cores_of_their_own(cores: int, actor_cores: int) -> None:
    here = room(cores, actor_cores)
    assert 2 <= here.probes <= 65
    for phase in all_phases(here, 8, [4], [2]):
        places = here.places(phase)
        assert len(places) == phase.actors + (phase.learner_cores > 0), "no probe has two roles"
        assert set(places) <= set(range(here.probes))
        given = [core for place in places.values() for core in place.cores]
        if phase.unpinned:
            assert len(given) == len(places) * len(here.cores)
        else:
            assert len(given) == len(set(given)), phase
        assert set(given) <= set(here.cores)
        assert all(place.cores for place in places.values())
        assert here.is_crowded(phase) <= (len(places) > 1)
    if (cores, actor_cores) == (1000, 2):  # More than probes can put to work.
        beside = Phase(8, actors=here.actors_beside(1), learner_cores=1)
        assert (len(here.cores), here.is_crowded(beside)) == (128, True)
        assert sum(len(place.cores) for place in here.places(beside).values()) >= 127


def test_pinned_roles_are_where_the_plan_of_a_job_would_have_them() -> None:
    here = room(4)
    settings = [f"distribution.{key}" for key in ("learner.cores=2", "actor.num=2", "pin_cores=true")]
    planned = make_plan(load_config("ppo_cartpole", settings), [Host("here", here.cores)])
    places = here.places(Phase(64, actors=2, learner_cores=2))
    assert [(place.cores, place.threads) for place in places.values()] == [
        (process.cores, process.threads) for process in planned.trainers
    ]
    # Unpinned ones have all cores and no more threads.
    places = room(4).places(sharing(2))
    everywhere = (100, 101, 102, 103)
    assert places == {
        0: Place(Part("learner", 8), everywhere, 1),
        1: Place(Part("actor", 8), everywhere, 1),
        2: Place(Part("actor", 8), everywhere, 1),
    }
    # Actors without a learner have the cores that they would have beside one.
    assert room(4).places(Phase(8, actors=1)) == {4: Place(Part("actor", 8), (103,), 1)}
    assert room(4, 2).places(Phase(8, actors=1)) == {2: Place(Part("actor", 8), (102, 103), 2)}


def test_it_is_crowded_when_no_further_actor_has_room() -> None:
    here = room(4)
    expected = {
        Phase(8, actors=1): False,
        Phase(8, actors=2): False,
        Phase(8, actors=4): True,
        Phase(8, learner_cores=1): False,
        Phase(8, learner_cores=4): False,
        Phase(8, actors=3, learner_cores=1): True,
        Phase(8, actors=2, learner_cores=2): True,
        sharing(4): True,
    }
    assert {phase: here.is_crowded(phase) for phase in expected} == expected


def test_phases_are_named_in_plain_words() -> None:
    assert str(Phase(64, actors=1)) == "1 actor of 64 environments"
    assert str(Phase(1, learner_cores=2, share=4)) == (
        "learner on 2 cores with 1/4 of the batch, fed by actors of 1 environment"
    )
    assert str(Phase(8, actors=3, learner_cores=1)) == "learner on 1 core beside 3 actors of 8 environments"
    assert str(sharing(4)) == "learner and 4 actors of 8 environments on the same cores"
