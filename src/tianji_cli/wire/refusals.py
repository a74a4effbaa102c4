"""Messages that were not what they should be: how many, and why the first."""

from __future__ import annotations

from tianji_transports.core import Claim


class Refusals:
    """Counts refused messages.

    Attributes:
        count: how many there were.
        first: why the first of them was refused; empty if none was.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def add(self, claim: Claim, why: str) -> None:
        """Count a message."""
        self.count += 1
        if not self.first:
            self.first = f"a message from rank {claim.source} is none of this job: {why}"
