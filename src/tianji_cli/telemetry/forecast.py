"""When a run will stop, if it goes on as it did lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from tianji_cli.telemetry.snapshot import StopProgress

WINDOW_S: Final = 30.0
"""How far back the pace is looked at: past the noise of single seconds, but not the whole run."""


class StopForecast:
    """Owns the recent history of what the stop rules look at and extends it in a straight line.

    Args:
        targets: stop rule -> value at which the run stops.
    """

    def __init__(self, targets: Mapping[str, float]) -> None:
        self._targets = dict(targets)
        self._history: deque[tuple[float, dict[str, float | None]]] = deque()

    def update(self, train_s: float, values: Mapping[str, float | None]) -> tuple[StopProgress, ...]:
        """Learn where the run is now.

        Args:
            train_s: seconds since the first environment step of this session, 0 before it: what came before
                says nothing of the pace.
            values: stop rule -> its present value, None while there is none.

        Returns:
            The progress towards each rule, in the order of the targets.
        """
        if not train_s:
            self._history.clear()
        self._history.append((train_s, dict(values)))
        while len(self._history) > 2 and self._history[1][0] <= train_s - WINDOW_S:
            self._history.popleft()
        return tuple(
            StopProgress(rule, values[rule], target, self._eta_s(rule, target))
            for rule, target in self._targets.items()
        )

    def _eta_s(self, rule: str, target: float) -> float | None:
        known = [(at_s, past[rule]) for at_s, past in self._history]
        points = [(at_s, value) for at_s, value in known if value is not None]
        if not points:
            return None
        (first_s, first), (last_s, last) = points[0], points[-1]
        if last >= target:
            return 0.0
        if last <= first or last_s <= first_s:
            return None
        return (target - last) * (last_s - first_s) / (last - first)
