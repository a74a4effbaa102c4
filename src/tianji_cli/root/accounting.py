"""Where every sample went: ``produced = received + in_flight + lost + dropped`` (exact at any stop).

Each term is counted where it happens. Actors count what they produced and gave up, in pages that
survive them; the buffer counts what it received, fragment by fragment, and each fragment says how far its
actor's own count had come. What an actor pushed beyond the last fragment received is in flight if it stopped
in order and lost if it was killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from tianji_cli.files.counters import Production
from tianji_cli.wire.reports import Reception, Source


@dataclass(frozen=True)
class Account:
    """The terms of the equation, in samples.

    Attributes:
        unaccounted: ``produced`` less all other terms; anything but 0 is a defect and is reported.
    """

    produced: int
    received: int
    in_flight: int
    lost: int
    dropped: int

    @property
    def unaccounted(self) -> int:
        """Samples that no term explains."""
        return self.produced - self.received - self.in_flight - self.lost - self.dropped


def settle(
    productions: Mapping[Source, Production],
    receptions: Mapping[Source, Reception],
    killed: Set[Source],
    orphaned: Set[int] = frozenset(),
) -> Account:
    """Add up all actors after everything stopped.

    Args:
        productions: the last state of each incarnation's page.
        receptions: what the buffers received from each.
        killed: incarnations that did not stop in order.
        orphaned: numbers of actors whose buffer died: ``receptions`` is its last word, and what came after is
            lost with it.
    """
    in_flight = lost = dropped = received = 0
    for source, production in productions.items():
        reception = receptions.get(source, Reception())
        received += reception.samples
        dropped += reception.dropped
        lost += reception.lost
        unclaimed = production.finished - reception.position
        if source in killed or source[0] in orphaned:
            lost += unclaimed
        else:
            in_flight += unclaimed
        if production.abandoned:
            dropped += production.unfinished
        else:  # It was killed, or an exception ended it: all that stop in order abandon what is unfinished.
            lost += production.unfinished
    produced = sum(production.produced for production in productions.values())
    return Account(produced, received, in_flight, lost, dropped)
