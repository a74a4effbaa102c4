"""Claims about the race: who is trained with, who is dropped, when it ends, who wins."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import cast

import pytest
from lab.profile.conftest import Find

from tianji_cli.errors import RunFailed
from tianji_cli.telemetry.progress import Progress
from tianji_cli.wire.reports import LearnerReport
from tianji_lab.profile import race as racing
from tianji_lab.profile.candidates import Candidate
from tianji_lab.profile.race import ROUNDS, Race, race, verify
from tianji_lab.profile.trainer import Trained, Trainer


class Clockwork:
    """Stands in for a trainer: a training takes its window and two seconds, by a clock that it moves.

    Args:
        rates: sample uses a second of each candidate, one for each of its trainings, again and again;
            0 fails.
    """

    def __init__(self, candidates: Sequence[Candidate], *rates: Sequence[float]) -> None:
        self.now = 100.0
        self.trained: list[int] = []
        self._numbers = {one.settings: number for number, one in enumerate(candidates)}
        self._rates = [itertools.cycle(each) for each in rates]

    def monotonic(self) -> float:
        return self.now

    def train(self, settings: tuple[str, ...], seconds: float) -> Trained:
        number = self._numbers[settings]
        self.trained.append(number)
        self.now += seconds + 2.0
        rate = next(self._rates[number])
        if not rate:
            raise RunFailed("out of memory")
        return Trained(rate / 4, rate, LearnerReport())


@pytest.fixture
def six(found: Find) -> list[Candidate]:
    return list(found().listed)


def ran(
    monkeypatch: pytest.MonkeyPatch, candidates: Sequence[Candidate], seconds: float, *rates: Sequence[float]
) -> tuple[Race, Clockwork]:
    trainer = Clockwork(candidates, *rates)
    monkeypatch.setattr(racing, "time", trainer)
    with Progress(0, quiet=True) as progress:
        return race(cast("Trainer", trainer), candidates, seconds, progress), trainer


def test_the_worse_half_is_dropped_until_one_is_clearly_ahead(
    monkeypatch: pytest.MonkeyPatch, six: list[Candidate]
) -> None:
    found, trainer = ran(monkeypatch, six, 1000.0, [90], [100, 95], [50], [92], [91], [98, 80])
    # 90 and 91 are as near as 92 and not in the better half; the duel goes on until one is ahead.
    assert trainer.trained[:9] == [0, 1, 2, 3, 4, 5, 1, 5, 3]
    assert set(trainer.trained[9:]) <= {1, 3}
    assert found.winner.candidate == six[1]


def test_one_that_is_ahead_in_every_training_wins_before_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch, six: list[Candidate]
) -> None:
    found, trainer = ran(monkeypatch, six[:3], 1000.0, [100, 99], [90, 91], [60])
    assert found.is_clear
    assert found.winner.candidate == six[0]
    assert Counter(trainer.trained) == {0: 2, 1: 2, 2: 1}, "one that is far behind is not tried again"
    assert found.winner.measured == pytest.approx((3 * 100 + 6 * 99) / 9), "longer trainings count for more"


def test_a_race_that_is_not_clear_ends_with_its_time_and_says_so(
    monkeypatch: pytest.MonkeyPatch, six: list[Candidate]
) -> None:
    found, trainer = ran(monkeypatch, six[:2], 100.0, [100, 90], [99, 91])
    assert not found.is_clear
    assert trainer.now <= 200.0
    assert found.seconds <= 100.0


def test_what_there_is_no_time_for_is_not_trained_with_but_two_always_are(
    monkeypatch: pytest.MonkeyPatch, six: list[Candidate]
) -> None:
    found, trainer = ran(monkeypatch, six, 1.0, *[[100]] * 6)
    assert trainer.trained == [0, 1]
    assert len(found.contenders) == 2
    assert not found.is_clear


def test_of_a_tie_the_one_with_the_fewest_changes_wins(
    monkeypatch: pytest.MonkeyPatch, six: list[Candidate]
) -> None:
    own = next(one for one in six if not one.changes)
    other = next(one for one in six if one.changes)
    found, _ = ran(monkeypatch, [other, own], 30.0, [100], [99.5])
    assert found.winner.candidate == own
    assert found.contenders[1].candidate == other


def test_one_that_was_dropped_does_not_win_when_the_machine_gets_slower(
    monkeypatch: pytest.MonkeyPatch, six: list[Candidate]
) -> None:
    slower = [[100, 92], [99.5, 91], [99, 91.5], [98.5], [80], [70]]
    found, trainer = ran(monkeypatch, six, 60.0, *slower)
    assert Counter(trainer.trained)[3] == 1
    assert found.winner.candidate in six[:3]
    assert [one.candidate for one in found.contenders[3:]] == six[3:]


def test_a_candidate_that_fails_ends_no_other_and_is_named(
    monkeypatch: pytest.MonkeyPatch, six: list[Candidate]
) -> None:
    found, _ = ran(monkeypatch, six[:3], 60.0, [0], [100, 99], [90, 89])
    assert found.winner.candidate == six[1]
    assert [(one.candidate, one.failure) for one in found.failed] == [(six[0], "out of memory")]
    assert six[0] not in [one.candidate for one in found.contenders]
    with pytest.raises(RunFailed, match="out of memory"):
        ran(monkeypatch, six[:2], 60.0, [0], [0])


def test_if_all_finalists_fail_later_those_dropped_before_take_their_place(
    monkeypatch: pytest.MonkeyPatch, six: list[Candidate]
) -> None:
    found, trainer = ran(monkeypatch, six[:4], 1000.0, [100, 0], [99, 0], [90], [80])
    assert trainer.trained == [0, 1, 2, 3, 0, 1]
    assert [one.candidate for one in found.contenders] == [six[2], six[3]]
    assert [one.candidate for one in found.failed] == six[:2]
    assert (found.fell_back, found.is_clear) == (True, False)
    with pytest.raises(
        RunFailed, match="every split of the race failed, so there is no result: out of memory"
    ):
        ran(monkeypatch, six[:2], 1000.0, [100, 0], [99, 0])


def test_one_candidate_alone_is_a_race_that_is_won(
    monkeypatch: pytest.MonkeyPatch, six: list[Candidate]
) -> None:
    found, trainer = ran(monkeypatch, six[:1], 60.0, [100])
    assert found.is_clear
    assert trainer.trained == [0]


def test_to_verify_all_take_turns_and_none_is_dropped(
    monkeypatch: pytest.MonkeyPatch, six: list[Candidate]
) -> None:
    trainer = Clockwork(six[:3], [100, 110, 90], [10], [50])
    with Progress(0, quiet=True) as progress:
        found = verify(cast("Trainer", trainer), six[:3], progress)
    assert trainer.trained == [0, 1, 2] * ROUNDS
    assert [one.candidate for one in found] == six[:3]
    assert found[0].rates.middle == 100.0
    assert found[0].rates.apart == pytest.approx(0.2)
