"""What holds when a peer's process is stopped and goes on: it is not dead, it only takes its time."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import ClassVar

from tianji_transports.core import FULL
from tianji_transports.testing import verbs
from tianji_transports.testing.job import Job
from tianji_transports.wiring import Channel, Slot

PAGE_BYTES = 4096


def resident_bytes() -> int:
    """Memory of this process, as the kernel counts it."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


class StopContract:
    """Stopped peers, for engines whose peers are processes."""

    engine: ClassVar[str]

    def test_a_stopped_receiver_fills_the_window_and_no_more_memory(self) -> None:
        """The sender gets FULL for as long as that takes, and goes on where it was."""
        nbytes, window = 500_000, 4
        with Job(self.engine, (Channel("f", 0, (1,), nbytes, window),)) as job:
            sender, receiver = job.open(1), job.start(0)
            receiver.tell("receive_stream", "f", 1, 0, 2 * window)
            for number in range(2 * window):
                verbs.push(sender, 0, "f", number, nbytes)
            verbs.until(sender, lambda: receiver.answered() or None)
            receiver.answer()
            receiver.signal(signal.SIGSTOP)
            before = resident_bytes()
            pushed, until = 0, time.monotonic() + 1.5
            while time.monotonic() < until:
                lent = sender.loan(0, "f", nbytes)
                if lent is FULL:
                    sender.wait(0.01)
                else:
                    verbs.fill(lent.memory, 1, pushed)
                    sender.push(lent)
                    pushed += 1
            assert pushed == window
            assert resident_bytes() - before < 4 * window * nbytes
            receiver.signal(signal.SIGCONT)
            receiver.tell("receive_stream", "f", 1, 0, window + 1)
            verbs.push(sender, 0, "f", window, nbytes)
            verbs.until(sender, lambda: receiver.answered() or None)
            receiver.answer()

    def test_a_stopped_reader_does_not_stop_the_writer(self) -> None:
        """When it goes on, it reads the newest value."""
        with Job(self.engine, slots=(Slot("p", 0, (1,), 200_000),)) as job:
            writer, reader = job.open(0), job.start(1)
            reader.tell("read", "p", 0)
            verbs.publish(writer, "p", 0, 200_000)
            verbs.until(writer, lambda: reader.answered() or None)
            assert reader.answer() == 0
            reader.signal(signal.SIGSTOP)
            before = resident_bytes()
            for version in range(1, 201):
                verbs.publish(writer, "p", version, 200_000)
            assert resident_bytes() - before < 10_000_000
            reader.signal(signal.SIGCONT)
            reader.tell("read", "p", 0, 199)
            verbs.until(writer, lambda: reader.answered() or None)
            assert reader.answer() == 200
