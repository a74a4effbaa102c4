"""Contract of closing, and of peers that are stopped, killed with SIGKILL and come back.

Reports, drains and errors; nothing is left behind.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

from tianji_transports.core import FULL, Counters
from tianji_transports.errors import PeerLostError, TransportClosedError
from tianji_transports.testing import verbs
from tianji_transports.testing.job import Job
from tianji_transports.wiring import Channel, Slot


def traces() -> tuple[int, int, int]:
    """Descriptors, threads and children of this process."""
    children = len(multiprocessing.active_children())
    return len(os.listdir("/proc/self/fd")), threading.active_count(), children


def shared_names() -> set[str]:
    """Names in shared memory."""
    return {path.name for path in Path("/dev/shm").iterdir()}  # noqa: S108 - looked at, not written


class CloseContract:
    """Tests of closing, for every engine."""

    engine: ClassVar[str]
    left_unclaimed: ClassVar[int] = 63
    """Messages that a test leaves unclaimed: more than a library receives in one call."""

    def test_the_report_counts_what_was_never_claimed(self) -> None:
        """The sender's unconfirmed pushes are the receiver's unclaimed messages."""
        pushed, left = self.left_unclaimed + 1, self.left_unclaimed
        channels = Channel("f", 0, (1,), 1000, window=pushed), Channel("last", 0, (1,), 1000)
        with Job(self.engine, channels) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("stream", 0, "f", pushed)
            verbs.receive(receiver, "f", 1, 0)
            sender.answer()
            # All have arrived when a later message has: a sender that closes takes back what is on its way.
            sender.tell("stream", 0, "last", 1)
            verbs.receive(receiver, "last", 1, 0)
            sender.answer()
            assert receiver.wait(verbs.PATIENCE_S)
            sender.ask("settle", 0, "f", left)
            sender.ask("settle", 0, "last", 0)
            report = sender.ask("close")
            assert report.unconfirmed == {(0, "f"): left}
            assert report.counters.pushes == pushed + 1
            assert report.counters.pushed_bytes == sum(100 + number for number in range(pushed)) + 100
            report = receiver.close()
            assert report.unclaimed == {(1, "f"): left}
            assert report.unconfirmed == {}
            assert report.counters.claims == 2
            assert report.counters.claimed_bytes == 200
            assert receiver.close() is report

    def test_a_drain_waits_until_everything_is_claimed(self) -> None:
        """A sender with time to drain leaves nothing unconfirmed."""
        with Job(self.engine, (Channel("f", 0, (1,), 1000, window=4),)) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("stream", 0, "f", 4)
            verbs.receive(receiver, "f", 1, 0)
            sender.answer()
            sender.tell("close", verbs.PATIENCE_S)
            verbs.receive_stream(receiver, "f", 1, 1, 3)
            assert sender.answer().unconfirmed == {}
            assert receiver.close().unclaimed == {}

    def test_a_receiver_that_drains_has_confirmed_what_it_claimed(self) -> None:
        """Two endpoints that wait for each other's claims do not wait in vain."""
        channels = (Channel("f", 0, (1,), 100, window=8), Channel("g", 1, (0,), 100, window=8))
        with Job(self.engine, channels) as job:
            endpoint, peer = job.open(0), job.start(1)
            verbs.push(endpoint, 1, "g", 0)
            peer.tell("push", 0, "f", 0)
            verbs.receive(endpoint, "f", 1, 0)
            peer.answer()
            peer.tell("settle", 0, "f", 0)
            peer.tell("receive", "g", 0, 0)
            assert endpoint.close(verbs.LONG_S).unconfirmed == {}
            for _ in range(2):
                peer.answer()

    def test_what_a_closed_sender_had_pushed_is_whole_or_gone(self) -> None:
        """A close without a drain may lose the newest unclaimed messages, and its report counts them."""
        with Job(self.engine, (Channel("f", 0, (1,), 100_000, window=4),)) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("stream", 0, "f", 4, 90_000)
            verbs.receive(receiver, "f", 1, 0)
            sender.answer()
            sender.tell("close")
            assert sender.answer(receiver).unconfirmed[0, "f"] >= 3
            assert verbs.receive_rest(receiver, "f", 1, 1) <= 4

    def test_a_closed_endpoint_raises_whatever_is_asked_of_it(self) -> None:
        """Use after close is a distinct error; giving memory back is not use."""
        channels = (Channel("f", 0, (1,), 100), Channel("g", 1, (0,), 100))
        with Job(self.engine, channels, (Slot("p", 0, (1,), 8), Slot("q", 1, (0,), 8))) as job:
            endpoint, peer = job.open(0), job.start(1)
            lent = verbs.loan(endpoint, 1, "g", 1)
            peer.tell("push", 0, "f", 0)
            held = verbs.claim(endpoint, "f")
            peer.answer()
            endpoint.close()
            for use in (
                lambda: endpoint.loan(1, "g", 1),
                lambda: endpoint.push(lent),
                lambda: endpoint.probe("f"),
                lambda: endpoint.publish("p", memoryview(b"x"), 1),
                lambda: endpoint.latest("q"),
                lambda: endpoint.wait(0.0),
                lambda: endpoint.unconfirmed(1, "g"),
            ):
                with pytest.raises(TransportClosedError):
                    use()
            held.release()
            lent.abandon()

    def test_a_receiver_that_closed_gets_nothing_more(self) -> None:
        """A closed receiver looks to its senders like one that is not there."""
        with Job(self.engine, (Channel("f", 0, (1,), 100),)) as job:
            sender, receiver = job.open(1), job.start(0)
            verbs.push(sender, 0, "f", 0)
            receiver.ask("receive", "f", 1, 0)
            job.stop(receiver)
            verbs.until(sender, lambda: not verbs.has_credit(sender, 0, "f") or None)
            assert sender.loan(0, "f", 1) is FULL
            assert sender.close().unconfirmed == {}

    def test_counters_tell_what_was_done(self) -> None:
        """Every engine counts alike."""
        with Job(self.engine, (Channel("f", 0, (0,), 100, window=1),), (Slot("p", 0, (0,), 8),)) as job:
            endpoint = job.open(0)
            verbs.push(endpoint, 0, "f", 0, 64)
            refused = endpoint.counters.refusals
            assert not endpoint.loan(0, "f", 1)
            verbs.receive(endpoint, "f", 0, 0)
            missed = endpoint.counters.misses
            assert endpoint.probe("f") is None
            verbs.publish(endpoint, "p", 1, 8)
            assert endpoint.counters == Counters(1, 64, refused + 1, 1, 64, missed + 1, 1, 0)

    def test_nothing_is_left_behind(self) -> None:
        """No descriptors, threads, processes or names of shared memory, however often.

        Other programs may create names meanwhile: the test fails if every round leaves names that stay.
        """
        self._use_and_close()
        before = traces()
        left = []
        for _ in range(4):
            names = shared_names()
            self._use_and_close()
            left.append(shared_names() - names)
        assert traces() == before
        deadline = time.monotonic() + 5.0
        while all(names & shared_names() for names in left):
            assert time.monotonic() < deadline, left
            time.sleep(0.1)

    def _use_and_close(self) -> None:
        channels = (Channel("f", 0, (1,), 200_000), Channel("g", 1, (0,), 100))
        with Job(self.engine, channels, (Slot("p", 0, (1,), 1000),)) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("stream", 0, "f", 3, 100_000)
            verbs.receive_stream(receiver, "f", 1, 0, 3)
            sender.answer()
            sender.tell("read", "p", 0)
            verbs.publish(receiver, "p", 1, 1000)
            sender.answer(receiver)
            sender.tell("stream", 0, "f", 1)
            assert receiver.wait(verbs.PATIENCE_S)
            sender.answer()
            assert receiver.close().unclaimed == {(1, "f"): 1}


