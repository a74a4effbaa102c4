"""Where every sample went: ``produced = received + in_flight + lost + dropped`` (exact at any stop).

Each term is counted where it happens. Actors count what they produced and gave up, in pages that
survive them; the buffer counts what it received, fragment by fragment; what lies between the two
counts of an actor is in flight if it stopped in order and lost if it was killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from tianji_cli.data.production import Production

Source = tuple[int, int]
"""(number, incarnation) of an actor."""


@dataclass
class Reception:
    """What a buffer received from one incarnation of an actor."""

    samples: int = 0
    dropped: int = 0
    next_sequence: int = 0
    missing: list[int] = field(default_factory=list)
    """Sequence numbers that were skipped: frames that were rejected on the way."""


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
    *,
    receiver_lost: bool = False,
) -> Account:
    """Add up all actors after everything stopped.

    Args:
        productions: the last state of each incarnation's page.
        receptions: what the buffers received from each.
        killed: incarnations that did not stop in order.
        receiver_lost: the buffer died: ``receptions`` is its last word, and what came after is lost with it.
    """
    in_flight = lost = dropped = received = 0
    for source, production in productions.items():
        reception = receptions.get(source, Reception())
        received += reception.samples
        dropped += reception.dropped
        unclaimed = sum(
            production.recent.get(n, 0) for n in range(reception.next_sequence, production.pushed)
        )
        lost += sum(production.recent.get(n, 0) for n in reception.missing)
        if source in killed or receiver_lost:
            lost += unclaimed
        else:
            in_flight += unclaimed
        if production.abandoned:
            dropped += production.unfinished
        elif source in killed:
            lost += production.unfinished
    produced = sum(production.produced for production in productions.values())
    return Account(produced, received, in_flight, lost, dropped)
