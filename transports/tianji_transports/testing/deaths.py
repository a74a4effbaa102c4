"""What holds when a peer is killed with SIGKILL and comes back."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tianji_transports.core import FULL, Transport
from tianji_transports.errors import PeerLostError
from tianji_transports.testing import verbs
from tianji_transports.testing.job import Job, Peer
from tianji_transports.wiring import Channel, Slot


class DeathContract:
    """Deaths, for engines whose peers are processes and may come back."""

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
            while receiver.wait(0.3):
                pass  # until what was pushed has arrived
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
        """Whatever was claimed of a killed sender is intact and in order."""
        with self._job((Channel("f", 0, (1,), 200_000, window=4),)) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("stream", 0, "f", 100_000, 50_000)
            verbs.receive_stream(receiver, "f", 1, 0, 20)
            job.kill(sender)
            receiver.peer_lost(1)
            number = 20
            while receiver.wait(0.3) or number == 20:
                while (held := receiver.probe("f")) is not None:
                    verbs.check(held.view(), 1, number)
                    held.release()
                    number += 1
                number = max(number, 21)
            sender = job.start(1, incarnation=1)
            sender.tell("stream", 0, "f", 5)
            verbs.receive_stream(receiver, "f", 1, 0, 5)
            sender.answer()

    def test_a_sender_killed_while_it_fills_a_loan_has_sent_nothing(self) -> None:
        """What was only lent is never seen, and its memory is not missed by the lives that follow."""
        with self._job((Channel("f", 0, (1,), 10_000, window=2),)) as job:
            receiver = job.open(0)
            for life in range(5):
                sender = job.start(1, incarnation=life)
                sender.tell("push", 0, "f", life)
                verbs.receive(receiver, "f", 1, life)
                sender.answer()
                for _ in range(2):
                    sender.tell("half_fill", 0, "f", 10_000)
                    self._finish(receiver, sender)
                job.kill(sender)
                receiver.peer_lost(1)
                assert receiver.probe("f") is None

    @staticmethod
    def _finish(receiver: Transport, sender: Peer) -> None:
        """Wait at the receiver until the sender has done what it was told."""
        verbs.until(receiver, lambda: sender.answered() or None)
        sender.answer()

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
                number = 1
                while (held := receiver.probe("f")) is not None or receiver.wait(0.3):
                    if held is not None:
                        verbs.check(held.view(), 1, number)
                        held.release()
                        number += 1

    def test_a_receiver_killed_with_claims_takes_no_credit_with_it(self) -> None:
        """However many lives die holding all that they may, the next one gets a whole window."""
        with self._job((Channel("f", 0, (1,), 10_000, window=2, borrow=2),)) as job:
            sender = job.open(1)
            for life in range(6):
                receiver = job.start(0, incarnation=life)
                verbs.until(sender, lambda: self._alive(sender) or None)
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
        """Its credit is void; loans work again when it is back, with a whole window."""
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
                verbs.until(sender, lambda: self._alive(sender) or None)
            for number in range(2):
                verbs.push(sender, 0, "f", number)
            assert sender.loan(0, "f", 1) is FULL
            receiver.ask("receive_stream", "f", 1, 0, 2)

    @staticmethod
    def _alive(sender: Transport) -> bool:
        try:
            lent = sender.loan(0, "f", 1)
        except PeerLostError:
            return False
        if lent is FULL:
            return False
        lent.abandon()
        return True

    def test_a_receiver_that_died_unreported_gets_full_and_then_its_next_life_is_served(self) -> None:
        """Until it is told, a sender only sees that nothing is claimed."""
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
        """Its death does not stop the writer, however often it holds a value when it dies."""
        with self._job((), (Slot("p", 0, (1, 2), 50_000),)) as job:
            writer = job.start(0)
            reader = job.start(1)
            for life in range(1, 5):
                writer.ask("publish", "p", life, 50_000)
                assert reader.ask("read", "p", 0, life - 1) == life
                job.kill(reader)
                reader = job.start(1, incarnation=life)
                assert reader.ask("read", "p", 0) == life