PAGE_BYTES = 4096


def resident_bytes() -> int:
    """Memory of this process, as the kernel counts it."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def outlast_a_stopped_receiver(
    engine: str, channel: Channel, slots: tuple[Slot, ...], stopped_s: float, most_bytes: int
) -> None:
    """Push and publish all that rank 1 can while rank 0 is stopped, then let both go on.

    The sender gets a window's credit, then FULL, and its memory grows by ``most_bytes`` at most.
    """
    nbytes, window, name = channel.max_bytes, channel.window, channel.name
    with Job(engine, (channel,), slots) as job:
        sender, receiver = job.open(1), job.start(0)
        receiver.tell("receive_stream", name, 1, 0, 4 * window)
        for number in range(4 * window):
            verbs.push(sender, 0, name, number, nbytes)
            for slot in slots:
                verbs.publish(sender, slot.name, number, nbytes)
        receiver.answer(sender)
        receiver.signal(signal.SIGSTOP)
        before = resident_bytes()
        pushed, version, until = 0, 4 * window, time.monotonic() + stopped_s
        while time.monotonic() < until:
            if sender.unconfirmed(0, name) < window:
                verbs.push(sender, 0, name, pushed, nbytes)
                pushed += 1
            else:
                assert sender.loan(0, name, nbytes) is FULL
                sender.wait(0.01)
            for slot in slots:
                verbs.publish(sender, slot.name, version, nbytes)
            version += 1
            assert resident_bytes() - before < most_bytes
        assert pushed == window
        receiver.signal(signal.SIGCONT)
        receiver.tell("receive_stream", name, 1, 0, window + 1)
        verbs.push(sender, 0, name, window, nbytes)
        receiver.answer(sender)


class StopContract:
    """Tests of stopped peers, for engines whose peers are processes."""

    engine: ClassVar[str]

    def test_a_stopped_receiver_fills_the_window_and_no_more_memory(self) -> None:
        """The sender gets FULL while the receiver is stopped, and goes on where it was."""
        nbytes, window = 500_000, 4
        channel = Channel("f", 0, (1,), nbytes, window)
        outlast_a_stopped_receiver(self.engine, channel, (), 1.5, 4 * window * nbytes)

    def test_a_stopped_reader_does_not_stop_the_writer(self) -> None:
        """The reader reads the newest value when it goes on."""
        with Job(self.engine, slots=(Slot("p", 0, (1,), 200_000),)) as job:
            writer, reader = job.open(0), job.start(1)
            reader.tell("read", "p", 0)
            verbs.publish(writer, "p", 0, 200_000)
            assert reader.answer(writer) == 0
            reader.signal(signal.SIGSTOP)
            before = resident_bytes()
            for version in range(1, 201):
                verbs.publish(writer, "p", version, 200_000)
            assert resident_bytes() - before < 10_000_000
            reader.signal(signal.SIGCONT)
            reader.tell("read", "p", 0, 199)
            assert reader.answer(writer) == 200


class DeathContract:
    """Tests of deaths, for engines whose peers are processes and may come back."""

    engine: ClassVar[str]

    def _job(self, channels: tuple[Channel, ...], slots: tuple[Slot, ...] = ()) -> Job:
        return Job(self.engine, channels, slots)

    def test_what_a_killed_sender_had_pushed_is_there_and_its_next_life_goes_on(self) -> None:
        """The receiver loses nothing that had arrived, and serves the new incarnation."""
        with self._job((Channel("f", 0, (1, 2), 10_000),)) as job:
            receiver, sender, other = job.open(0), job.start(1), job.start(2)
            sender.tell("stream", 0, "f", 3)
            verbs.receive(receiver, "f", 1, 0)
            sender.answer()
            verbs.rest(receiver)  # until all pushes have arrived
            job.kill(sender)
            receiver.peer_lost(1)
            for life in range(1, 4):
                sender = job.start(1, incarnation=life)
                sender.tell("stream", 0, "f", 3)
                if life == 1:
                    verbs.receive_stream(receiver, "f", 1, 1, 2)
                verbs.receive_stream(receiver, "f", 1, 0, 3)
                sender.answer()
                job.kill(sender)
            other.tell("stream", 0, "f", 3)
            verbs.receive_stream(receiver, "f", 2, 0, 3)
            other.answer()

    def test_a_sender_killed_while_it_streams_leaves_whole_messages(self) -> None:
        """Messages claimed from a killed sender are intact and in order."""
        with self._job((Channel("f", 0, (1,), 200_000, window=4),)) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("stream", 0, "f", 100_000, 50_000)
            verbs.receive_stream(receiver, "f", 1, 0, 20)
            job.kill(sender)
            receiver.peer_lost(1)
            verbs.receive_rest(receiver, "f", 1, 20)
            sender = job.start(1, incarnation=1)
            sender.tell("stream", 0, "f", 5)
            verbs.receive_stream(receiver, "f", 1, 0, 5)
            sender.answer()

    def test_a_sender_killed_while_it_fills_a_loan_has_sent_nothing(self) -> None:
        """A loan that was never pushed is never seen, and the lives that follow do not lack its memory."""
        with self._job((Channel("f", 0, (1,), 10_000, window=2),)) as job:
            receiver = job.open(0)
            for life in range(5):
                sender = job.start(1, incarnation=life)
                sender.tell("push", 0, "f", life)
                verbs.receive(receiver, "f", 1, life)
                sender.answer()
                for _ in range(2):
                    sender.tell("half_fill", 0, "f", 10_000)
                    sender.answer(receiver)
                job.kill(sender)
                receiver.peer_lost(1)
                assert receiver.probe("f") is None

    def test_a_sender_killed_in_a_large_message_leaves_whole_ones_or_none(self) -> None:
        """No receiver claims the first half of a message whose second half died with its sender."""
        nbytes = 24_000_000
        with self._job((Channel("f", 0, (1,), nbytes + 1000, window=2),)) as job:
            receiver = job.open(0)
            for life in range(4):
                sender = job.start(1, incarnation=life)
                sender.tell("stream", 0, "f", 1000, nbytes)
                verbs.receive(receiver, "f", 1, 0)
                receiver.wait(0.004 * life)
                job.kill(sender)
                receiver.peer_lost(1)
                verbs.receive_rest(receiver, "f", 1, 1)

    def test_a_receiver_killed_with_claims_takes_no_credit_with_it(self) -> None:
        """However many lives die holding all that they may, the next one gets a whole window."""
        with self._job((Channel("f", 0, (1,), 10_000, window=2, borrow=2),)) as job:
            sender = job.open(1)
            for life in range(6):
                receiver = job.start(0, incarnation=life)
                verbs.until(sender, lambda: verbs.has_credit(sender, 0, "f") or None)
                receiver.tell("keep", "f", 2)
                for number in range(2):
                    verbs.push(sender, 0, "f", number, 10_000)
                receiver.answer()
                verbs.settle(sender, 0, "f", 0)
                verbs.push(sender, 0, "f", 2, 10_000)
                job.kill(receiver)
                sender.peer_lost(0)
                assert sender.unconfirmed(0, "f") == 0

    def test_a_killed_receiver_is_a_distinct_error_until_its_next_life(self) -> None:
        """Credit for a dead receiver is void; loans work again when it is back, with a whole window."""
        with self._job((Channel("f", 0, (1,), 10_000, window=2),)) as job:
            sender, receiver = job.open(1), job.start(0)
            for life in range(1, 4):
                verbs.push(sender, 0, "f", 0)
                receiver.ask("receive", "f", 1, 0)
                verbs.push(sender, 0, "f", 1)
                held = verbs.loan(sender, 0, "f", 5)
                job.kill(receiver)
                sender.peer_lost(0)
                with pytest.raises(PeerLostError, match="rank 0"):
                    sender.loan(0, "f", 1)
                with pytest.raises(PeerLostError, match="rank 0"):
                    sender.push(held)
                assert sender.unconfirmed(0, "f") == 0
                receiver = job.start(0, incarnation=life)
                verbs.until(sender, lambda: verbs.has_credit(sender, 0, "f") or None)
            for number in range(2):
                verbs.push(sender, 0, "f", number)
            assert sender.loan(0, "f", 1) is FULL
            receiver.ask("receive_stream", "f", 1, 0, 2)

    def test_a_receiver_that_died_unreported_gets_full_and_then_its_next_life_is_served(self) -> None:
        """Until ``peer_lost``, a sender only sees that nothing is claimed."""
        with self._job((Channel("f", 0, (1,), 10_000, window=2),)) as job:
            sender, receiver = job.open(1), job.start(0)
            verbs.push(sender, 0, "f", 0)
            receiver.ask("receive", "f", 1, 0)
            verbs.settle(sender, 0, "f", 0)
            job.kill(receiver)
            for number in range(2):
                verbs.push(sender, 0, "f", number)
            assert sender.loan(0, "f", 1) is FULL
            receiver = job.start(0, incarnation=1)
            verbs.push(sender, 0, "f", 7)
            receiver.ask("receive", "f", 1, 7)

    def test_a_killed_reader_comes_back_to_the_current_value(self) -> None:
        """A reader's death does not stop the writer, and each later life reads the current value."""
        with self._job((), (Slot("p", 0, (1, 2), 50_000),)) as job:
            writer = job.start(0)
            reader = job.start(1)
            for life in range(1, 5):
                writer.ask("publish", "p", life, 50_000)
                assert reader.ask("read", "p", 0, life - 1) == life
                job.kill(reader)
                reader = job.start(1, incarnation=life)
                assert reader.ask("read", "p", 0) == life
