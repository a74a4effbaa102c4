import pytest
from cli.buffer.conftest import LAYOUT
from cli.buffer.rollouts import OpenLine, engines, names

from tianji_cli.roles.buffer.rollout import RolloutStore
from tianji_cli.wire.reports import Reception


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
        assert not one.send(actor), "no more is wanted: the actor waits"


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
    assert one.store.validator.receptions == {(0, 0): Reception(8, 4, 0, next_sequence=3, position=12)}


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
    receptions = one.store.validator.receptions
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
    assert one.store.validator.receptions[0, 1] == Reception(4, 4, 0, next_sequence=2, position=8)


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
    assert one.store.validator.receptions[0, 1] == Reception(8, 8, 0, next_sequence=4, position=16)


@engines
def test_a_gap_is_counted_as_lost(line: OpenLine, lends: bool) -> None:
    one = line(per_rollout=2, lends=lends)
    one.lose(samples=3)
    one.send()
    one.lose(samples=1)
    one.lose(samples=2)
    one.send()
    one.buffer.turn()
    assert one.store.validator.receptions == {(0, 0): Reception(8, 0, 6, next_sequence=5, position=14)}


def test_a_new_incarnation_is_no_gap(line: OpenLine) -> None:
    one = line(per_rollout=2)
    one.send(incarnation=0)
    one.send(incarnation=1)
    one.buffer.turn()
    assert [reception.lost for reception in one.store.validator.receptions.values()] == [0, 0]


def test_fragments_of_incarnations_that_do_not_count_any_more_are_rejected(line: OpenLine) -> None:
    one = line(per_rollout=4)
    one.send(incarnation=0)
    one.buffer.turn()
    one.buffer.peer_lost(1, counts_from=1)
    one.buffer.peer_lost(1, counts_from=0)  # A later death lowers nothing.
    one.send(incarnation=0)
    one.send(incarnation=1)
    one.buffer.turn()
    receptions = one.store.validator.receptions
    assert {source: reception.samples for source, reception in receptions.items()} == {(0, 0): 4, (0, 1): 4}
    assert one.store.validator.rejected.count == 1
    assert "actor 0 was on a host that the root has given up" in one.store.validator.rejected.first


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
    before = dict(one.store.validator.receptions)
    slots = RolloutStore.slots_needed(1, 4)
    one.store.rollout()
    for repetition in range(3 * slots):
        assert one.send(header={"sequence": 1, "before": 4} | header)
        one.buffer.turn()
        assert one.store.validator.rejected.count == repetition + 1
    assert reason in one.store.validator.rejected.first
    assert "rank 1" in one.store.validator.rejected.first
    assert one.store.validator.receptions == before


@engines
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "bytes, not"),
        (b"garbage", "bytes, not"),
        (bytes(LAYOUT.nbytes + 64), "bytes, not"),
        (b"\xff" * LAYOUT.nbytes, "its magic is"),
    ],
    ids=["empty", "short", "long", "of the right size"],
)
def test_garbage_is_rejected_and_counted(line: OpenLine, lends: bool, payload: bytes, reason: str) -> None:
    one = line(per_rollout=1, lends=lends)
    for _ in range(20):
        one.send_bytes(payload)
        one.buffer.turn()
    assert one.store.validator.rejected.count == 20
    assert reason in one.store.validator.rejected.first
    assert one.store.validator.receptions == {}


@engines
def test_released_fragments_make_room_for_ever(line: OpenLine, lends: bool) -> None:
    one = line(per_rollout=2, lends=lends)
    for _ in range(100):
        one.send()
        one.buffer.turn()
        rollout = one.store.rollout()
        if rollout is not None:
            one.store.release(rollout)
    assert one.store.validator.receptions[0, 0].samples == 400


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
    assert one.store.validator.receptions[0, 0].samples == 4 * (slots + 3)
