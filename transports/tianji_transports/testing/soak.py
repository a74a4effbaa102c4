"""Soak tests of the contract, over minutes and gigabytes: too long for every day.

Each test takes a minute or two on two cores, and one needs 6 GB of memory and 2 GB of /dev/shm.
"""

from __future__ import annotations

import os
import random
import time
from typing import ClassVar

from tianji_transports.core import Claim, Transport
from tianji_transports.testing import verbs
from tianji_transports.testing.close import outlast_a_stopped_receiver, resident_bytes
from tianji_transports.testing.job import Job, Peer
from tianji_transports.wiring import Channel, Slot

MINUTE_S = 60.0
MB = 1_000_000
LAST_VERSION = 1 << 30


class SoakContract:
    """Tests of size, number and patience, for engines whose peers are processes."""

    engine: ClassVar[str]

    def test_a_message_of_a_gibibyte_arrives_as_it_was_sent(self) -> None:
        """Every byte of the message arrives, and the small message behind it."""
        nbytes = 1 << 30
        with Job(self.engine, (Channel("f", 0, (1,), nbytes, window=1),)) as job:
            receiver, sender = job.open(0), job.start(1)
            for number, size in enumerate((nbytes, 1000, nbytes - 1)):
                sender.tell("push_random", 0, "f", number, size)
                assert verbs.receive_random(receiver, "f", 1, number) == size
                sender.answer()

    def test_two_million_small_messages_arrive_once_and_in_order(self) -> None:
        """Two million messages leave no memory behind."""
        first, count = 100_000, 2_000_000
        with Job(self.engine, (Channel("f", 0, (1,), verbs.NUMBER.size, window=64),)) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("push_numbers", 0, "f", first)
            assert verbs.receive_numbers(receiver, "f", first) == sender.answer()
            before = resident_bytes()
            sender.tell("push_numbers", 0, "f", count)
            assert verbs.receive_numbers(receiver, "f", count) == sender.answer()
            assert resident_bytes() - before < 20 * MB
            assert receiver.probe("f") is None

    def test_a_receiver_that_is_stopped_for_a_minute_costs_no_memory(self) -> None:
        """The senders get FULL and the writer publishes on; then the receiver goes on where it was."""
        nbytes, window = 512 * 1024, 8
        channel, slots = Channel("f", 0, (1,), nbytes, window), (Slot("p", 1, (0,), nbytes),)
        most_bytes = 4 * window * nbytes + 20 * MB
        outlast_a_stopped_receiver(self.engine, channel, slots, MINUTE_S, most_bytes)

    def test_thirty_two_readers_of_a_slot_see_whole_values_only(self) -> None:
        """The writer writes as fast as it can for half a minute; all readers end with the last version."""
        readers, nbytes = tuple(range(1, 33)), 200_000
        with Job(self.engine, slots=(Slot("p", 0, readers, nbytes),)) as job:
            writer, peers = job.open(0), [job.start(rank) for rank in readers]
            for peer in peers:
                peer.tell("read_to", "p", 0, LAST_VERSION)
            version, until = 0, time.monotonic() + MINUTE_S / 2
            while time.monotonic() < until:
                verbs.publish(writer, "p", version, nbytes - version % 1000)
                writer.wait(0.0)
                version += 1
            verbs.publish(writer, "p", LAST_VERSION, nbytes)
            verbs.until(writer, lambda: all(peer.answered() for peer in peers) or None)
            values = [peer.answer() for peer in peers]
            assert min(values) >= 2, values

    def test_sixteen_senders_push_all_they_can(self) -> None:
        """Every byte of 32,000 messages arrives, in the order of each sender."""
        ranks, count, nbytes = tuple(range(1, 17)), 2_000, 50_000
        with Job(self.engine, (Channel("f", 0, ranks, nbytes + count, window=4),)) as job:
            receiver, peers = job.open(0), [job.start(rank) for rank in ranks]
            for peer in peers:
                peer.tell("stream", 0, "f", count, nbytes)
            numbers = dict.fromkeys(ranks, 0)
            verbs.receive_streams(receiver, "f", numbers, 4 * count, nbytes)
            warm = resident_bytes()
            verbs.receive_streams(receiver, "f", numbers, (len(ranks) - 4) * count, nbytes)
            assert numbers == dict.fromkeys(ranks, count)
            assert resident_bytes() - warm < 40 * MB
            for peer in peers:
                peer.answer()


class DeathSoakContract:
    """Test of a minute of deaths, for engines that survive them."""

    engine: ClassVar[str]

    def test_a_minute_of_killed_senders_loses_no_order_and_no_memory(self) -> None:
        """The messages of each life arrive whole and without gaps; nothing piles up at the receiver."""
        chance = random.Random(7)  # noqa: S311 - it only has to be the same every time
        ranks = (1, 2, 3)
        with Job(self.engine, (Channel("f", 0, ranks, 200_000, window=4),)) as job:
            receiver = job.open(0)
            reception = Reception(receiver)
            peers: dict[int, Peer] = {}
            lives = dict.fromkeys(ranks, 0)
            for rank in ranks:
                reception.begin(rank)
                peers[rank] = self._start(job, rank, 0)
            warm, until = (0, 0), time.monotonic() + MINUTE_S
            while time.monotonic() < until:
                reception.take_for(chance.uniform(0.0, 0.3))
                rank = chance.choice(ranks)
                job.kill(peers[rank])
                receiver.peer_lost(rank)
                lives[rank] += 1
                reception.begin(rank)
                peers[rank] = self._start(job, rank, lives[rank])
                if sum(lives.values()) == 20:
                    warm = self._burden()
            assert sum(lives.values()) > 40
            assert reception.claims > 1000
            resident, descriptors = self._burden()
            assert resident - warm[0] < 30 * MB
            assert descriptors - warm[1] < 10
            for peer in peers.values():
                job.kill(peer)

    @staticmethod
    def _start(job: Job, rank: int, incarnation: int) -> Peer:
        peer = job.start(rank, incarnation)
        peer.tell("stream", 0, "f", 100_000, 100_000)
        return peer

    @staticmethod
    def _burden() -> tuple[int, int]:
        return resident_bytes(), len(os.listdir("/proc/self/fd"))


class Reception:
    """Claims and checks the streams of senders, life after life.

    Messages of a killed life may still come while the next one begins; each life is in order.
    """

    def __init__(self, receiver: Transport) -> None:
        self.claims = 0
        self._receiver = receiver
        self._next: dict[int, list[int]] = {}

    def begin(self, rank: int) -> None:
        """Expect messages of a new life of ``rank`` from 0 on."""
        self._next.setdefault(rank, []).append(0)

    def take_for(self, seconds: float) -> None:
        """Claim all that comes for a while."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            held = self._receiver.probe("f")
            if held is None:
                self._receiver.wait(left)
            else:
                self._check(held)
                held.release()

    def _check(self, held: Claim) -> None:
        rank, number, _ = verbs.STAMP.unpack_from(held.view())
        lives = self._next[rank]
        assert number in lives, f"{number} of rank {rank} where one of {lives} was next"
        lives[lives.index(number)] += 1
        verbs.check(held.view(), rank, number)
        self.claims += 1
