"""A buffer apart from a learner of rollouts sends on what it receives, as far as there is room."""

import itertools
import threading
from collections.abc import Iterator

import pytest
from cli.buffer.conftest import JOB, LAYOUT

from tianji_cli.config.edges import BATCHES, FRAGMENTS
from tianji_cli.errors import RunFailed
from tianji_cli.roles.buffer import buffer as buffers
from tianji_cli.roles.buffer.buffer import Buffer
from tianji_cli.roles.buffer.rollout import FragmentRelay
from tianji_cli.wire.fragment import Fragment
from tianji_transports.core import FULL
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Channel, Wiring

BUFFER, ACTOR, LEARNER, WINDOW = 0, 1, 2, 2
_numbers = itertools.count()


class Hop:
    """An actor, a buffer apart and the learner's end of the channel between them."""

    def __init__(self) -> None:
        channels = (
            Channel(FRAGMENTS, BUFFER, (ACTOR,), LAYOUT.nbytes + 64, 20),
            Channel(BATCHES, LEARNER, (BUFFER,), LAYOUT.nbytes, WINDOW),
        )
        wiring = Wiring(f"hop-{next(_numbers)}", channels)
        self.buffer_end, self.actor, self.learner = (InprocTransport(wiring, rank) for rank in range(3))
        relay = FragmentRelay(LAYOUT, JOB, {ACTOR: (5,)}, self.buffer_end, LEARNER)
        self.buffer = Buffer(self.buffer_end, FRAGMENTS, relay)
        self._sent = 0

    def send(self, fragments: int, job: int = JOB) -> None:
        for _ in range(fragments):
            loan = self.actor.loan(BUFFER, FRAGMENTS, LAYOUT.nbytes)
            assert loan is not FULL
            fragment = Fragment(LAYOUT, loan.memory)
            place = {"sequence": self._sent, "before": 4 * self._sent}
            fragment.begin(job=job, actor=5, incarnation=0, version=0, **place)
            fragment.header["samples"] = 4
            fragment.fields["reward"][...] = self._sent
            self._sent += job == JOB
            self.actor.push(loan)

    def take(self) -> list[int]:
        """Sequence numbers of the fragments that have come to the learner."""
        found = []
        while (claim := self.learner.probe(BATCHES)) is not None:
            fragment = Fragment(LAYOUT, claim.view())
            assert fragment.refusal(JOB, (5,)) is None
            assert (fragment.fields["reward"] == int(fragment.header["sequence"])).all()
            found.append(int(fragment.header["sequence"]))
            claim.release()
        return found

    def close(self) -> None:
        for end in (self.actor, self.buffer_end, self.learner):
            end.close()


@pytest.fixture
def hop() -> Iterator[Hop]:
    one = Hop()
    yield one
    one.close()


def test_fragments_are_sent_on_in_their_order_while_the_learner_has_room(hop: Hop) -> None:
    hop.send(5)
    assert hop.buffer.turn()
    assert not hop.buffer.turn()
    assert hop.actor.unconfirmed(BUFFER, FRAGMENTS) == 5 - WINDOW, "the rest waits with its actor"
    found = hop.take()
    while hop.buffer.turn():
        found += hop.take()
    assert found == [0, 1, 2, 3, 4]
    assert hop.buffer.report().received == 20


def test_what_is_no_fragment_of_the_job_is_counted_and_not_sent_on(hop: Hop) -> None:
    hop.send(1, job=JOB + 1)
    loan = hop.actor.loan(BUFFER, FRAGMENTS, 3)
    assert loan is not FULL
    hop.actor.push(loan)
    hop.send(1)
    hop.buffer.turn()
    assert hop.take() == [0]
    assert hop.buffer.report().rejected["fragments"][0] == 2


def test_a_stopping_buffer_waits_until_the_learner_has_claimed_the_rest(hop: Hop) -> None:
    hop.send(7)
    found: list[int] = []
    over = threading.Event()

    def listen() -> None:
        while not over.wait(0.001):
            found.extend(hop.take())

    listener = threading.Thread(target=listen)
    listener.start()
    hop.buffer.stop()
    over.set()
    listener.join()
    assert found == list(range(7))


def test_a_learner_that_claims_nothing_ends_the_wait(hop: Hop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "DELIVERY_LIMIT_S", 0.2)
    hop.send(3)
    with pytest.raises(RunFailed, match="the learner has not heard of 2 fragments"):
        hop.buffer.stop()
