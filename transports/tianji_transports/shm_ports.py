"""What the ``shm`` engine has of iceoryx2: a node, its services and ports, and a listener to sleep on.

Knows iceoryx2's builders; knows nothing of credits, slots and claims.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any

import iceoryx2

from tianji_transports.shm_page import LINE, SHM, Pair, lines

LONGEST_SLEEP_S = 3600.0
SPARE_PORTS = 4
"""Room for ports of killed processes that nobody has cleaned up yet."""

Line = ctypes.c_uint8 * LINE

iceoryx2.set_log_level(iceoryx2.LogLevel.Fatal)


class Ports:
    """iceoryx2's side of one endpoint: its node, its services, the listener it sleeps on.

    Everything lies under the job's own prefix, so that no other user of iceoryx2 is ever touched.
    """

    def __init__(self, stem: str, rank: int, ranks: int) -> None:
        config = iceoryx2.config.default()
        config.global_cfg.root_path = iceoryx2.Path.new(f"{SHM}/{stem}.d/")
        config.global_cfg.prefix = iceoryx2.FileName.new(f"{stem}.")
        self._ranks = ranks
        self._notifiers: dict[int, Any] = {}
        self.node = (
            iceoryx2.NodeBuilder.new()
            .config(config)
            .signal_handling_mode(iceoryx2.SignalHandlingMode.Disabled)
            .create(iceoryx2.ServiceType.Ipc)
        )
        self.listener = self._event(rank).listener_builder().create()
        self._wait_set = (
            iceoryx2.WaitSetBuilder.new()
            .signal_handling_mode(iceoryx2.SignalHandlingMode.Disabled)
            .create(iceoryx2.ServiceType.Ipc)
        )
        self._guard = self._wait_set.attach_notification(self.listener)

    def _event(self, rank: int) -> Any:
        ports = self._ranks + SPARE_PORTS
        builder = self.node.service_builder(iceoryx2.ServiceName.new(f"wake/{rank}")).event()
        return builder.max_listeners(SPARE_PORTS).max_notifiers(ports).max_nodes(ports).open_or_create()

    def notify(self, rank: int) -> None:
        """Wake a rank."""
        notifier = self._notifiers.get(rank)
        if notifier is None:
            notifier = self._notifiers[rank] = self._event(rank).notifier_builder().create()
        # It fails where nobody is left to wake: a listener that died and was not taken off the list yet.
        with contextlib.suppress(iceoryx2.NotifierNotifyError):
            notifier.notify()

    def sleep(self, timeout_s: float, also: Sequence[int]) -> bool:
        """Sleep until notified or until ``also`` is readable; say whether it is."""
        timeout = iceoryx2.Duration.from_secs_f64(min(timeout_s, LONGEST_SLEEP_S))
        waits = self._wait_set
        guards = [
            waits.attach_notification_fd(iceoryx2.FileDescriptor.non_owning_new(number)) for number in also
        ]
        try:
            events, _ = waits.wait_and_process_with_timeout(timeout)
            readable = any(event.has_event_from(guard) for event in events for guard in guards)
        finally:
            for guard in guards:
                guard.delete()
        self.listener.try_wait()
        return readable

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
        """Drop every port, then the node."""
        self._guard.delete()
        self._wait_set.delete()
        for notifier in self._notifiers.values():
            notifier.delete()
        self._notifiers.clear()
        self.listener.delete()
        del self.node
