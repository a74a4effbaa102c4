"""How much is explored as training goes on. Imports no torch."""

from __future__ import annotations


def falling(start: float, end: float, over: int, env_steps: int) -> float:
    """Go from ``start`` to ``end`` in a straight line over so many env steps, and stay there.

    Args:
        start: at 0 env steps.
        end: from ``over`` env steps on.
        over: how many.
        env_steps: seen by now.
    """
    return start + min(1.0, env_steps / over) * (end - start)
