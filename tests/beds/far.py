"""A link between two network namespaces that delays packets, and loses some: what netem does, in user space.

``python far.py OTHER DELAY_S LOSS``, in one of them, makes a device ``far0`` in both and prints a line once
they are there; it carries their packets until its standard input is closed.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections import deque

DEVICE = "far0"
TUNSETIFF = 0x400454CA
IFF_TUN_WITHOUT_HEADER = 0x1001
MOST_BYTES = 65_536


def open_device(name: str) -> int:
    """Make a device whose packets are read from the descriptor, and come from what is written to it."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN_WITHOUT_HEADER))
    return descriptor


def carry(ends: tuple[int, int], delay_s: float, loss: float) -> None:
    """Carry packets both ways until standard input is closed."""
    to = dict(zip(ends, reversed(ends), strict=True))
    under_way: deque[tuple[float, int, bytes]] = deque()
    lost = random.Random(1)
    while True:
        wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        ready, _, _ = select.select([*ends, sys.stdin], [], [], wait_s)
        if sys.stdin in ready:
            return
        for end in ready:
            packet = os.read(end, MOST_BYTES)
            if lost.random() >= loss:
                under_way.append((time.monotonic() + delay_s, to[end], packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, end, packet = under_way.popleft()
            os.write(end, packet)


def main() -> None:
    other, delay_s, loss = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    there = open_device("far1")
    subprocess.run(["ip", "link", "set", "far1", "netns", other, "name", DEVICE], check=True)
    here = open_device(DEVICE)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    carry((here, there), delay_s, loss)


if __name__ == "__main__":
    main()
