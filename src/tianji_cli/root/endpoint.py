"""The root's endpoint in the wiring of a job with several groups."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from tianji_cli.plan.plan import ROOT_RANK, Plan
from tianji_cli.wire.control import ControlServer
from tianji_transports.core import EngineOptions, Transport
from tianji_transports.wiring import Wiring


class RootEndpoint:
    """Opens the root's endpoint once the wiring is known, and sleeps on it until a group sends a message.

    A job of a single group needs no endpoint of the root: then it sleeps on the control channel alone.

    Args:
        options: options of the transport to other hosts.
    """

    def __init__(self, plan: Plan, options: EngineOptions) -> None:
        self._plan = plan
        self._options = options
        self._transport: Transport | None = None
        self._over = False
        self._shut = ExitStack()

    def open(self, wiring: Wiring) -> Transport | None:
        """Open the endpoint and return it; None if it is open already, or training is over.

        Group 0's learner sends the wiring, and may register a second time.

        Raises:
            TransportError: the endpoint cannot be opened.
        """
        if self._over or self._transport is not None:
            return None
        # Imported here: the root of a single group needs none of it to start.
        from tianji_transports.composite import open_endpoint  # noqa: PLC0415

        plan = self._plan
        self._transport = open_endpoint(
            plan.local, plan.remote, plan.endpoints, wiring, ROOT_RANK, options=self._options
        )
        return self._transport

    @property
    def address(self) -> Mapping[int, str]:
        """The root's address by its rank; empty before the endpoint is open."""
        return {} if self._transport is None else {ROOT_RANK: self._transport.address}

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Connect to all processes by their addresses."""
        if self._transport is not None:
            self._transport.connect(addresses)

    def finish(self) -> None:
        """Go on without the groups when training is over: miss none, and admit no further connection.

        The root no longer reads the endpoint, and strangers that connected would fill it.
        """
        if not self._over and self._transport is not None:
            self._shut.enter_context(self._transport.undisturbed())
        self._over = True

    def sleep(self, until: float, control: ControlServer, also: Sequence[int]) -> None:
        """Sleep until a learner or the control channel has a message, a descriptor is readable, or the time.

        Raises:
            TransportError: the endpoint does not reach the groups any more.
        """
        timeout_s = max(0.0, until - time.monotonic())
        if self._transport is None or self._over:
            control.wait(timeout_s, also)
        elif not control.is_ready:
            self._transport.wait(timeout_s, (*control.descriptors, *also))

    @property
    def rejected(self) -> tuple[int, str]:
        """Number of messages that the endpoint rejected, and the reason of the first."""
        if self._transport is None:
            return 0, ""
        return self._transport.counters.rejected, self._transport.counters.first_rejection

    def close(self) -> None:
        """Close the endpoint."""
        if self._transport is not None:
            self._shut.close()
            self._transport.close()
