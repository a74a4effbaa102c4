from typing import Any

import numpy as np
import pytest
from cli.buffer.replays import NaiveReplay, ScriptedActor, batch_of, check, fragment_layout, open_replay
from hypothesis import given, settings
from hypothesis import strategies as st

from tianji_cli.roles.buffer.replay.replay import Replay
from tianji_cli.wire.fragment import Fragment, FragmentLayout

EVENTS = st.lists(st.tuples(st.sampled_from("aaaaaaaalrx"), st.integers(0, 2)), min_size=1, max_size=30)
"""An actor's fragment arrives (a) or is lost (l), the actor restarts (r), or a stranger's is refused (x)."""


def play(
    replay: Replay, naive: NaiveReplay, events: list[tuple[str, int]], seed: int = 0, end_rate: float = 0.0
) -> None:
    actors = [ScriptedActor(replay.layout, number, seed, end_rate) for number in range(3)]
    stranger = ScriptedActor(replay.layout, 9, seed, end_rate)
    for version, (event, number) in enumerate(events):
        match event:
            case "a":
                actors[number].fill(replay.free, version)
                naive.accept(replay.free)
                replay.accept()
            case "l":
                actors[number].lose()
            case "r":
                actors[number].restart()
            case "x":
                stranger.fill(replay.free)
        if replay.size:
            check(batch_of(replay, 8), naive, replay.settings.n_step, replay.settings.gamma)


@settings(max_examples=150, deadline=None)
@given(
    events=EVENTS,
    seed=st.integers(0, 1000),
    end_rate=st.sampled_from([0.0, 0.1, 0.5]),
    layout=st.builds(
        fragment_layout,
        st.integers(1, 4),
        st.integers(1, 3),
        lean=st.booleans(),
        stack=st.sampled_from([1, 2, 4]),
    ),
    fragments=st.integers(1, 6),
    n_step=st.integers(1, 7),
    sampler=st.sampled_from(["uniform", "prioritised", "fresh"]),
)
def test_every_transition_is_what_its_steps_one_by_one_make_of_it(
    events: list[tuple[str, int]],
    seed: int,
    end_rate: float,
    layout: FragmentLayout,
    fragments: int,
    n_step: int,
    sampler: Any,
) -> None:
    replay = open_replay(layout, fragments, n_step=n_step, sampler=sampler)
    naive = NaiveReplay(layout, fragments)
    play(replay, naive, events, seed, end_rate)
    keys = list(naive.keys())
    assert (replay.size, replay.accepted) == (len(keys), naive.accepted)


@settings(max_examples=100, deadline=None)
@given(
    events=EVENTS,
    seed=st.integers(0, 1000),
    steps=st.integers(1, 4),
    fragments=st.integers(1, 6),
    n_step=st.integers(1, 7),
)
def test_all_that_is_held_and_nothing_else_can_be_drawn(
    events: list[tuple[str, int]], seed: int, steps: int, fragments: int, n_step: int
) -> None:
    layout = fragment_layout(steps, 2)
    replay = open_replay(layout, fragments, n_step=n_step, sampler="fresh")
    naive = NaiveReplay(layout, fragments)
    actors = [ScriptedActor(layout, number, seed) for number in range(3)]
    for event, number in events:
        if event == "a":
            actors[number].fill(replay.free)
            naive.accept(replay.free)
            replay.accept()
        elif event == "l":
            actors[number].lose()
    if replay.size:
        batch = batch_of(replay, replay.size)
        assert batch.key.tolist() == list(naive.keys())
        check(batch, naive, n_step, 0.9)


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("shape", [(84, 84), (84, 84, 4), (5,), (3, 100)])
def test_large_rows_and_odd_ones_arrive_whole(shape: tuple[int, ...], stack: int) -> None:
    layout = fragment_layout(2, 3, shape=shape, dtype=np.uint8, stack=stack)
    replay, naive = open_replay(layout, 3, n_step=2), NaiveReplay(layout, 3)
    play(replay, naive, [("a", 0), ("a", 1), ("a", 0), ("a", 0)], seed=1, end_rate=0.2)


