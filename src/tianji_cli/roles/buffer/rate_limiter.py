"""The rate limiter of production and consumption (paper, section 3.3): which side may go on, and when.

Serial training that uses every env step ``rho`` times makes one step and then uses ``rho`` steps, again and
again. Here both sides go on by themselves, and the *error* of production over consumption,

    error = received - warmup - consumed / rho

in env steps (Equation 4 in uses: consumption / rho = production), is kept between ``-tolerance`` and
``tolerance``: a batch is drawn if the error stays above, a fragment received if it stays below. So consumed /
received is ``rho`` over any stretch that is long against the tolerance, and the slower side never waits.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RateLimiter:
    """Counts both sides, and decides which may go on.

    Attributes:
        rho: uses of each env step.
        warmup: env steps to be received before the first batch.
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
        """Env steps that production is ahead of consumption; negative during the warm-up."""
        return self.received - self.warmup - self.consumed / self.rho

    def may_receive(self, fragment_steps: int) -> bool:
        """Whether a fragment of so many env steps may be received now."""
        if self.received < self.warmup:
            return True  # Nothing is consumed yet: reception would be blocked for ever.
        return self.tolerance is None or self.error + fragment_steps <= self.tolerance

    def may_consume(self, batch_steps: int) -> bool:
        """Whether a batch of up to so many env steps may be drawn now."""
        if self.received < self.warmup:
            return False
        return self.tolerance is None or self.error - batch_steps / self.rho >= -self.tolerance

    @property
    def actual(self) -> float | None:
        """Uses of each env step since the warm-up, on average; None until there was a batch."""
        since = self.received - self.warmup
        return self.consumed / since if self.consumed and since > 0 else None
