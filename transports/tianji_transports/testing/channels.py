"""What holds for channels: order, sizes, windows, claims, loans."""

from __future__ import annotations

import ctypes
from array import array
from typing import ClassVar

import pytest

from tianji_transports.core import FULL, Transport
from tianji_transports.errors import MessageTooLargeError, TransportError
from tianji_transports.testing import verbs
from tianji_transports.testing.job import Job
from tianji_transports.wiring import Channel

MAX = 300_000


def stream_to_0(senders: tuple[int, ...] = (1,), window: int = 2, borrow: int = 1) -> tuple[Channel, ...]:
    """A channel to rank 0."""
    return (Channel("f", 0, senders, MAX, window, borrow),)


def introduce(*endpoints: Transport) -> None:
    """Give endpoints of one thread the turns in which they notice one another."""
    for _ in range(5):
        for endpoint in endpoints:
            endpoint.wait(0.02)


class ChannelContract:
    """Channels, whatever the engine."""

    engine: ClassVar[str]

    def test_messages_of_four_senders_arrive_once_intact_and_in_order(self) -> None:
        """FIFO for each (source, channel)."""
        count = 40
        with Job(self.engine, stream_to_0((1, 2, 3, 4))) as job:
            receiver = job.open(0)
            senders = [job.start(rank) for rank in (1, 2, 3, 4)]
            for sender in senders:
                sender.tell("stream", 0, "f", count, 100_000)
            numbers = dict.fromkeys((1, 2, 3, 4), 0)
            for _ in range(4 * count):
                held = verbs.claim(receiver, "f")
                assert held.nbytes == 100_000 + numbers[held.source]
                verbs.check(held.view(), held.source, numbers[held.source])
                numbers[held.source] += 1
                held.release()
            assert numbers == dict.fromkeys((1, 2, 3, 4), count)
            assert receiver.probe("f") is None
            for sender in senders:
                sender.answer()

    def test_sixteen_senders_at_once_keep_their_order(self) -> None:
        """However many push into one channel, nothing is lost, doubled or overtaken."""
        ranks, count = tuple(range(1, 17)), 25
        with Job(self.engine, stream_to_0(ranks, window=4)) as job:
            receiver = job.open(0)
            senders = [job.start(rank) for rank in ranks]
            for sender in senders:
                sender.tell("stream", 0, "f", count, 2_000)
            numbers = dict.fromkeys(ranks, 0)
            for _ in range(len(ranks) * count):
                held = verbs.claim(receiver, "f")
                verbs.check(held.view(), held.source, numbers[held.source])
                numbers[held.source] += 1
                held.release()
            assert numbers == dict.fromkeys(ranks, count)
            assert receiver.probe("f") is None
            for sender in senders:
                sender.answer()

    def test_a_probe_for_one_source_leaves_the_others_messages(self) -> None:
        """``source`` selects."""
        with Job(self.engine, stream_to_0((1, 2))) as job:
            receiver, first, second = job.open(0), job.start(1), job.start(2)
            for peer in (first, second):
                peer.tell("push", 0, "f", 5)
            verbs.receive(receiver, "f", 2, 5)
            assert receiver.probe("f", 2) is None
            verbs.receive(receiver, "f", 1, 5)
            for peer in (first, second):
                peer.answer()

    def test_who_only_polls_needs_no_wait(self) -> None:
        """Loans and probes alone bring two endpoints together and move messages."""
        with Job(self.engine, stream_to_0()) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("stream_polling", 0, "f", 20)
            for number in range(20):
                while (held := receiver.probe("f")) is None:
                    pass
                verbs.check(held.view(), 1, number)
                held.release()
            sender.answer()

    def test_channels_between_the_same_ranks_are_apart(self) -> None:
        """A full channel does not stop another one."""
        channels = (Channel("a", 0, (1,), 100, window=1), Channel("b", 0, (1,), 100, window=1))
        with Job(self.engine, channels) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("push", 0, "a", 1)
            verbs.until(receiver, lambda: receiver.wait(0.2) or None)
            sender.answer()
            sender.tell("push", 0, "b", 2)
            verbs.receive(receiver, "b", 1, 2)
            verbs.receive(receiver, "a", 1, 1)
            sender.answer()

    @pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 65_535, 65_537, MAX - 1, MAX])
    def test_every_size_up_to_the_largest_arrives(self, nbytes: int) -> None:
        """Empty and largest payloads are messages like any other."""
        with Job(self.engine, stream_to_0()) as job:
            receiver, sender = job.open(0), job.start(1)
            for number in range(3):
                sender.tell("push", 0, "f", number, nbytes)
                assert verbs.receive(receiver, "f", 1, number) == nbytes
                sender.answer()

    def test_one_byte_over_the_limit_is_refused(self) -> None:
        """The channel's ``max_bytes`` is the limit."""
        with Job(self.engine, stream_to_0()) as job:
            sender = job.open(1)
            with pytest.raises(MessageTooLargeError, match=str(MAX)):
                sender.loan(0, "f", MAX + 1)

    def test_loan_answers_full_when_the_window_is_unclaimed_and_recovers_with_a_claim(self) -> None:
        """The window bounds what is unclaimed; a claim frees one place and wakes the sender."""
        with Job(self.engine, stream_to_0(window=3)) as job:
            sender, receiver = job.open(1), job.start(0)
            for number in range(3):
                verbs.push(sender, 0, "f", number)
            assert sender.loan(0, "f", 1) is FULL
            assert not sender.wait(0.3)
            assert sender.loan(0, "f", 1) is FULL
            assert sender.unconfirmed(0, "f") == 3
            receiver.ask("receive", "f", 1, 0)
            assert verbs.until(sender, lambda: sender.unconfirmed(0, "f") == 2 or None)
            verbs.push(sender, 0, "f", 3)
            assert sender.loan(0, "f", 1) is FULL
            assert sender.counters.refusals >= 3
            receiver.ask("receive_stream", "f", 1, 1, 3)

    def test_loans_count_in_the_window(self) -> None:
        """A loan has the credit for its push."""
        with Job(self.engine, stream_to_0(window=2)) as job:
            sender, receiver = job.open(1), job.start(0)
            loans = [verbs.loan(sender, 0, "f", 8) for _ in range(2)]
            assert sender.loan(0, "f", 8) is FULL
            for number, lent in enumerate(loans):
                verbs.fill(lent.memory, 1, number)
                sender.push(lent)
            receiver.ask("receive_stream", "f", 1, 0, 2)

    def test_a_claim_that_is_kept_does_not_hold_the_senders_credit(self) -> None:
        """Claimed, not released, is what confirms a push."""
        with Job(self.engine, stream_to_0(window=1, borrow=4)) as job:
            sender, receiver = job.open(1), job.start(0)
            receiver.tell("keep", "f", 3)
            for number in range(3):
                verbs.push(sender, 0, "f", number)
            receiver.answer()
            verbs.until(sender, lambda: sender.unconfirmed(0, "f") == 0 or None)
            verbs.push(sender, 0, "f", 3)
            receiver.ask("receive", "f", 1, 3)

    def test_loan_answers_full_until_the_receiver_is_there(self) -> None:
        """Nothing is sent to nobody."""
        with Job(self.engine, stream_to_0()) as job:
            sender = job.open(1)
            assert sender.loan(0, "f", 1) is FULL
            assert not sender.wait(0.2)
            assert sender.loan(0, "f", 1) is FULL
            receiver = job.start(0)
            verbs.push(sender, 0, "f", 7)
            receiver.ask("receive", "f", 1, 7)

    def test_an_abandoned_loan_gives_its_memory_and_its_credit_back(self) -> None:
        """Abandoning sends nothing and costs nothing."""
        with Job(self.engine, stream_to_0(window=2)) as job:
            sender, receiver = job.open(1), job.start(0)
            for _ in range(50):
                lent = verbs.loan(sender, 0, "f", MAX)
                lent.abandon()
                lent.abandon()
            assert sender.unconfirmed(0, "f") == 0
            verbs.push(sender, 0, "f", 9)
            with pytest.raises(TransportError):
                sender.push(lent)
            receiver.ask("receive", "f", 1, 9)

    def test_the_memory_of_loans_is_reused_and_aligned(self) -> None:
        """No fresh pages for each message."""
        addresses = set()
        with Job(self.engine, stream_to_0(window=2)) as job:
            sender, receiver = job.open(1), job.start(0)
            receiver.tell("receive_stream", "f", 1, 0, 60)
            for number in range(60):
                lent = verbs.loan(sender, 0, "f", 1000 + number)
                assert lent.memory.nbytes == 1000 + number
                addresses.add(ctypes.addressof(ctypes.c_char.from_buffer(lent.memory)))
                verbs.fill(lent.memory, 1, number)
                sender.push(lent)
            receiver.answer()
        assert len(addresses) <= 8
        assert all(address % 64 == 0 for address in addresses)

    def test_take_copies_into_the_callers_memory_and_releases(self) -> None:
        """``take`` works into typed memory and refuses what is too small."""
        with Job(self.engine, stream_to_0()) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("push", 0, "f", 3, 800)
            held = verbs.claim(receiver, "f")
            with pytest.raises(MessageTooLargeError):
                held.take(memoryview(bytearray(799)))
            into = array("d", bytes(1600))
            assert held.take(memoryview(into)) == 800
            verbs.check(memoryview(into).cast("B")[:800], 1, 3)
            assert not any(into[100:])
            sender.answer()
            sender.tell("push", 0, "f", 4)
            verbs.receive(receiver, "f", 1, 4)
            sender.answer()

    def test_release_is_harmless_when_repeated_and_ends_the_view(self) -> None:
        """A released claim lends nothing."""
        with Job(self.engine, stream_to_0()) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("stream", 0, "f", 2)
            held = verbs.claim(receiver, "f")
            assert held.view().readonly
            for _ in range(3):
                held.release()
            with pytest.raises(TransportError):
                held.view()
            verbs.receive(receiver, "f", 1, 1)
            sender.answer()

    def test_a_probe_beyond_the_wirings_borrow_is_an_error(self) -> None:
        """The wiring says how many claims may be held at once."""
        with Job(self.engine, stream_to_0(window=4, borrow=2)) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("stream", 0, "f", 4)
            held = verbs.hold(receiver, "f", 2)
            with pytest.raises(TransportError, match="release"):
                receiver.probe("f")
            for number, one in enumerate(held):
                verbs.check(one.view(), 1, number)
                one.release()
            verbs.receive_stream(receiver, "f", 1, 2, 2)
            sender.answer()

    def test_a_rank_may_send_to_itself(self) -> None:
        """Roles that share a rank talk through the same endpoint."""
        with Job(self.engine, stream_to_0((0,))) as job:
            endpoint = job.open(0)
            introduce(endpoint)
            for number in range(10):
                verbs.push(endpoint, 0, "f", number)
                verbs.receive(endpoint, "f", 0, number)

    def test_two_endpoints_of_one_process_talk(self) -> None:
        """Ranks need not be in different processes."""
        with Job(self.engine, stream_to_0()) as job:
            receiver, sender = job.open(0), job.open(1)
            introduce(receiver, sender)
            for number in range(10):
                verbs.push(sender, 0, "f", number)
                verbs.receive(receiver, "f", 1, number)
                introduce(sender)

    def test_only_the_wirings_ranks_may_use_a_channel(self) -> None:
        """A wrong channel, direction or source is an error that names it."""
        with Job(self.engine, stream_to_0()) as job:
            receiver, sender = job.open(0), job.open(1)
            for wrong in (
                lambda: receiver.loan(1, "f", 1),
                lambda: sender.loan(0, "g", 1),
                lambda: sender.probe("f"),
                lambda: receiver.probe("f", 7),
                lambda: receiver.unconfirmed(0, "f"),
            ):
                with pytest.raises(TransportError, match=r"'[fg]'"):
                    wrong()