def test_a_mask_that_is_off_without_an_end_before_ends_a_transition() -> None:
    layout = fragment_layout(4, 1)
    replay = open_replay(layout, 2, n_step=3, sampler="fresh")
    ScriptedActor(layout, 0, 0, end_rate=0.0).fill(replay.free)
    fragment = Fragment(layout, replay.free)
    fragment.fields["mask"][1] = False
    rewards = fragment.fields["reward"][:, 0].tolist()
    replay.accept()
    batch = batch_of(replay, 3).batch
    np.testing.assert_allclose(
        batch.reward, [rewards[0], rewards[2] + 0.9 * rewards[3], rewards[3]], rtol=1e-6
    )
    np.testing.assert_allclose(batch.discount, [0.9, 0.81, 0.9], rtol=1e-6)


@pytest.mark.parametrize("n_step", [0, 128])
def test_a_number_of_steps_that_cannot_be_recorded_is_refused(n_step: int) -> None:
    with pytest.raises(ValueError, match="1 to 127 steps"):
        open_replay(fragment_layout(2, 1), 2, n_step=n_step)


def test_the_longest_transition_that_can_be_recorded_spans_many_fragments() -> None:
    layout = fragment_layout(10, 1)
    replay, naive = open_replay(layout, 15, n_step=127, gamma=0.99, sampler="fresh"), NaiveReplay(layout, 15)
    play(replay, naive, [("a", 0)] * 16)
    check(batch_of(replay, 150), naive, 127, 0.99)


def test_a_transition_goes_on_in_no_other_incarnation_whatever_was_lost() -> None:
    layout = fragment_layout(2, 1)
    replay, naive = open_replay(layout, 4, n_step=4, sampler="fresh"), NaiveReplay(layout, 4)
    play(replay, naive, [("a", 0), ("r", 0), ("l", 0), ("a", 0)])
    headers = [naive.fragments[insertion].header for insertion in (0, 1)]
    assert [(int(header["incarnation"]), int(header["sequence"])) for header in headers] == [(0, 0), (1, 1)]
    check(batch_of(replay, 50), naive, 4, 0.9)


def test_a_transition_does_not_go_on_across_a_lost_fragment() -> None:
    layout = fragment_layout(2, 1)
    replay, naive = open_replay(layout, 4, n_step=4, sampler="fresh"), NaiveReplay(layout, 4)
    play(replay, naive, [("a", 0), ("l", 0), ("a", 0)])
    into = batch_of(replay, 50)
    np.testing.assert_allclose(into.batch.discount, np.where(into.key % 2 == 0, 0.81, 0.9), rtol=1e-6)
    check(into, naive, 4, 0.9)


def test_a_truncated_step_is_a_transition_s_last_even_if_no_reset_follows() -> None:
    layout = fragment_layout(2, 1)
    replay, naive = open_replay(layout, 4, n_step=4, sampler="fresh"), NaiveReplay(layout, 4)
    actor = ScriptedActor(layout, 0, 0, end_rate=0.0)
    for truncated in (True, False):
        actor.fill(replay.free)
        Fragment(layout, replay.free).fields["truncated"][-1] = truncated
        naive.accept(replay.free)
        replay.accept()
    check(batch_of(replay, 50), naive, 4, 0.9)


def test_a_slot_that_was_reborn_is_not_taken_for_what_it_held() -> None:
    layout = fragment_layout(1, 1, lean=False)
    replay, naive = open_replay(layout, 5, n_step=3, sampler="fresh"), NaiveReplay(layout, 5)
    # Actor 0's second fragment is held and its first is not: actor 1's first, which goes on, lies there.
    play(replay, naive, [("a", number) for number in (0, 2, 2, 2, 0, 2, 1, 1, 0)])
    assert replay.ring.slot(0) == replay.ring.slot(6)
    check(batch_of(replay, 50), naive, 3, 0.9)
    assert naive.transition(6, 3, 0.9).discount == pytest.approx(0.81)
