"""The buffer: probes for fragments and holds them for its learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, Protocol

from tianji_cli.roles.buffer.admission import Admission
from tianji_cli.roles.buffer.replay.keeper import ReplayKeeper
from tianji_cli.roles.role import Role, Trigger, rejected_by
from tianji_transports.core import Claim, Transport


class Store(Protocol):
    """Where a buffer puts fragments: rollouts in the making, or a replay."""

    admission: Admission

    @property
    def full(self) -> bool:
        """Leave further fragments with their senders."""

    def admit(self, claim: Claim) -> None:
        """Take a claimed fragment, or reject it."""

    def wind_down(self) -> None:
        """Take whatever still comes."""

    def report(self) -> dict[str, Any]:
        """What the root is told of it."""


class Buffer(Role):
    """Claims fragments into its store, as many as the store is ready to hold.

    Args:
        transport: the endpoint of this process.
        channel: the channel of fragments.
        store: where they are held.
        keeper: saves the store's replay now and then, if it is to be saved.
    """

    name = "buffer"

    def __init__(
        self, transport: Transport, channel: str, store: Store, keeper: ReplayKeeper | None = None
    ) -> None:
        self._transport = transport
        self._channel = channel
        self._store = store
        self._keeper = keeper
        self._winding_down = False

    @property
    def store(self) -> Store:
        """Where fragments are held."""
        return self._store

    @property
    def triggers(self) -> Sequence[Trigger]:
        """Save the replay when it is time."""
        return () if self._keeper is None else (Trigger(when=self.copy_is_due, do=self._save),)

    def turn(self) -> bool:
        """Claim what is there and wanted."""
        claimed = False
        while not self._store.full and (claim := self._transport.probe(self._channel)) is not None:
            self._store.admit(claim)
            claimed = True
        return claimed

    def copy_is_due(self) -> bool:
        """It is time to save, and nobody waits for this process to claim the last fragments."""
        return self._keeper is not None and self._keeper.is_due() and not self._winding_down

    def wind_down(self) -> None:
        """From now on claim everything that arrives: it must be accounted for."""
        self._winding_down = True
        self._store.wind_down()

    def stop(self) -> None:
        """Claim what has arrived since the last turn."""
        self.turn()

    def keep(self) -> None:
        """Save the replay, which may take a while: nobody waits for it any more."""
        self._save()

    def _save(self) -> bool:
        if self._keeper is None:
            return False
        with self._transport.undisturbed():
            return self._keeper.save()

    def report(self) -> dict[str, Any]:
        """Receptions by source, and what was rejected by whom: how many, and why the first."""
        admission = self._store.admission
        return {
            "receptions": [
                [*source, *astuple(reception)] for source, reception in admission.receptions.items()
            ],
            "rejected": {
                "fragments": [admission.refusals.count, admission.refusals.first],
                "endpoint": rejected_by(self._transport),
            },
            **self._store.report(),
        }
