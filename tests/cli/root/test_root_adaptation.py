"""The number of actors with which a job trains fastest: the search, and who is parked for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from cli.root.stub_job import stub_job

from tianji_cli.config.loader import load_config
from tianji_cli.plan.plan import Host, make_plan
from tianji_cli.root.observers import adaptation
from tianji_cli.root.observers.adaptation import PAIRS, Adaptation, SplitSearch
from tianji_cli.wire.messages import Allow, Register, Report
from tianji_cli.wire.reports import LearnerReport

Rate = Callable[[int], float]


def look_for(search: SplitSearch, rate: Rate, windows: int, noise: float = 0.0, seed: int = 0) -> list[int]:
    """Give a search so many windows; return the number of actors in each."""
    stream, numbers = random.Random(seed), []
    for _ in range(windows):
        numbers.append(search.number)
        search.note(rate(search.number) * stream.gauss(1.0, noise))
    return numbers


def peaked(best: int) -> Rate:
    """Rates that rise with the actors up to a number, and fall by a twentieth with each beyond it."""
    return lambda actors: min(actors, best) * 100.0 * 0.95 ** max(0, actors - best)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("first", [1, 6, 24])
@pytest.mark.parametrize("best", [1, 5, 16, 24])
def test_it_comes_near_the_best_number_from_any_other(best: int, first: int, seed: int) -> None:
    search, rate = SplitSearch(1, 24, first), peaked(best)
    look_for(search, rate, 200, noise=0.03, seed=seed)
    assert rate(search.kept) >= 0.9 * rate(best)
    assert search.rests


def test_the_two_numbers_of_a_trial_take_turns_so_that_a_trend_favours_neither() -> None:
    assert look_for(SplitSearch(1, 8, 4), lambda _: 100.0, 8) == [4, 8, 8, 4, 4, 8, 4, 2]
    drifting = SplitSearch(1, 8, 4)
    rates = iter(range(1000, 2000, 5))
    look_for(drifting, lambda _: next(rates), 150)
    assert drifting.kept == 4


def test_no_number_leaves_its_range() -> None:
    numbers = look_for(SplitSearch(3, 10, 5), peaked(20), 100)
    numbers += look_for(SplitSearch(3, 10, 5), peaked(1), 100)
    assert (min(numbers), max(numbers)) == (3, 10)


def test_a_number_that_is_faster_is_kept_and_told_with_its_interval() -> None:
    search = SplitSearch(1, 8, 2)
    rates = {2: iter([100.0, 101.0, 99.0]), 4: iter([150.0, 149.0, 151.0])}
    verdicts = [search.note(next(rates[search.number])) for _ in range(2 * PAIRS)]
    assert verdicts[:-1] == [None] * (2 * PAIRS - 1)
    says = "4 actors in place of 2: 150/s learnt from in place of 100/s, +50 % (90 % interval +4"
    assert str(verdicts[-1]).startswith(says)
    assert (search.kept, search.tried, search.changes) == (4, 1, 1)


def test_noise_alone_moves_it_seldom() -> None:
    tried = changes = 0
    for seed in range(40):
        search = SplitSearch(1, 16, 8)
        look_for(search, lambda _: 100.0, 120, noise=0.05, seed=seed)
        tried, changes = tried + search.tried, changes + search.changes
    assert tried > 200
    assert changes <= 0.15 * tried


def test_it_rests_until_the_rate_moves() -> None:
    search = SplitSearch(1, 8, 4)
    look_for(search, peaked(4), 100)
    assert search.rests
    assert set(look_for(search, lambda actors: 1.1 * peaked(4)(actors), 30)) == {4}
    look_for(search, lambda actors: 120.0 * actors, 150)
    assert search.kept == 8
    assert search.rests


def test_a_search_that_begins_anew_tries_no_more_than_are_there() -> None:
    search = SplitSearch(4, 16, 8)
    look_for(search, peaked(8), 100)
    assert search.rests
    search.begin(3)
    assert (search.number, search.rests) == (3, True)
    search.begin(16)
    assert not search.rests
    numbers = look_for(search, peaked(12), 100)
    assert min(numbers) >= 4
    assert search.kept >= 10


class Job:
    """A job of two groups with three actors each, in which learners report what they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(adaptation, "SETTLE_S", 0.0)
        num = "distribution.actor.num={min=1, max=3, first=1}"
        asynchronous = ["distribution.mode=async", "distribution.groups=2"]
        config = load_config("configs/ppo_cartpole.toml", [num, *asynchronous])
        plan = make_plan(config, [Host("here", (0, 1))])
        self.told: dict[int, int | None] = {}
        self.events: list[str] = []
        learners = {process.rank: process.group for process in plan.carrying("learner")}
        self.job = stub_job(
            plan,
            self.events,
            config=config,
            control=self,
            near_goal=False,
            learners=learners,
            lost={},
            overview=SimpleNamespace(split=None),
        )
        self.actors = [process.rank for process in plan.carrying("actor")]
        self._steps = dict.fromkeys(learners, 0)
        self._time_s = 0.0
        self._see()
        self.adaptation = Adaptation(self.job)
        self.adaptation.on_begin()

    def send(self, rank: int, message: Allow) -> None:
        self.told[rank] = message.fragments

    def _see(self) -> None:
        groups = (process for process in self.job.plan.trainers if process.group not in self.job.lost)
        self.job.living = {process.rank for process in groups} - self.job.lost_ranks

    def lose(self, *, group: int | None = None, ranks: tuple[int, ...] = ()) -> None:
        self.job.lost |= {} if group is None else {group: "lost"}
        self.job.lost_ranks |= set(ranks)
        self._see()
        self.adaptation.on_tick(Any)

    def train(self, windows: int) -> None:
        """Have learners report so often, with steps in proportion to the actors that work."""
        unit = self.job.config.fragment_steps
        for _ in range(3 * windows):
            self._time_s += 1.0
            for rank in self.job.learners.keys() & self.job.living:
                self._steps[rank] += (
                    4 * unit * len([one for one in self.actors if one not in self.job.parked])
                )
                made = self._steps[rank]
                learner = LearnerReport(
                    env_steps=made, session_consumed=made, version=4 * int(self._time_s), rho=1.0
                )
                report = Report(
                    rank=rank, incarnation=0, roles=[learner], busy_s=[0.0], running_s=self._time_s
                )
                self.adaptation.on_message(report)

    @property
    def working(self) -> set[int]:
        return set(self.actors) - self.job.parked - self.job.lost_ranks


