import pytest

from tianji_cli.root.observers import hangs as silence
from tianji_cli.root.observers.hangs import LATE_S, LastHeard


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(silence, "time", one)
    return one


def test_a_rank_is_reported_once_when_it_was_not_heard_of_for_long(clock: Clock) -> None:
    ranks = LastHeard(range(3))
    clock.now_s += LATE_S
    assert ranks.newly_late(range(3)) == []
    assert not ranks.is_broken(1, 0.0)
    clock.now_s += 1
    assert ranks.newly_late(range(3)) == [0, 2]
    assert ranks.newly_late(range(3)) == []
    clock.now_s += LATE_S
    assert ranks.newly_late(range(3)) == [1]


def test_a_rank_that_was_late_is_told_of_when_it_is_heard_of_again_and_may_be_late_again(
    clock: Clock,
) -> None:
    ranks = LastHeard([4])
    assert not ranks.is_broken(4, 0.0)
    for _ in range(2):
        clock.now_s += LATE_S + 1
        assert ranks.newly_late([4]) == [4]
        assert ranks.is_broken(4, 0.0)
        assert not ranks.is_broken(4, 0.0)


def test_a_rank_that_was_just_started_is_not_late(clock: Clock) -> None:
    ranks = LastHeard([1, 2])
    clock.now_s += LATE_S + 1
    ranks.begin(1)
    assert ranks.newly_late([1, 2]) == [2]
    ranks.begin(2)
    assert not ranks.is_broken(2, 0.0), "its predecessor was late"
    clock.now_s += LATE_S + 1
    assert ranks.newly_late([1, 2]) == [1, 2]


def test_a_rank_is_silent_for_longest_when_both_clocks_say_so(clock: Clock) -> None:
    ranks = LastHeard([1])
    clock.now_s += 3
    assert ranks.of(1) == (3, 0)
    assert not ranks.is_broken(1, 2.0), "the root was suspended for a second"
    assert ranks.of(1) == (0, 20)
    clock.now_s += 1
    ranks.is_broken(1, 5.0)
    assert ranks.of(1) == (0, 20)
    ranks.begin(1)
    assert ranks.of(1) == (0, 20), "its successor steps the same environment"


def test_no_time_counts_against_a_rank_that_is_suspended(clock: Clock) -> None:
    ranks = LastHeard([1, 2])
    clock.now_s += LATE_S + 1
    ranks.pause(1)
    assert ranks.of(1)[0] == 0
    assert ranks.newly_late([1, 2]) == [1, 2], "it is not heard of all the same"
    clock.now_s += 1
    assert [ranks.of(rank)[0] for rank in (1, 2)] == [1, LATE_S + 2]
    assert ranks.is_broken(1, 100.0), "it is said when it is heard of again"
    assert ranks.of(1) == (0, 10)


def test_only_those_that_are_asked_for_are_reported(clock: Clock) -> None:
    ranks = LastHeard([1, 2])
    clock.now_s += LATE_S + 1
    assert ranks.newly_late([]) == []
    assert ranks.newly_late([2]) == [2]
    assert ranks.newly_late([1, 2]) == [1]
