from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tianji_cli.data.ledger import Reception
from tianji_cli.data.rollout import Rollout, RolloutStore, StoredFragment

OpenLine = Callable[..., Any]
engines = pytest.mark.parametrize("lends", [True, False], ids=["lending", "copying"])


def names(fragments: Sequence[StoredFragment]) -> list[tuple[int, int, int]]:
    """(actor, sequence, version) of each fragment."""
    return [(one.source[0], int(one.fragment.header["sequence"]), one.version) for one in fragments]


@engines
def test_rollouts_come_in_the_order_fragments_came(line: OpenLine, lends: bool) -> None:
    one = line(2, per_rollout=3, lends=lends)
    arrivals = [1, 0, 0, 1, 0, 1]
    rollouts = []
    for actor in arrivals:
        assert one.send(actor)
        one.buffer.turn()
        if one.store.full:
            rollouts.append(one.store.rollout())
            assert one.store.rollout() is None
    first, second = rollouts
    assert names(first.arrived) == [(1, 0, 0), (0, 0, 0), (0, 1, 0)]
    assert names(second.arrived) == [(1, 1, 0), (0, 2, 0), (1, 2, 0)]
    for stored in (*first.arrived, *second.arrived):
        assert stored.fields["reward"].tolist() == [[int(stored.fragment.header["sequence"]) % 2] * 2] * 2
        assert stored.samples == 4


@engines
def test_an_incomplete_rollout_is_none(line: OpenLine, lends: bool) -> None:
    one = line(per_rollout=2, lends=lends)
    assert one.store.rollout() is None
    one.send()
    one.buffer.turn()
    assert one.store.rollout() is None
    assert one.store.wanted


def test_a_waiting_learner_gets_whatever_a_rollout_needs_and_no_more(line: OpenLine) -> None:
    one = line(per_rollout=3, window=5)
    for _ in range(5):
        one.send()
    one.buffer.turn()
    assert one.unclaimed() == 2
    assert len(one.store.rollout().drawn) == 3


@pytest.mark.parametrize(("per_rollout", "window", "ahead"), [(4, 2, 2), (4, 1, 3), (2, 2, 0), (2, 5, 0)])
def test_while_the_learner_updates_the_windows_hold_the_next_rollout_back(
    line: OpenLine, per_rollout: int, window: int, ahead: int
) -> None:
    one = line(per_rollout=per_rollout, window=window)
    while (rollout := one.store.rollout()) is None:
        one.send()
        one.buffer.turn()
    one.store.release(rollout)
    made = one.unclaimed()
    while one.send():
        made += 1
        one.buffer.turn()
    assert (made, one.unclaimed()) == (ahead + window, window)
    assert one.store.rollout() is None
    one.buffer.turn()
    assert one.store.rollout() is not None, "the next rollout is there without another step"


def test_a_fragment_unclaimed_is_a_fragment_not_yet_stale(line: OpenLine) -> None:
    one = line(2, per_rollout=2, window=1)
    for actor in range(2):
        one.send(actor)
    one.buffer.turn()
    one.store.rollout()
    for actor in range(2):
        assert one.send(actor)
        one.buffer.turn()
        assert not one.send(actor), "nobody asked for more: the actor waits"


def test_in_step_the_order_is_that_of_the_actors(line: OpenLine) -> None:
    one = line(2, per_rollout=4, in_step=True)
    for actor in (1, 1, 0, 0):
        one.send(actor)
        one.buffer.turn()
    assert names(one.store.rollout().drawn) == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    one.store.advance(1)
    for actor in (0, 1, 0, 1):
        one.send(actor, version=1)
        one.buffer.turn()
    assert names(one.store.rollout().drawn) == [(0, 2, 1), (0, 3, 1), (1, 2, 1), (1, 3, 1)]


def test_in_step_an_even_share_is_needed(line: OpenLine) -> None:
    with pytest.raises(ValueError, match="5 fragments cannot be shared evenly by 2 actors"):
        line(2, per_rollout=5, in_step=True)


@engines
def test_in_step_stale_fragments_are_dropped_and_counted(line: OpenLine, lends: bool) -> None:
    one = line(per_rollout=2, in_step=True, lends=lends)
    one.store.advance(3)
    one.send(version=2)
    one.send(version=3)
    one.buffer.turn()
    one.send(version=3)
    one.buffer.turn()
    assert names(one.store.rollout().drawn) == [(0, 1, 3), (0, 2, 3)]
    assert one.store.admission.receptions == {(0, 0): Reception(8, 4, 0, next_sequence=3, position=12)}


