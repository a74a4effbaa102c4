"""What holds for latest-value slots."""

from __future__ import annotations

import time
from typing import ClassVar

import pytest

from tianji_transports.errors import MessageTooLargeError, TransportError
from tianji_transports.testing import verbs
from tianji_transports.testing.job import Job
from tianji_transports.wiring import Slot

MAX = 200_000


def written_by_0(*readers: int) -> tuple[Slot, ...]:
    """A slot that rank 0 writes."""
    return (Slot("p", 0, readers, MAX),)


class SlotContract:
    """Slots, whatever the engine."""

    engine: ClassVar[str]

    def test_a_slow_reader_gets_the_newest_value_and_no_older_one(self) -> None:
        """No reader gets an old version because a newer one was waiting behind it."""
        with Job(self.engine, slots=written_by_0(1)) as job:
            reader, writer = job.open(1), job.start(0)
            assert reader.latest("p") is None
            writer.ask("publish", "p", 0, MAX)
            assert verbs.read(reader, "p", 0) == 0
            writer.ask("publish_many", "p", 1, 20, MAX)
            time.sleep(0.2)  # this is the slow reader
            versions = [verbs.read(reader, "p", 0, newer_than=0)]
            while versions[-1] != 20:
                versions.append(verbs.read(reader, "p", 0, newer_than=versions[-1]))
            # What was still on its way comes one after the other; a queue would hand out all of the 20.
            assert len(versions) <= 10
            assert reader.latest("p", newer_than=20) is None

    def test_a_value_is_never_torn_and_versions_only_rise(self) -> None:
        """Readers look while the writer writes as fast as it can."""
        count = 300
        with Job(self.engine, slots=written_by_0(1, 2)) as job:
            reader, writer, other = job.open(1), job.start(0), job.start(2)
            writer.tell("publish_many", "p", 0, count, MAX)
            version = -1
            while version != count - 1:
                version = verbs.read(reader, "p", 0, newer_than=version)
            writer.answer()
            assert other.ask("read", "p", 0, count - 2) == count - 1

    def test_every_one_of_several_readers_sees_whole_values_while_they_are_written(self) -> None:
        """Each reads as fast as it can, every byte, and ends with the last version."""
        readers, last = (1, 2, 3, 4), 100
        with Job(self.engine, slots=written_by_0(*readers)) as job:
            writer, peers = job.open(0), [job.start(rank) for rank in readers]
            for peer in peers:
                peer.tell("read_to", "p", 0, last)
            for version in range(last + 1):
                verbs.publish(writer, "p", version, MAX - version)
                writer.wait(0.0)
            verbs.until(writer, lambda: all(peer.answered() for peer in peers) or None)
            for peer in peers:
                assert 1 <= peer.answer() <= last + 1

    def test_a_held_value_stays_as_it_was(self) -> None:
        """A claim on a value is not overwritten by newer versions."""
        with Job(self.engine, slots=written_by_0(1)) as job:
            reader, writer = job.open(1), job.start(0)
            writer.ask("publish", "p", 0, MAX)
            held = verbs.until(reader, lambda: reader.latest("p"))
            writer.ask("publish_many", "p", 1, 30, MAX)
            verbs.check(held.view(), 0, 0)
            with pytest.raises(TransportError, match="release"):
                reader.latest("p")
            held.release()
            version = 0
            while version != 30:
                version = verbs.read(reader, "p", 0, newer_than=version)

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

    @pytest.mark.parametrize("nbytes", [0, 1, MAX])
    def test_every_size_up_to_the_largest_is_a_value(self, nbytes: int) -> None:
        """Empty and largest values."""
        with Job(self.engine, slots=written_by_0(1)) as job:
            reader, writer = job.open(1), job.start(0)
            writer.ask("publish", "p", 1, nbytes)
            held = verbs.until(reader, lambda: reader.latest("p"))
            assert held.nbytes == nbytes
            assert held.take(memoryview(bytearray(MAX))) == nbytes

    def test_a_wrong_publish_is_an_error(self) -> None:
        """Too large, not newer, not the writer."""
        with Job(self.engine, slots=written_by_0(1)) as job:
            writer, reader = job.open(0), job.open(1)
            with pytest.raises(MessageTooLargeError, match=str(MAX)):
                writer.publish("p", memoryview(bytearray(MAX + 1)), 0)
            verbs.publish(writer, "p", 5, 10)
            with pytest.raises(TransportError, match="version 5"):
                verbs.publish(writer, "p", 5, 10)
            with pytest.raises(TransportError, match="'p'"):
                verbs.publish(reader, "p", 6, 10)
            with pytest.raises(TransportError, match="'p'"):
                writer.latest("p")
