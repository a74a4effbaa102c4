"""Ports for what a test has listen: none that a kernel hands out, which other tests' connections take."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack, suppress
from typing import Final

FIRST: Final = 10_000
LAST: Final = 19_999
"""Jobs under Slurm listen above these, sockets without a wish for a port on Linux from 32,768 on."""
LAST_FIRST_JOB: Final = 9_000
"""A job under Slurm listens at 20,000 and its number."""

_dice = random.Random(os.getpid())


def free_ports(number: int) -> list[int]:
    """Find TCP ports that are free; held together, so that they differ."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < number:
            port = _dice.randint(FIRST, LAST)
            candidate = held.enter_context(socket.socket())
            with suppress(OSError):
                candidate.bind(("", port))
                found.append(port)
    return found


def first_job() -> int:
    """Draw a number for a Slurm's first job, so that roots under the Slurms of two workers share no port."""
    return _dice.randint(1, LAST_FIRST_JOB)


def free_address() -> str:
    """Find an address for a job's control channel."""
    return f"tcp://127.0.0.1:{free_ports(1)[0]}"