@engines
def test_in_step_a_restarted_actor_s_repetition_is_dropped_and_counted(line: OpenLine, lends: bool) -> None:
    one = line(2, per_rollout=4, in_step=True, lends=lends)
    for incarnation in range(6):
        for _ in range(2):
            assert one.send(0, incarnation=incarnation)
            one.buffer.turn()
    assert one.store.rollout() is None
    for _ in range(2):
        one.send(1)
    one.buffer.turn()
    rollout = one.store.rollout()
    assert [stored.source for stored in rollout.arrived] == [(0, 0), (0, 0), (1, 0), (1, 0)]
    receptions = one.store.admission.receptions
    assert [receptions[0, n].dropped for n in range(6)] == [0, 8, 8, 8, 8, 8]
    assert [receptions[0, n].samples for n in range(6)] == [8, 0, 0, 0, 0, 0]


def test_in_step_a_successor_completes_what_its_predecessor_began(line: OpenLine) -> None:
    one = line(per_rollout=2, in_step=True)
    one.send(incarnation=0)
    one.buffer.turn()
    for _ in range(2):
        one.send(incarnation=1)
    one.buffer.turn()
    assert [stored.source for stored in one.store.rollout().drawn] == [(0, 0), (0, 1)]
    assert one.store.admission.receptions[0, 1] == Reception(4, 4, 0, next_sequence=2, position=8)


def test_in_step_what_repeats_a_rollout_in_use_is_not_in_the_next(line: OpenLine) -> None:
    one = line(per_rollout=2, in_step=True)
    for _ in range(2):
        one.send()
    one.buffer.turn()
    one.store.release(one.store.rollout())
    for _ in range(2):
        one.send(incarnation=1)
    one.buffer.turn()
    one.store.advance(1)
    for _ in range(2):
        one.send(incarnation=1, version=1)
    one.buffer.turn()
    assert [stored.version for stored in one.store.rollout().drawn] == [1, 1]
    assert one.store.admission.receptions[0, 1] == Reception(8, 8, 0, next_sequence=4, position=16)


@engines
def test_a_gap_is_counted_as_lost(line: OpenLine, lends: bool) -> None:
    one = line(per_rollout=2, lends=lends)
    one.lose(samples=3)
    one.send()
    one.lose(samples=1)
    one.lose(samples=2)
    one.send()
    one.buffer.turn()
    assert one.store.admission.receptions == {(0, 0): Reception(8, 0, 6, next_sequence=5, position=14)}


def test_a_new_incarnation_is_no_gap(line: OpenLine) -> None:
    one = line(per_rollout=2)
    one.send(incarnation=0)
    one.send(incarnation=1)
    one.buffer.turn()
    assert [reception.lost for reception in one.store.admission.receptions.values()] == [0, 0]


REFUSED: list[tuple[dict[str, int], str]] = [
    ({"job": 3}, "its job is 0x3"),
    ({"magic": 3}, "its magic is 0x3"),
    ({"actor": 1}, "its actor 1 does not live there"),
    ({"samples": 5}, "it claims 5 samples where 4 fit"),
    ({"sequence": 0}, "it is number 0 where 1 is next"),
    ({"before": 3}, "it is number 1 where 1 is next"),
]


@engines
@pytest.mark.parametrize(("header", "reason"), REFUSED)
def test_a_foreign_fragment_is_rejected_counted_and_released(
    line: OpenLine, lends: bool, header: dict[str, int], reason: str
) -> None:
    one = line(2, per_rollout=1, lends=lends)
    one.send()
    one.buffer.turn()
    one.store.release(one.store.rollout())
    before = dict(one.store.admission.receptions)
    slots = RolloutStore.slots_needed(1, 4)
    one.store.rollout()
    for repetition in range(3 * slots):
        assert one.send(header={"sequence": 1, "before": 4} | header)
        one.buffer.turn()
        assert one.store.admission.rejected == repetition + 1
    assert reason in one.store.admission.first_refusal
    assert "rank 1" in one.store.admission.first_refusal
    assert one.store.admission.receptions == before


@engines
@pytest.mark.parametrize("payload", [b"", b"garbage", bytes(800)], ids=["empty", "short", "long"])
def test_messages_of_another_size_are_rejected(line: OpenLine, lends: bool, payload: bytes) -> None:
    one = line(per_rollout=1, lends=lends)
    assert len(payload) != one.store.layout.nbytes
    for _ in range(20):
        one.send_bytes(payload[: one.store.layout.nbytes + 64])
        one.buffer.turn()
    assert one.store.admission.rejected == 20
    assert "bytes, not" in one.store.admission.first_refusal


