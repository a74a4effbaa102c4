import threading
from dataclasses import replace

import pytest

from tianji_transports.core import ANY
from tianji_transports.endpoint import HeldClaim
from tianji_transports.errors import MessageTooLargeError, TransportError
from tianji_transports.inproc import InprocInlet, InprocTransport
from tianji_transports.testing import verbs
from tianji_transports.wiring import Channel, Slot, Wiring


def test_a_message_is_the_very_memory_that_was_filled() -> None:
    wiring = Wiring("same memory", (Channel("f", 0, (0,), 64),))
    with InprocTransport(wiring, 0) as endpoint:
        loan = verbs.loan(endpoint, 0, "f", 8)
        memory = loan.memory
        memory[:] = b"12345678"
        endpoint.push(loan)
        claim = verbs.claim(endpoint, "f")
        memory[0] = ord("x")
        assert bytes(claim.view()) == b"x2345678"
        claim.release()


def test_jobs_are_apart() -> None:
    first = InprocTransport(Wiring("a", (Channel("f", 0, (0,), 64),)), 0)
    second = InprocTransport(Wiring("b", (Channel("f", 0, (0,), 64),)), 0)
    with first, second:
        verbs.push(first, 0, "f", 1, 10)
        assert second.probe("f") is None
        verbs.receive(first, "f", 0, 1)


def test_a_receiver_that_comes_back_starts_empty_and_the_sender_gets_its_window_back() -> None:
    wiring = Wiring("back", (Channel("f", 0, (1,), 64, window=2),))
    with InprocTransport(wiring, 1) as sender:
        receiver = InprocTransport(wiring, 0)
        for number in range(2):
            verbs.push(sender, 0, "f", number, 10)
        assert receiver.close().unclaimed == {(1, "f"): 2}
        assert not sender.loan(0, "f", 1)
        with InprocTransport(wiring, 0, incarnation=1) as receiver:
            assert receiver.probe("f") is None
            verbs.push(sender, 0, "f", 5, 10)
            verbs.receive(receiver, "f", 1, 5)
            assert sender.close().unconfirmed == {(0, "f"): 2}


class Narrow(InprocTransport):
    """An engine with limits, as a user's may have."""

    capabilities = replace(InprocTransport.capabilities, max_bytes=64, max_borrowed=2)


def test_what_an_engine_cannot_carry_or_lend_is_refused_at_the_start() -> None:
    Narrow(Wiring("fits", (Channel("f", 0, (0,), 64, borrow=2),)), 0).close()
    with pytest.raises(MessageTooLargeError, match="'f' has up to 65 bytes; Narrow moves 64"):
        Narrow(Wiring("large", (Channel("f", 0, (0,), 65),)), 0)
    with pytest.raises(TransportError, match="'f' borrows 3 claims; Narrow lends 2"):
        Narrow(Wiring("many", (Channel("f", 0, (0,), 64, borrow=3),)), 0)


class Hesitant(InprocTransport):
    """An engine that sees a message come before it can hand it out, as those do that receive it in parts."""

    hesitates = True

    def _claim(self, inlet: InprocInlet) -> HeldClaim | None:
        if self.hesitates:
            self.hesitates = False
            return None
        return super()._claim(inlet)


@pytest.mark.parametrize("source", [ANY, 0])
def test_a_message_that_was_asked_for_in_vain_wakes_again(source: int) -> None:
    with Hesitant(Wiring("hesitant", (Channel("f", 0, (0,), 64),)), 0) as endpoint:
        verbs.push(endpoint, 0, "f", 1, 10)
        assert endpoint.wait(verbs.PATIENCE_S)
        assert not endpoint.wait(0), "it was reported, and nobody asked for it"
        assert endpoint.probe("f", source) is None
        assert endpoint.wait(0)
        verbs.receive(endpoint, "f", 0, 1)


def test_a_message_that_is_left_alone_wakes_again_once_something_was_pushed() -> None:
    wiring = Wiring("left alone", (Channel("f", 0, (0,), 64), Channel("g", 1, (0,), 64)))
    with InprocTransport(wiring, 0) as endpoint, InprocTransport(wiring, 1):
        verbs.push(endpoint, 0, "f", 1, 10)
        assert endpoint.wait(verbs.PATIENCE_S)
        assert not endpoint.wait(0)
        verbs.push(endpoint, 1, "g", 1, 10)
        assert endpoint.wait(0)


def test_threads_share_values_that_are_never_torn() -> None:
    wiring = Wiring("values", (), (Slot("p", 0, (1, 2, 3), 20_000),))
    count = 300
    seen: dict[int, int] = {}

    def read(rank: int) -> None:
        with InprocTransport(wiring, rank) as reader:
            seen[rank] = verbs.read_to(reader, "p", 0, count - 1)

    with InprocTransport(wiring, 0) as writer:
        threads = [threading.Thread(target=read, args=(rank,)) for rank in (1, 2, 3)]
        for thread in threads:
            thread.start()
        verbs.publish_many(writer, "p", 0, count, 20_000)
        for thread in threads:
            thread.join(verbs.PATIENCE_S)
    assert seen.keys() == {1, 2, 3}
