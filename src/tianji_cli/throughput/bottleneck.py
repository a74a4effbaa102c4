"""Which side holds a job back, and what that means, in plain words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["sample-bound", "training-bound", "communication-bound", "balanced", "in step"]

BALANCED: Final = 0.10
"""Production and consumption that lie no further apart than this share are in balance (Equation 4)."""


@dataclass(frozen=True)
class Bottleneck:
    """What holds a job back.

    Attributes:
        kind: the paper's three regimes (section 4.3.3), or none of them.
        words: what it means, and what would help.
    """

    kind: Kind
    words: str


def bottleneck(production: float, reception: float, consumption: float) -> Bottleneck:
    """Name the side that holds a job back.

    Args:
        production: sample uses a second that the actors could feed (production x rho).
        reception: sample uses a second that the buffer could receive (reception x rho).
        consumption: sample uses a second that the learner could make.
    """
    raise NotImplementedError