@engines
def test_garbage_of_the_right_size_is_rejected(line: OpenLine, lends: bool) -> None:
    one = line(per_rollout=1, lends=lends)
    for _ in range(20):
        one.send_bytes(b"\xff" * one.store.layout.nbytes)
        one.buffer.turn()
    assert one.store.admission.rejected == 20
    assert one.store.admission.receptions == {}


@engines
def test_released_fragments_make_room_for_ever(line: OpenLine, lends: bool) -> None:
    one = line(per_rollout=2, lends=lends)
    for _ in range(100):
        one.send()
        one.buffer.turn()
        rollout = one.store.rollout()
        if rollout is not None:
            one.store.release(rollout)
    assert one.store.admission.receptions[0, 0].samples == 400


@engines
def test_a_rollout_in_use_is_not_overwritten(line: OpenLine, lends: bool) -> None:
    one = line(per_rollout=2, lends=lends)
    for _ in range(2):
        one.send()
    one.buffer.turn()
    in_use = one.store.rollout()
    one.store.rollout()
    for _ in range(4):
        one.send()
        one.buffer.turn()
    assert names(in_use.drawn) == [(0, 0, 0), (0, 1, 0)]
    assert [stored.fields["reward"].max() for stored in in_use.drawn] == [0.0, 1.0]


@engines
def test_winding_down_takes_what_fits_and_leaves_the_rest(line: OpenLine, lends: bool) -> None:
    one = line(per_rollout=1, window=12, lends=lends)
    slots = RolloutStore.slots_needed(1, 12)
    one.store.wind_down()
    for _ in range(slots):
        one.send()
        one.buffer.turn()
    for _ in range(3):
        assert one.send()
        one.buffer.turn()
    assert one.unclaimed() == 3
    remaining = one.store.remaining()
    assert len(remaining.arrived) == slots
    one.store.release(remaining)
    one.buffer.stop()
    assert len(one.store.remaining().arrived) == 3
    assert one.store.admission.receptions[0, 0].samples == 4 * (slots + 3)


# -- lag -----------------------------------------------------------------------------------------------


def next_rollout(one: Any, version: int, actors: int = 1) -> Rollout:
    """Let the actors take turns until a rollout of this policy's fragments is there."""
    one.store.advance(version)
    assert one.store.rollout() is None, "the learner waits"
    for place in range(one.store.per_rollout):
        assert one.send(place % actors, version=version)
        one.buffer.turn()
    rollout = one.store.rollout()
    assert isinstance(rollout, Rollout)
    return rollout


def versions(rollout: Rollout) -> list[int]:
    return [stored.version for stored in rollout.drawn]


def draws(one: Any, rounds: int, actors: int = 1) -> list[list[tuple[int, int, int]]]:
    drawn = []
    for version in range(rounds):
        rollout = next_rollout(one, version, actors)
        drawn.append(names(rollout.drawn))
        one.store.release(rollout)
    return drawn


def test_a_store_of_one_rollout_hands_out_what_arrived(line: OpenLine) -> None:
    one = line(per_rollout=2)
    for version in range(3):
        rollout = next_rollout(one, version)
        assert rollout.drawn is rollout.arrived
        assert rollout.leaving is rollout.arrived
        one.store.release(rollout)


@engines
@pytest.mark.parametrize("in_step", [False, True], ids=["async", "sync"])
def test_a_rollout_is_drawn_from_the_last_k_without_replacement(
    line: OpenLine, lends: bool, in_step: bool
) -> None:
    one = line(per_rollout=4, lends=lends, in_step=in_step, rollouts=3)
    for version in range(20):
        rollout = next_rollout(one, version)
        drawn = names(rollout.drawn)
        assert len(set(drawn)) == 4
        assert {version for _, _, version in drawn} <= set(range(max(0, version - 2), version + 1))
        for stored in rollout.drawn:
            assert stored.fields["reward"].tolist() == [[int(stored.fragment.header["sequence"]) % 2] * 2] * 2
        one.store.release(rollout)


