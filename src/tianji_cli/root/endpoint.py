"""The root's endpoint in a job of several groups, and the averager that works with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tianji_cli.plan.plan import ROOT_RANK, Plan
from tianji_cli.root.overview import Overview
from tianji_cli.wire.control import ControlServer
from tianji_transports.core import EngineOptions, Transport
from tianji_transports.errors import TransportError
from tianji_transports.wiring import Wiring

if TYPE_CHECKING:
    from tianji_cli.root.averager import Averager


class RootEndpoint:
    """Opens the root's endpoint once the wiring is known, and sleeps at it between rounds of averaging.

    Args:
        plan: of the job.
        wait_s: longest that a round of averaging waits for the rest, once two groups have contributed.
        options: how the endpoint reaches other hosts.
        event: tells the user something.

    Attributes:
        failure: why there is no averaging any more; empty while nothing has failed.
    """

    def __init__(
        self, plan: Plan, wait_s: float, options: EngineOptions, event: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._wait_s = wait_s
        self._options = options
        self._event = event
        self._transport: Transport | None = None
        self._averager: Averager | None = None
        self._over = False
        self._shut = ExitStack()
        self.failure = ""

    def open(self, wiring: Wiring) -> None:
        """Open the endpoint, unless training is over already."""
        if self._over:
            return
        # Imported here: the root of a single group needs none of it to start.
        from tianji_cli.root.averager import Averager  # noqa: PLC0415
        from tianji_cli.wire.fragment import job_number  # noqa: PLC0415
        from tianji_transports.composite import open_endpoint  # noqa: PLC0415

        plan = self._plan
        try:
            self._transport = open_endpoint(
                plan.local, plan.remote, plan.endpoints, wiring, ROOT_RANK, options=self._options
            )
        except TransportError as error:
            self._fail(error)
            return
        groups = {
            process.rank: process.group for process in plan.carrying("learner") if process.group is not None
        }
        self._averager = Averager(
            self._transport, groups, job=job_number(wiring.job), wait_s=self._wait_s, event=self._event
        )

    @property
    def address(self) -> Mapping[int, str]:
        """The root's address by its rank, once there is one."""
        return {} if self._transport is None else {ROOT_RANK: self._transport.address}

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Learn where everybody is."""
        if self._transport is not None:
            self._transport.connect(addresses)

    def turn(self) -> None:
        """Average what there is to average."""
        if self._averager is not None and not self._over:
            try:
                self._averager.turn()
            except TransportError as error:
                self._fail(error)

    def finish(self) -> None:
        """Training is over: average no more, miss nobody, and let nobody connect any more.

        From now on the endpoint is not looked at, and strangers who connected would fill it.
        """
        self._over = True
        if self._transport is not None:
            self._shut.enter_context(self._transport.undisturbed())

    def sleep(self, until: float, control: ControlServer, also: Sequence[int]) -> None:
        """Sleep until a contribution or a control message comes, or a round has to be closed.

        Args:
            until: latest end, by ``time.monotonic``.
            control: wakes the sleeper.
            also: descriptors that wake it, too.
        """
        timeout_s = max(0.0, until - time.monotonic())
        if self._transport is None or self._averager is None or self._over:
            control.wait(timeout_s, also)
        elif not control.is_ready:
            closing_s = max(0.0, self._averager.deadline - time.monotonic())
            try:
                self._transport.wait(min(timeout_s, closing_s), (*control.descriptors, *also))
            except TransportError as error:
                self._fail(error)

    def lose(self, learners: Iterable[int]) -> None:
        """Go on without some learners, by rank."""
        if self._averager is None or self._transport is None:
            return
        for rank in learners:
            self._averager.lose(rank)
            self._transport.peer_lost(rank)

    def tell(self, overview: Overview, lost: Iterable[int]) -> None:
        """Let it be known how far averaging is, and which groups are lost."""
        if self._averager is not None:
            done = self._averager
            overview.note_averaging(done.rounds, done.missed, sorted(lost))

    @property
    def rejected(self) -> tuple[int, str]:
        """How many messages were refused, and why the first."""
        return (0, "") if self._averager is None else self._averager.rejected

    def _fail(self, error: TransportError) -> None:
        self.failure = f"the root cannot average: {error}"
        self._over = True

    def close(self) -> None:
        """Close the endpoint."""
        if self._transport is not None:
            self._shut.close()
            self._transport.close()
