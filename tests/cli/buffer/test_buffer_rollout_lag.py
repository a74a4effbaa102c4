"""A store that holds several rollouts draws each from all of them (the paper's Lagk)."""

from typing import Any

import pytest
from cli.buffer.rollouts import OpenLine, engines, names

from tianji_cli.roles.buffer.rollout import Rollout, RolloutStore


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
    receptions = one.store.validator.receptions
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
