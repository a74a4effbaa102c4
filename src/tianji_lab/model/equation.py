"""Equation 1 of the paper (section 3.2), as it must be meant.

The paper's first case, ``T_c = (T_sp + T_sd) N_s``, lacks the division by ``N_A`` that its own condition
has; with it both cases are one formula: ``T_c = N_s max((T_sp + T_sd) / N_A, T_rv)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Terms:
    """What one message costs on each side, in seconds.

    Attributes:
        sample_s: T_sp, to make it.
        send_s: T_sd, to push it, without waits for credit.
        receive_s: T_rv, to receive and store it.
    """

    sample_s: float
    send_s: float
    receive_s: float

    def collection_s(self, samples: int, actors: int) -> float:
        """T_c: the time to collect ``samples`` (N_s) from ``actors`` (N_A) that have a core each.

        >>> Terms(0.01, 0.0, 0.001).collection_s(1000, actors=2)
        5.0
        >>> Terms(0.01, 0.0, 0.001).collection_s(1000, actors=20)
        1.0
        """
        return samples * max((self.sample_s + self.send_s) / actors, self.receive_s)

    @property
    def crossing(self) -> int:
        """The fewest actors with which the critical path is the buffer's.

        >>> Terms(0.01, 0.0, 0.001).crossing
        10
        """
        return max(1, math.ceil((self.sample_s + self.send_s) / self.receive_s))