@pytest.mark.parametrize("rollouts", [2, 4, 8])
def test_on_average_one_in_k_is_new(line: OpenLine, rollouts: int) -> None:
    one = line(per_rollout=8, rollouts=rollouts)
    lags: list[int] = []
    for version in range(200):
        rollout = next_rollout(one, version)
        if version >= rollouts:
            lags += [version - used for used in versions(rollout)]
        one.store.release(rollout)
    for lag in range(rollouts):
        assert lags.count(lag) / len(lags) == pytest.approx(1 / rollouts, rel=0.25)
    assert max(lags) == rollouts - 1


def test_before_k_rollouts_have_come_what_is_there_is_drawn_from(line: OpenLine) -> None:
    one = line(per_rollout=8, rollouts=4)
    first = next_rollout(one, 0)
    assert names(first.drawn) == names(first.arrived)
    one.store.release(first)
    assert set(versions(next_rollout(one, 1))) == {0, 1}


@engines
def test_every_fragment_arrives_once_however_often_it_is_drawn(line: OpenLine, lends: bool) -> None:
    one = line(2, per_rollout=4, lends=lends, rollouts=4)
    arrived: list[tuple[int, int, int]] = []
    drawn: list[tuple[int, int, int]] = []
    for version in range(30):
        rollout = next_rollout(one, version, actors=2)
        arrived += names(rollout.arrived)
        drawn += names(rollout.drawn)
        one.store.release(rollout)
    assert arrived == [
        (place % 2, 2 * version + place // 2, version) for version in range(30) for place in range(4)
    ]
    assert max(map(drawn.count, drawn)) > 1
    assert set(drawn) < set(arrived)
    receptions = one.store.admission.receptions
    assert sum(reception.samples for reception in receptions.values()) == 4 * len(arrived)


@engines
@pytest.mark.parametrize("in_step", [False, True], ids=["async", "sync"])
def test_the_same_seed_draws_the_same(line: OpenLine, lends: bool, in_step: bool) -> None:
    def drawn(seed: int) -> list[list[tuple[int, int, int]]]:
        one = line(2, per_rollout=4, lends=lends, in_step=in_step, rollouts=4, seed=seed)
        return draws(one, 10, actors=2)

    assert drawn(1) == drawn(1) != drawn(2)


def test_in_step_the_order_of_arrival_changes_no_draw(line: OpenLine) -> None:
    def drawn(order: list[int]) -> list[list[tuple[int, int, int]]]:
        one = line(2, per_rollout=4, in_step=True, rollouts=3, seed=5)
        result = []
        for version in range(10):
            one.store.advance(version)
            for actor in order:
                assert one.send(actor, version=version)
                one.buffer.turn()
            rollout = one.store.rollout()
            result.append(names(rollout.drawn))
            one.store.release(rollout)
        return result

    assert drawn([0, 0, 1, 1]) == drawn([1, 0, 1, 0])


@engines
def test_what_is_kept_leaks_no_slot(line: OpenLine, lends: bool) -> None:
    one = line(per_rollout=2, window=12, lends=lends, rollouts=3)
    draws(one, 100)
    slots = RolloutStore.slots_needed(2, 12, 3)
    kept = 4
    one.store.wind_down()
    for _ in range(slots):
        assert one.send()
        one.buffer.turn()
    assert one.unclaimed() == kept, "no more than fit beside what is kept"
    remaining = one.store.remaining()
    assert (len(remaining.arrived), len(remaining.drawn)) == (slots - kept, 0)
    one.store.release(remaining)
    for _ in range(slots - kept):
        assert one.send()
        one.buffer.turn()
    assert one.unclaimed() == 0
    assert len(one.store.remaining().arrived) == slots


@engines
def test_what_leaves_may_be_read_until_it_is_released(line: OpenLine, lends: bool) -> None:
    one = line(per_rollout=4, window=4, lends=lends, rollouts=2, seed=3)
    draws(one, 5)
    rollout = next_rollout(one, 5)
    leaving = set(names(rollout.leaving)) & set(names(rollout.drawn))
    assert leaving, "the seed draws some that leave"
    read = names(rollout.drawn)
    rewards = [stored.fields["reward"].max() for stored in rollout.drawn]
    assert one.store.rollout() is None
    for _ in range(4):
        one.send(version=6)
        one.buffer.turn()
    assert one.unclaimed() == 0, "the next rollout was claimed meanwhile"
    assert names(rollout.drawn) == read
    assert [stored.fields["reward"].max() for stored in rollout.drawn] == rewards


def test_a_buffer_of_no_rollouts_is_refused(line: OpenLine) -> None:
    with pytest.raises(ValueError, match="at least one rollout, not 0"):
        line(per_rollout=2, rollouts=0)
