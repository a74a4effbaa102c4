"""The buffer beside its learner: probes for fragments and holds them until the learner takes a rollout."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from tianji_cli.data.rollout import RolloutStore
from tianji_cli.roles.role import Role, rejected_by
from tianji_transports.core import Transport


class Buffer(Role):
    """Claims fragments into its store, as many as the store is ready to hold.

    Args:
        transport: the endpoint of this process.
        channel: the channel of fragments.
        store: where they are held; the learner takes them from there.
    """

    name = "buffer"

    def __init__(self, transport: Transport, channel: str, store: RolloutStore) -> None:
        self._transport = transport
        self._channel = channel
        self._store = store

    def turn(self) -> bool:
        """Claim what is there and wanted."""
        claimed = False
        while not self._store.full and (claim := self._transport.probe(self._channel)) is not None:
            self._store.admit(claim)
            claimed = True
        return claimed

    def wind_down(self) -> None:
        """From now on claim everything that arrives: it must be accounted for."""
        self._store.wind_down()

    def stop(self) -> None:
        """Claim what has arrived since the last turn."""
        self.turn()

    def report(self) -> dict[str, Any]:
        """Receptions by source, and what was rejected by whom: how many, and why the first."""
        return {
            "receptions": [
                [*source, *astuple(reception)] for source, reception in self._store.receptions.items()
            ],
            "rejected": {
                "fragments": [self._store.rejected, self._store.first_refusal],
                "endpoint": rejected_by(self._transport),
            },
        }
