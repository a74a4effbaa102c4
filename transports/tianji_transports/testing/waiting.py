"""What holds for ``wait``: it wakes for everything that matters and costs nothing while nothing comes."""

from __future__ import annotations

import os
import time
from typing import ClassVar

from tianji_transports.core import FULL
from tianji_transports.testing import verbs
from tianji_transports.testing.job import Job
from tianji_transports.wiring import Channel, Slot


class WaitContract:
    """Sleeping, whatever the engine."""

    engine: ClassVar[str]
    most_idle: ClassVar[float] = 0.03
    """Share of a core that a waiting endpoint may take while nothing comes."""

    def test_a_message_wakes(self) -> None:
        """Whether it comes before or after the sleep begins."""
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
        """Who was refused is woken when a push is claimed."""
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
        """``also`` is waited for with everything else."""
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
        """Under ``most_idle`` of one while nothing comes, with peers around."""
        channels = (Channel("f", 0, (1,), 1000), Channel("b", 1, (0,), 1000))
        slots = (Slot("p", 0, (1,), 1000), Slot("q", 1, (0,), 1000))
        with Job(self.engine, channels, slots) as job:
            endpoint, peer = job.open(0), job.start(1)
            peer.ask("publish", "q", 1, 10)
            assert verbs.read(endpoint, "q", 1) == 1
            while endpoint.wait(0.3):
                pass
            began, cpu = time.monotonic(), time.process_time()
            while (slept := time.monotonic() - began) < 2.0:
                endpoint.wait(2.0 - slept)
            assert time.process_time() - cpu < self.most_idle * 2.0

    def test_a_message_left_alone_wakes_once(self) -> None:
        """Who does not ask for what was reported is not kept awake by it; something new wakes again."""
        with Job(self.engine, (Channel("f", 0, (1,), 100),)) as job:
            receiver, sender = job.open(0), job.start(1)
            sender.tell("push", 0, "f", 0)
            assert verbs.until(receiver, lambda: receiver.wait(verbs.LONG_S) or None)
            sender.answer()
            while receiver.wait(0.3):
                pass
            sender.tell("push", 0, "f", 1)
            assert verbs.woken(receiver)
            sender.answer()
            verbs.receive(receiver, "f", 1, 0)
            assert receiver.wait(0.0), "after a claim, what is still there is news again"
            verbs.receive(receiver, "f", 1, 1)