def test_each_group_has_as_many_working_and_the_others_are_told_to_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Job(monkeypatch)
    first, second = one.actors[:3], one.actors[3:]
    assert one.working == {first[0], second[0]}
    assert one.told == dict.fromkeys([*first[1:], *second[1:]], 0)
    one.train(40)
    assert one.job.overview.split.actors == 3
    assert one.working == set(one.actors)
    assert one.told == dict.fromkeys([*first[1:], *second[1:]])
    assert one.events[-1] == "3 actors train fastest: neither more nor fewer are faster"


def test_a_lost_group_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Job(monkeypatch)
    one.train(2)
    one.lose(group=1)
    one.train(40)
    assert one.job.overview.split.actors == 3


def test_an_actor_that_is_lost_is_replaced_by_one_that_was_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Job(monkeypatch)
    one.lose(ranks=(one.actors[0],))
    assert one.working == {one.actors[1], one.actors[3]}
    assert one.told[one.actors[1]] is None


def test_a_parked_actor_that_begins_again_is_told_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Job(monkeypatch)
    one.told.clear()
    for rank in one.actors[:2]:
        one.adaptation.on_message(Register(rank=rank, incarnation=1, pid=1, address=""))
    assert one.told == {one.actors[1]: 0}


def test_near_the_goal_nobody_is_woken_or_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Job(monkeypatch)
    one.told.clear()
    one.job.near_goal = True
    one.train(40)
    assert one.told == {}
