"""Closes a socket that listens, for a while or for good, and keeps what is connected already.

A program in the kernel drops every packet that would begin a connection (Linux's ``SO_ATTACH_FILTER``). Who
connects meanwhile tries again by itself, as TCP does, and sees no more than a slow network.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
_DROP: Final = ctypes.create_string_buffer(struct.pack("@HBBI", 0x06, 0, 0, 0))
"""The program "return 0", which keeps nothing of any packet."""


def listening() -> set[int]:
    """Find the descriptors of this process's sockets that listen for connections over a network."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), borrowed(int(name)) as candidate:
            if candidate.family in {socket.AF_INET, socket.AF_INET6} and candidate.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            ):
                found.add(int(name))
    return found


def keep_out(descriptor: int) -> None:
    """Let nobody connect to a listening socket from now on. Does nothing on a system that cannot."""
    _set(descriptor, SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(_DROP)))


def let_in(descriptor: int) -> None:
    """End what ``keep_out`` began."""
    _set(descriptor, SO_DETACH_FILTER, struct.pack("@i", 0))


def _set(descriptor: int, option: int, value: bytes) -> None:
    with contextlib.suppress(OSError), borrowed(descriptor) as listener:
        listener.setsockopt(socket.SOL_SOCKET, option, value)


@contextlib.contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Speak of a descriptor as a socket, and leave it open."""
    borrowed = socket.socket(fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()
