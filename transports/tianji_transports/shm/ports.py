"""What the ``shm`` engine has of iceoryx2, and how its ranks wake one another: a FIFO for each rank.

A rank that stored something for a rank that sleeps writes a byte to its FIFO, and the sleeper polls it
together with any other descriptor. A FIFO outlives its reader, so a restarted rank hears those who opened
it before. This module knows iceoryx2's builders; it knows nothing of credits, slots and claims.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Any

import iceoryx2

from tianji_transports.shm.page import LINE, SHM, Pair, lines

SPARE_PORTS = 4
"""Room for ports of killed processes that are not cleaned up yet."""

Line = ctypes.c_uint8 * LINE

iceoryx2.set_log_level(iceoryx2.LogLevel.Fatal)


class Ports:
    """iceoryx2's side of one endpoint: its node and its services.

    Everything lies under the job's own prefix, so that no other user of iceoryx2 is ever touched.
    """

    def __init__(self, stem: str) -> None:
        config = iceoryx2.config.default()
        config.global_cfg.root_path = iceoryx2.Path.new(f"{SHM}/{stem}.d/")
        config.global_cfg.prefix = iceoryx2.FileName.new(f"{stem}.")
        self.node = (
            iceoryx2.NodeBuilder.new()
            .config(config)
            .signal_handling_mode(iceoryx2.SignalHandlingMode.Disabled)
            .create(iceoryx2.ServiceType.Ipc)
        )

    def service(self, pair: Pair, epoch: int) -> Any:
        """Open the publish-subscribe service of a pair, for one life of its sender."""
        channel = pair.channel
        name = iceoryx2.ServiceName.new(f"{pair.source}/{channel.receiver}/{channel.name}/{epoch}")
        return (
            self.node.service_builder(name)
            .publish_subscribe(iceoryx2.Slice[Line])
            .payload_alignment(iceoryx2.Alignment.new(LINE))
            .enable_safe_overflow(False)
            .history_size(0)
            .subscriber_max_buffer_size(channel.window)
            .subscriber_max_borrowed_samples(channel.borrow)
            .max_publishers(1)
            .max_subscribers(SPARE_PORTS)
            .max_nodes(1 + SPARE_PORTS)
            .open_or_create()
        )

    def publisher(self, pair: Pair, epoch: int) -> Any:
        """Create the sender's port; its memory is only touched as far as it is used."""
        channel = pair.channel
        return (
            self.service(pair, epoch)
            .publisher_builder()
            .initial_max_slice_len(1 + lines(channel.max_bytes))
            .max_loaned_samples(channel.window)
            # Twice: a killed receiver keeps its share until it is cleaned up.
            .override_sample_preallocation(2 * (channel.window + channel.borrow) + 2)
            .backpressure_strategy(iceoryx2.BackpressureStrategy.DiscardData)
            .create()
        )

    def close(self) -> None:
        """Drop the node; its ports were dropped before."""
        del self.node


MOST_RINGS = 4096


class Bells:
    """The bell of one rank, and those that it has rung.

    Attributes:
        own: readable once a rank has rung.
    """

    def __init__(self, stem: str, rank: int) -> None:
        self._stem = stem
        self._opened: dict[int, int] = {}
        self.own = self._open(rank)

    def _open(self, rank: int) -> int:
        path = Path(SHM, f"{self._stem}.bell-{rank}")
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # For both ways: neither side then waits for the other, nor finds it gone.
        descriptor = self._opened[rank] = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        return descriptor

    def ring(self, rank: int) -> None:
        """Wake a rank."""
        descriptor = self._opened.get(rank)
        if descriptor is None:
            descriptor = self._open(rank)
        # A full FIFO rings already.
        with contextlib.suppress(BlockingIOError):
            os.write(descriptor, b"!")

    def silence(self) -> None:
        """Take in every ring so far."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.own, MOST_RINGS)) == MOST_RINGS:
                pass

    def close(self) -> None:
        """Close every bell."""
        while self._opened:
            os.close(self._opened.popitem()[1])
