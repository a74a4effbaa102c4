import pytest

from tianji_cli.root import announcements as silence
from tianji_cli.root.announcements import LATE_S, Silence


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
    ranks = Silence(range(3))
    clock.now_s += LATE_S
    assert ranks.newly_late(range(3)) == []
    assert not ranks.is_broken(1)
    clock.now_s += 1
    assert ranks.newly_late(range(3)) == [0, 2]
    assert ranks.newly_late(range(3)) == []
    clock.now_s += LATE_S
    assert ranks.newly_late(range(3)) == [1]


def test_a_rank_that_was_late_is_told_of_when_it_is_heard_of_again_and_may_be_late_again(
    clock: Clock,
) -> None:
    ranks = Silence([4])
    assert not ranks.is_broken(4)
    for _ in range(2):
        clock.now_s += LATE_S + 1
        assert ranks.newly_late([4]) == [4]
        assert ranks.is_broken(4)
        assert not ranks.is_broken(4)


def test_a_rank_that_was_just_started_is_not_late(clock: Clock) -> None:
    ranks = Silence([1, 2])
    clock.now_s += LATE_S + 1
    ranks.begin(1)
    assert ranks.newly_late([1, 2]) == [2]
    ranks.begin(2)
    assert not ranks.is_broken(2), "its predecessor was late"
    clock.now_s += LATE_S + 1
    assert ranks.newly_late([1, 2]) == [1, 2]


def test_a_silence_lasts_when_it_was_reported_before_and_the_limit_is_over(clock: Clock) -> None:
    ranks = Silence([1, 2])
    clock.now_s += 100
    assert ranks.lasting([1, 2], 60) == [], "the root may have been suspended itself"
    assert ranks.newly_late([1, 2]) == [1, 2]
    assert ranks.is_broken(2)
    clock.now_s += 1
    assert ranks.lasting([1, 2], 60) == [1]
    assert ranks.lasting([1, 2], 101) == []
    ranks.begin(1)
    clock.now_s += 100
    assert ranks.lasting([1], 60) == []


def test_no_time_counts_against_a_rank_that_is_suspended(clock: Clock) -> None:
    ranks = Silence([1, 2])
    clock.now_s += LATE_S + 1
    ranks.newly_late([1, 2])
    clock.now_s += 100
    ranks.pause([1])
    clock.now_s += 1
    assert ranks.lasting([1, 2], 60) == [2]
    assert ranks.is_broken(1), "it is said when it is heard of again"


def test_only_those_that_are_asked_for_are_reported(clock: Clock) -> None:
    ranks = Silence([1, 2])
    clock.now_s += LATE_S + 1
    assert ranks.newly_late([]) == []
    assert ranks.newly_late([2]) == [2]
    assert ranks.newly_late([1, 2]) == [1]
