"""``produced = received + in_flight + lost + dropped``, term by term, over generated histories."""

import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tianji_cli.files.counters import Production, ProductionFile, ProductionPage
from tianji_cli.root.accounting import recently_dropped, reconcile
from tianji_cli.telemetry.snapshot import Account
from tianji_cli.wire.reports import Reception, Source

ACTORS = 3


@dataclass
class Incarnation:
    """An actor between two deaths, and what it alone knows.

    Attributes:
        fragments: (sequence, before, samples) on their way, oldest first.
        unresolved: samples of pushed fragments of which no later one was received.
        written_off: numbers of those that were under way when a role on their way was replaced.
    """

    source: Source
    page: ProductionPage
    unfinished: int = 0
    sequence: int = 0
    sent: int = 0
    fragments: deque[tuple[int, int, int]] = field(default_factory=deque)
    unresolved: dict[int, int] = field(default_factory=dict)
    written_off: set[int] = field(default_factory=set)


class History:
    """Drives real pages and receptions, and adds the terms up in a second way."""

    def __init__(self, path: Path) -> None:
        self.file = ProductionFile(path, 2 * ACTORS)
        self.role = [ProductionPage(self.file, ACTORS + actor) for actor in range(ACTORS)]
        self.living = [self._born(actor, 0) for actor in range(ACTORS)]
        self.gone: list[Incarnation] = []
        self.ended: dict[Source, Production] = {}
        self.killed: set[Source] = set()
        self.receptions: dict[Source, Reception] = {}
        self.receiver_lives = True
        self.written_off: dict[Source, int] = {}
        self.produced = self.received = self.in_flight = self.lost = self.dropped = 0

    def _born(self, actor: int, incarnation: int) -> Incarnation:
        self.file.begin(actor, incarnation)
        return Incarnation((actor, incarnation), ProductionPage(self.file, actor))

    def step(self, actor: int, samples: int) -> None:
        one = self.living[actor]
        one.page.count(samples)
        one.unfinished += samples
        self.produced += samples

    def push(self, actor: int, *, arrives: bool = True) -> None:
        one = self.living[actor]
        one.page.push()
        one.unresolved[one.sequence] = one.unfinished
        if arrives:
            one.fragments.append((one.sequence, one.sent, one.unfinished))
        one.sequence, one.sent, one.unfinished = one.sequence + 1, one.sent + one.unfinished, 0

    def receive(self, actor: int, *, useful: bool = True) -> None:
        """Let a role send on the oldest fragment of an actor, which may have died since, and it arrives."""
        for one in self._lives_of(actor):
            if one.fragments and self.receiver_lives:
                sequence, before, samples = one.fragments.popleft()
                self.role[actor].claim(one.source[1], samples)
                self.role[actor].push()
                reception = self.receptions.setdefault(one.source, Reception())
                reception.follow(sequence, before, samples)
                if useful:
                    reception.samples += samples
                    self.received += samples
                else:
                    reception.dropped += samples
                    self.dropped += samples
                del one.unresolved[sequence]
                for missed in [n for n in one.unresolved if n < sequence]:
                    self.lost += one.unresolved.pop(missed)
                return

    def leave_out(self, actor: int) -> None:
        """Let a role before the buffer drop the oldest fragment of an actor."""
        for one in self._lives_of(actor):
            if one.fragments:
                sequence, _, samples = one.fragments.popleft()
                self.role[actor].claim(one.source[1], samples)
                self.role[actor].drop()
                self.dropped += one.unresolved.pop(sequence)
                return

    def _lives_of(self, actor: int) -> list[Incarnation]:
        """Incarnations of an actor, the oldest first: their fragments come in this order."""
        return [*(old for old in self.gone if old.source[0] == actor), self.living[actor]]

    @property
    def passed(self) -> dict[int, list[Production]]:
        return {actor: [self.file.read(ACTORS + actor)] for actor in range(ACTORS)}

    def replace_role(self) -> None:
        """Let a role before the buffer die with all that is under way, and come again."""
        for one in (*self.gone, *self.living):
            if one.fragments:
                _, _, in_hand = one.fragments.popleft()
                self.role[one.source[0]].claim(one.source[1], in_hand)
            one.fragments.clear()
            one.written_off |= one.unresolved.keys()
            page = self.ended[one.source] if one in self.gone else self.file.read(one.source[0])
            self.written_off[one.source] = page.finished - recently_dropped(one.source, self.passed)
        self.role = [ProductionPage(self.file, ACTORS + actor) for actor in range(ACTORS)]

    def reject(self, actor: int) -> None:
        """Let the oldest fragment of an actor be unreadable."""
        if self.living[actor].fragments:
            self.living[actor].fragments.popleft()

    def kill(self, actor: int) -> None:
        one = self.living[actor]
        self.killed.add(one.source)
        self.lost += one.unfinished
        self.ended[one.source] = self.file.read(actor)
        self.gone.append(one)
        self.living[actor] = self._born(actor, one.source[1] + 1)

    def lose_receiver(self) -> None:
        self.receiver_lives = False

    def end(self) -> None:
        """Let every actor that lives stop in order."""
        for one in self.living:
            if one.unfinished:
                one.page.drop()
                self.dropped += one.unfinished
        for one in (*self.gone, *self.living):
            for number, samples in one.unresolved.items():
                if one.source in self.killed or not self.receiver_lives or number in one.written_off:
                    self.lost += samples
                else:
                    self.in_flight += samples

    def account(self) -> Account:
        pages = {one.source: self.file.read(one.source[0]) for one in self.living}
        productions = {**self.ended, **pages}
        written_off = self.written_off
        if not self.receiver_lives:
            written_off = {source: production.finished for source, production in productions.items()}
        return reconcile(productions, self.receptions, self.killed, written_off, self.passed)

    def expected(self) -> Account:
        return Account(self.produced, self.received, self.in_flight, self.lost, self.dropped)


