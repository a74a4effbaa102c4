"""Contract of channels (order, sizes, windows, claims, loans), of latest-value slots, and of ``wait``.

``wait`` wakes for everything that matters and costs nothing while nothing comes.
"""

from __future__ import annotations

import ctypes
import os
import time
from array import array
from typing import ClassVar

import pytest

from tianji_transports.core import FULL, Transport
from tianji_transports.errors import MessageTooLargeError, TransportError
from tianji_transports.testing import verbs
from tianji_transports.testing.job import Job
from tianji_transports.wiring import Channel, Slot

MAX = 300_000


def stream_to_0(senders: tuple[int, ...] = (1,), window: int = 2, borrow: int = 1) -> tuple[Channel, ...]:
    """A channel to rank 0."""
    return (Channel("f", 0, senders, MAX, window, borrow),)


def introduce(*endpoints: Transport) -> None:
    """Let endpoints of one thread take the turns that they need to notice one another."""
    for _ in range(5):
        for endpoint in endpoints:
            endpoint.wait(0.02)


class ChannelContract:
    """Tests of channels, for every engine."""

    engine: ClassVar[str]

    @pytest.mark.parametrize(
        ("ranks", "window", "count", "nbytes"),
        [(range(1, 5), 2, 40, 100_000), (range(1, 17), 4, 25, 2_000)],
        ids=["four", "sixteen"],
    )
    def test_messages_of_many_senders_arrive_once_intact_and_in_order(
        self, ranks: range, window: int, count: int, nbytes: int
    ) -> None:
        """FIFO for each (source, channel): nothing is lost, doubled or overtaken."""
        with Job(self.engine, stream_to_0(tuple(ranks), window)) as job:
            receiver = job.open(0)
            senders = [job.start(rank) for rank in ranks]
            for sender in senders:
                sender.tell("stream", 0, "f", count, nbytes)
            numbers = dict.fromkeys(ranks, 0)
            verbs.receive_streams(receiver, "f", numbers, len(ranks) * count, nbytes)
            assert numbers == dict.fromkeys(ranks, count)
            assert receiver.probe("f") is None
            for sender in senders:
                sender.answer()

    def test_a_probe_for_one_source_leaves_the_others_messages(self) -> None:
        """``source`` selects the sender."""
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
            assert receiver.wait(verbs.PATIENCE_S)
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
        """The window bounds the unclaimed messages; a claim frees one place and wakes the sender."""
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
        """The claim of a message confirms its push, not the release."""
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
        """A sender sends nothing before there is a receiver."""
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
        """Messages use no fresh pages each."""
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
        """``take`` copies into typed memory and refuses memory that is too small."""
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
        """The wiring limits the claims that a receiver may hold at once."""
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


MAX_VALUE = 200_000


def written_by_0(*readers: int) -> tuple[Slot, ...]:
    """A slot that rank 0 writes."""
    return (Slot("p", 0, readers, MAX_VALUE),)


