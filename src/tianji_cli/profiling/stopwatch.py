"""Times the calls of one method of one object: what a role spends in the parts it is made of."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass
class Stopwatch:
    """Calls that were timed.

    Attributes:
        calls: how many.
        seconds: that they took together.
    """

    calls: int = 0
    seconds: float = 0.0

    def time(self, owner: object, method: str) -> None:
        """Time the calls of a method from now on; they cost a tenth of a microsecond more.

        Args:
            owner: whose method. A role knows it as an attribute only, so no role is changed for it.
            method: its name; called with positional arguments.
        """
        call = getattr(owner, method)
        now = time.perf_counter

        def timed(*args: Any) -> Any:
            began = now()
            result = call(*args)
            self.seconds += now() - began
            self.calls += 1
            return result

        setattr(owner, method, timed)
