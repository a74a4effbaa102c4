"""What roles report to the root."""

from __future__ import annotations

from dataclasses import dataclass

Source = tuple[int, int]
"""(number, incarnation) of an actor."""


@dataclass
class Reception:
    """What a buffer received from one incarnation of an actor, in samples.

    Attributes:
        samples: received.
        dropped: received and of no use.
        lost: in fragments whose sequence numbers were skipped: they were rejected on the way.
        next_sequence: of the fragment that is to come.
        position: the actor's own count of samples up to that fragment.
    """

    samples: int = 0
    dropped: int = 0
    lost: int = 0
    next_sequence: int = 0
    position: int = 0

    def follow(self, sequence: int, before: int, samples: int) -> None:
        """Note the next fragment: its number, the samples before it and the samples in it."""
        if sequence != self.next_sequence:
            self.lost += before - self.position
        self.next_sequence = sequence + 1
        self.position = before + samples