class SlotContract:
    """Tests of slots, for every engine."""

    engine: ClassVar[str]

    def test_a_slow_reader_gets_the_newest_value_and_no_older_one(self) -> None:
        """No reader gets an old version because a newer one was waiting behind it."""
        with Job(self.engine, slots=written_by_0(1)) as job:
            reader, writer = job.open(1), job.start(0)
            assert reader.latest("p") is None
            writer.ask("publish", "p", 0, MAX_VALUE)
            assert verbs.read(reader, "p", 0) == 0
            writer.ask("publish_many", "p", 1, 20, MAX_VALUE)
            time.sleep(0.2)  # this is the slow reader
            # Values still under way come one after the other; a queue would hand out all of the 20.
            assert verbs.read_to(reader, "p", 0, 20, newer_than=0) <= 10
            assert reader.latest("p", newer_than=20) is None

    def test_a_value_is_never_torn_and_versions_only_rise(self) -> None:
        """Readers look while the writer writes as fast as it can."""
        count = 300
        with Job(self.engine, slots=written_by_0(1, 2)) as job:
            reader, writer, other = job.open(1), job.start(0), job.start(2)
            writer.tell("publish_many", "p", 0, count, MAX_VALUE)
            verbs.read_to(reader, "p", 0, count - 1)
            writer.answer()
            assert other.ask("read", "p", 0, count - 2) == count - 1

    def test_every_one_of_several_readers_sees_whole_values_while_they_are_written(self) -> None:
        """Each reader reads as fast as it can, checks every byte, and ends with the last version."""
        readers, last = (1, 2, 3, 4), 100
        with Job(self.engine, slots=written_by_0(*readers)) as job:
            writer, peers = job.open(0), [job.start(rank) for rank in readers]
            for peer in peers:
                peer.tell("read_to", "p", 0, last)
            for version in range(last + 1):
                verbs.publish(writer, "p", version, MAX_VALUE - version)
                writer.wait(0.0)
            verbs.until(writer, lambda: all(peer.answered() for peer in peers) or None)
            for peer in peers:
                assert 1 <= peer.answer() <= last + 1

    def test_a_held_value_stays_as_it_was(self) -> None:
        """Newer versions do not overwrite a claimed value."""
        with Job(self.engine, slots=written_by_0(1)) as job:
            reader, writer = job.open(1), job.start(0)
            writer.ask("publish", "p", 0, MAX_VALUE)
            held = verbs.until(reader, lambda: reader.latest("p"))
            writer.ask("publish_many", "p", 1, 30, MAX_VALUE)
            verbs.check(held.view(), 0, 0)
            with pytest.raises(TransportError, match="release"):
                reader.latest("p")
            held.release()
            verbs.read_to(reader, "p", 0, 30, newer_than=0)

    def test_a_late_reader_gets_the_current_value(self) -> None:
        """A restarted actor need not wait for the next update."""
        with Job(self.engine, slots=written_by_0(1, 2)) as job:
            writer = job.start(0)
            writer.ask("publish_many", "p", 0, 5, 1000)
            assert verbs.read(job.open(1), "p", 0) == 4
            assert job.start(2).ask("read", "p", 0) == 4

    def test_a_reader_may_be_its_own_writer(self) -> None:
        """Roles that share a rank share values, too."""
        with Job(self.engine, slots=written_by_0(0)) as job:
            endpoint = job.open(0)
            verbs.publish(endpoint, "p", 3, 100)
            assert verbs.read(endpoint, "p", 0) == 3

    @pytest.mark.parametrize("nbytes", [0, 1, MAX_VALUE])
    def test_every_size_up_to_the_largest_is_a_value(self, nbytes: int) -> None:
        """Empty and largest values are values like any other."""
        with Job(self.engine, slots=written_by_0(1)) as job:
            reader, writer = job.open(1), job.start(0)
            writer.ask("publish", "p", 1, nbytes)
            held = verbs.until(reader, lambda: reader.latest("p"))
            assert held.nbytes == nbytes
            assert held.take(memoryview(bytearray(MAX_VALUE))) == nbytes

    def test_a_wrong_publish_is_an_error(self) -> None:
        """A value must fit, be newer, and come from the writer."""
        with Job(self.engine, slots=written_by_0(1)) as job:
            writer, reader = job.open(0), job.open(1)
            with pytest.raises(MessageTooLargeError, match=str(MAX_VALUE)):
                writer.publish("p", memoryview(bytearray(MAX_VALUE + 1)), 0)
            verbs.publish(writer, "p", 5, 10)
            with pytest.raises(TransportError, match="version 5"):
                verbs.publish(writer, "p", 5, 10)
            with pytest.raises(TransportError, match="'p'"):
                verbs.publish(reader, "p", 6, 10)
            with pytest.raises(TransportError, match="'p'"):
                writer.latest("p")