actor = st.integers(0, ACTORS - 1)
event = st.one_of(
    st.tuples(st.just("step"), actor, st.integers(0, 5)),
    st.tuples(st.just("push"), actor),
    st.tuples(st.just("push"), actor),
    st.tuples(st.just("receive"), actor),
    st.tuples(st.just("receive_in_vain"), actor),
    st.tuples(st.just("reject"), actor),
    st.tuples(st.just("leave_out"), actor),
    st.tuples(st.just("replace_role")),
    st.tuples(st.just("kill"), actor),
    st.tuples(st.just("kill_between_count_and_push"), actor),
)


@settings(max_examples=300)
@given(st.lists(event, max_size=60), st.integers(0, 80))
def test_every_sample_is_in_the_account_it_belongs_to(events: list[tuple[str, ...]], lost_at: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        history = History(Path(directory) / "production.bin")
        for i, (what, *arguments) in enumerate(events):
            if i == lost_at:
                history.lose_receiver()
            if what == "receive_in_vain":
                history.receive(*arguments, useful=False)
            elif what == "kill_between_count_and_push":
                history.push(*arguments, arrives=False)
                history.kill(*arguments)
            else:
                getattr(history, what)(*arguments)
        history.end()
        account = history.account()
    assert account == history.expected()
    assert account.unaccounted == 0


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "production.bin")


def run(history: History, fragments: int, samples: int = 4) -> None:
    for _ in range(fragments):
        history.step(0, samples)
        history.push(0)


def test_a_fragment_rejected_long_ago_is_still_lost(history: History) -> None:
    run(history, 1)
    history.reject(0)
    for _ in range(1000):
        run(history, 1)
        history.receive(0)
    history.end()
    assert history.account() == Account(produced=4004, received=4000, in_flight=0, lost=4, dropped=0)


def test_what_a_dead_receiver_did_not_report_is_lost_however_much_it_is(history: History) -> None:
    run(history, 5)
    for _ in range(5):
        history.receive(0)
    history.lose_receiver()
    run(history, 1000)
    history.end()
    assert history.account() == Account(produced=4020, received=20, in_flight=0, lost=4000, dropped=0)


def test_only_the_actors_of_a_dead_buffer_lose_what_they_pushed(history: History) -> None:
    for actor in range(2):
        history.step(actor, 4)
        history.push(actor)
    history.end()
    productions = {(actor, 0): history.file.read(actor) for actor in range(2)}
    account = reconcile(productions, {}, set(), {(1, 0): 4})
    assert account == Account(produced=8, received=0, in_flight=4, lost=4, dropped=0)


def test_a_killed_actor_loses_what_it_filled_and_what_nobody_received(history: History) -> None:
    run(history, 3)
    history.receive(0)
    history.step(0, 3)
    history.kill(0)
    history.end()
    assert history.account() == Account(produced=15, received=4, in_flight=0, lost=11, dropped=0)


def test_what_a_killed_actor_had_pushed_may_still_arrive(history: History) -> None:
    run(history, 2)
    history.kill(0)
    history.receive(0)
    history.receive(0)
    history.end()
    assert history.account() == Account(produced=8, received=8, in_flight=0, lost=0, dropped=0)


def test_an_actor_that_stops_in_order_leaves_fragments_in_flight_and_drops_its_last(history: History) -> None:
    run(history, 2)
    history.step(0, 1)
    history.end()
    assert history.account() == Account(produced=9, received=0, in_flight=8, lost=0, dropped=1)


def test_a_miscount_is_not_hidden_in_another_term(history: History) -> None:
    run(history, 3)
    for _ in range(3):
        history.receive(0)
    history.receptions[0, 0].samples -= 4
    history.end()
    assert history.account().unaccounted == 4


def test_what_an_actor_left_unfinished_without_giving_it_up_is_lost(history: History) -> None:
    history.step(0, 2)
    assert history.account() == Account(produced=2, received=0, in_flight=0, lost=2, dropped=0)


def test_what_a_role_dropped_before_it_was_killed_is_dropped_and_not_lost_though_later_ones_came(
    history: History,
) -> None:
    run(history, 2)
    history.leave_out(0)
    history.replace_role()
    run(history, 2)
    history.receive(0)
    history.leave_out(0)
    history.end()
    assert history.account() == Account(produced=16, received=4, in_flight=0, lost=4, dropped=8)
    page = history.file.read(ACTORS)
    assert page.produced == page.finished + page.dropped + page.lost == 16


def test_what_is_on_its_way_to_a_role_that_came_again_is_in_flight_and_what_it_dropped_before_is_not_lost(
    history: History,
) -> None:
    run(history, 2)
    history.leave_out(0)
    history.replace_role()
    run(history, 1)
    history.end()
    assert history.account() == Account(produced=12, received=0, in_flight=4, lost=4, dropped=4)


def test_what_was_dropped_of_a_killed_actor_is_not_taken_from_what_its_successor_has_on_its_way(
    history: History,
) -> None:
    run(history, 1)
    history.leave_out(0)
    history.kill(0)
    run(history, 2)
    history.leave_out(0)
    history.end()
    assert history.account() == Account(produced=12, received=0, in_flight=4, lost=0, dropped=8)
