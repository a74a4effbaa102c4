"""The rate limiter of production and consumption (paper, section 3.3): it decides which side may go on.

Serial training that uses every env step ``rho`` times makes one step and then uses ``rho`` steps, again and
again. Here both sides run independently, and the limiter keeps the *error* of production over consumption,

    error = received - warmup - consumed / rho

in env steps (Equation 4 in uses: consumption / rho = production), between ``-tolerance`` and ``tolerance``:
the buffer draws a batch if the error stays above, and receives a fragment if it stays below. So consumed /
received is ``rho`` over any stretch that is long against the tolerance, and the slower side never waits.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RateLimiter:
    """Counts production and consumption, and decides which side may go on.

    Attributes:
        rho: uses of each env step.
        warmup: env steps to receive before the first batch.
        tolerance: env steps that one side may be ahead; None lets both go on (``balance = "free"``).
        received: env steps of experience so far.
        consumed: uses of env steps in the batches drawn so far.
    """

    rho: float
    warmup: int
    tolerance: float | None
    received: int = 0
    consumed: int = 0

    @property
    def error(self) -> float:
        """Lead of production over consumption in env steps; negative during the warm-up."""
        return self.received - self.warmup - self.consumed / self.rho

    def may_receive(self, fragment_steps: int) -> bool:
        """Whether the buffer may receive a fragment of so many env steps now."""
        if self.received < self.warmup:
            return True  # The learner consumes nothing yet, so a limit would block reception for ever.
        return self.tolerance is None or self.error + fragment_steps <= self.tolerance

    def may_consume(self, batch_steps: int) -> bool:
        """Whether the buffer may draw a batch of up to so many env steps now."""
        if self.received < self.warmup:
            return False
        return self.tolerance is None or self.error - batch_steps / self.rho >= -self.tolerance

    @property
    def actual(self) -> float | None:
        """Mean uses of each env step since the warm-up; None before the first batch."""
        since = self.received - self.warmup
        return self.consumed / since if self.consumed and since > 0 else None
