"""The root's endpoint: it averages several groups, or compares them as members of a population."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

from tianji_cli.plan.plan import ROOT_RANK, Plan
from tianji_cli.root.job_view import Overview
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.records import job_number
from tianji_cli.wire.reports import Rejected
from tianji_transports.core import EngineOptions, Transport
from tianji_transports.errors import TransportError
from tianji_transports.wiring import Wiring


class Exchange(Protocol):
    """The root's work with the learners of several groups: averaging or comparison.

    Attributes:
        rejected: messages that came whole and did not belong to this job.
        deadline: time of ``time.monotonic`` at which there is work even without a message.
    """

    transport: Transport
    rejected: Rejected
    deadline: float

    def turn(self) -> bool:
        """Do the pending work; return False if there was none."""

    def lose(self, rank: int) -> None:
        """Stop waiting for the group of a learner's rank."""

    def report(self, overview: Overview) -> None:
        """Write the progress into the overview."""


ExchangeFactory = Callable[[Transport, Mapping[int, int], int], Exchange]
"""Builds the exchange from the transport, the group of each learner by its rank, and the job's number."""


class RootEndpoint:
    """Opens the root's endpoint once the wiring is known, and sleeps on it until a group sends a message.

    Args:
        options: options of the transport to other hosts.
        build: builds the exchange, which averages the groups or compares the members of a population.

    Attributes:
        failure: the reason why the root no longer reaches the groups; empty while nothing has failed.
    """

    def __init__(self, plan: Plan, options: EngineOptions, build: ExchangeFactory) -> None:
        self._plan = plan
        self._options = options
        self._build = build
        self._exchange: Exchange | None = None
        self._over = False
        self._shut = ExitStack()
        self.failure = ""

    def open(self, wiring: Wiring) -> None:
        """Open the endpoint once, unless training is over; group 0's learner may register a second time."""
        if self._over or self._exchange is not None:
            return
        # Imported here: the root of a single group needs none of it to start.
        from tianji_transports.composite import open_endpoint  # noqa: PLC0415

        plan = self._plan
        try:
            transport = open_endpoint(
                plan.local, plan.remote, plan.endpoints, wiring, ROOT_RANK, options=self._options
            )
        except TransportError as error:
            self._fail(error)
            return
        groups = {
            process.rank: process.group for process in plan.carrying("learner") if process.group is not None
        }
        self._exchange = self._build(transport, groups, job_number(wiring.job))

    @property
    def address(self) -> Mapping[int, str]:
        """The root's address by its rank; empty before the endpoint is open."""
        return {} if self._exchange is None else {ROOT_RANK: self._exchange.transport.address}

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Connect to all processes by their addresses."""
        if self._exchange is not None:
            self._exchange.transport.connect(addresses)

    def turn(self) -> None:
        """Do the exchange's pending work."""
        if self._exchange is not None and not self._over:
            try:
                self._exchange.turn()
            except TransportError as error:
                self._fail(error)

    def finish(self) -> None:
        """Stop the exchange when training is over: miss no group, and admit no further connection.

        The root no longer reads the endpoint, and strangers that connected would fill it.
        """
        self._over = True
        if self._exchange is not None:
            self._shut.enter_context(self._exchange.transport.undisturbed())

    def sleep(self, until: float, control: ControlServer, also: Sequence[int]) -> None:
        """Sleep until a learner or the control channel has a message, or a round has to be closed."""
        timeout_s = max(0.0, until - time.monotonic())
        if self._exchange is None or self._over:
            control.wait(timeout_s, also)
        elif not control.is_ready:
            closing_s = max(0.0, self._exchange.deadline - time.monotonic())
            try:
                self._exchange.transport.wait(min(timeout_s, closing_s), (*control.descriptors, *also))
            except TransportError as error:
                self._fail(error)

    def lose(self, learners: Iterable[int]) -> None:
        """Go on without some learners, given by rank."""
        if self._exchange is not None:
            for rank in learners:
                self._exchange.lose(rank)
                self._exchange.transport.peer_lost(rank)

    def report(self, overview: Overview) -> None:
        """Write the progress of the groups into the overview."""
        if self._exchange is not None:
            self._exchange.report(overview)

    @property
    def rejected(self) -> tuple[int, str]:
        """Number of messages that the endpoint or the exchange rejected, and the reason of the first."""
        if self._exchange is None:
            return 0, ""
        counters, rejected = self._exchange.transport.counters, self._exchange.rejected
        return counters.rejected + rejected.count, rejected.first or counters.first_rejection

    def _fail(self, error: TransportError) -> None:
        self.failure = f"the root cannot reach the groups: {error}"
        self._over = True

    def close(self) -> None:
        """Close the endpoint."""
        if self._exchange is not None:
            self._shut.close()
            self._exchange.transport.close()