class WaitContract:
    """Tests of sleeping, for every engine."""

    engine: ClassVar[str]
    most_idle: ClassVar[float] = 0.03
    """Share of a core that a waiting endpoint may take while nothing comes."""

    def test_a_message_wakes(self) -> None:
        """A message wakes the receiver whether it comes before or after the sleep begins."""
        with Job(self.engine, (Channel("f", 0, (1,), 100),)) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("push", 0, "f", 0)
            assert verbs.await_news(receiver, lambda: receiver.probe("f")) == 0
            sender.answer()
            sender.tell("push", 0, "f", 1)
            sender.answer()
            assert verbs.woken(receiver)
            verbs.receive(receiver, "f", 1, 1)

    def test_a_credit_wakes(self) -> None:
        """A sender that got FULL is woken when a push is claimed."""
        with Job(self.engine, (Channel("f", 0, (1,), 100, window=1),)) as job:
            sender, receiver = job.open(1), job.start(0)
            verbs.push(sender, 0, "f", 0)
            assert sender.loan(0, "f", 1) is FULL
            receiver.tell("receive", "f", 1, 0)
            while sender.loan(0, "f", 1) is FULL:
                assert verbs.woken(sender)
            receiver.answer()

    def test_a_value_wakes(self) -> None:
        """Readers of a slot sleep in the same ``wait``."""
        with Job(self.engine, slots=(Slot("p", 0, (1,), 100),)) as job:
            reader, writer = job.open(1), job.start(0)
            for version in range(3):
                writer.tell("publish", "p", version, 50)
                while (value := reader.latest("p", version - 1)) is None:
                    assert verbs.woken(reader)
                assert value.version == version
                value.release()
                writer.answer()

    def test_a_descriptor_wakes(self) -> None:
        """``wait`` waits for ``also`` together with everything else."""
        with Job(self.engine, (Channel("f", 0, (1,), 100),)) as job:
            receiver = job.open(0)
            reading, writing = os.pipe()
            try:
                assert not receiver.wait(0.0, also=[reading])
                assert not receiver.wait(0.1, also=[reading])
                os.write(writing, b"x")
                assert verbs.woken(receiver, also=[reading])
                assert receiver.wait(0.0, also=[reading])
                assert not receiver.wait(0.05)
            finally:
                os.close(reading)
                os.close(writing)

    def test_no_wake_up_is_missed_in_many_rounds(self) -> None:
        """Two ranks take turns; each sleeps until the other has pushed or claimed."""
        rounds = 1000
        channels = (Channel("f", 0, (1,), 16, window=1), Channel("f", 1, (0,), 16, window=1))
        with Job(self.engine, channels) as job:
            here, there = job.open(0), job.start(1)
            there.tell("echo", 0, "f", rounds)
            missed = 0
            for number in range(rounds):
                missed += verbs.send_back(here, 1, "f", number)
                missed += verbs.await_news(here, lambda: here.probe("f", 1))
            assert missed == 0
            assert there.answer() == 0

    def test_waiting_burns_no_core(self) -> None:
        """A waiting endpoint takes under ``most_idle`` of a core while nothing comes, with peers around."""
        channels = (Channel("f", 0, (1,), 1000), Channel("b", 1, (0,), 1000))
        slots = (Slot("p", 0, (1,), 1000), Slot("q", 1, (0,), 1000))
        with Job(self.engine, channels, slots) as job:
            endpoint, peer = job.open(0), job.start(1)
            peer.ask("publish", "q", 1, 10)
            assert verbs.read(endpoint, "q", 1) == 1
            verbs.rest(endpoint)
            began, cpu = time.monotonic(), time.process_time()
            while (slept := time.monotonic() - began) < 2.0:
                endpoint.wait(2.0 - slept)
            assert time.process_time() - cpu < self.most_idle * 2.0

    def test_a_message_left_alone_wakes_once(self) -> None:
        """A reported message that the receiver does not probe for wakes once; something new wakes again."""
        with Job(self.engine, (Channel("f", 0, (1,), 100),)) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("push", 0, "f", 0)
            assert receiver.wait(verbs.PATIENCE_S)
            sender.answer()
            verbs.rest(receiver)
            sender.tell("push", 0, "f", 1)
            assert verbs.woken(receiver)
            sender.answer()
            verbs.receive(receiver, "f", 1, 0)
            assert receiver.wait(0.0), "after a claim, what is still there is news again"
            verbs.receive(receiver, "f", 1, 1)
