"""Training episodes as the learner sees them: mean, its best, thresholds, and what ends training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tianji_cli.config.schema import Stop

WINDOW: Final = 100
"""Episodes behind ``mean_100``, the field's usual measure of training returns."""


class Episodes:
    """Keeps the returns of the last hundred training episodes, and when their mean crossed each threshold."""

    def __init__(self, thresholds: Sequence[float] = ()) -> None:
        self.count = 0
        self.best_mean: float | None = None
        self.best_win_rate: float | None = None
        self.time_to: dict[float, float | None] = dict.fromkeys(thresholds)
        self._recent = np.zeros(WINDOW, np.float64)
        self._sum = 0.0
        self._won = np.zeros(WINDOW, np.bool_)
        self._judged = 0

    @property
    def in_mean(self) -> int:
        """Episodes behind ``mean``: all of them until there are a hundred."""
        return min(self.count, WINDOW)

    @property
    def full(self) -> bool:
        """A hundred episodes have ended, so ``mean`` is over as many as it should be."""
        return self.count >= WINDOW

    @property
    def mean(self) -> float | None:
        """Mean return of the last hundred episodes; None before one ended."""
        return self._sum / self.in_mean if self.count else None

    @property
    def win_rate(self) -> float | None:
        """Share of the last hundred episodes that were won; None before one ended, or if nothing is won."""
        judged = min(self._judged, WINDOW)
        return float(self._won[:judged].mean()) if judged else None

    def record(self, returns: Iterable[float], train_s: float, wins: Iterable[bool] = ()) -> bool:
        """Add episodes in the order they ended, ``train_s`` seconds after the first environment step.

        Args:
            wins: which of them were won; empty where nothing is won.

        Returns:
            True if the mean of a hundred episodes became better than it ever was.
        """
        for won in wins:
            self._won[self._judged % WINDOW] = won
            self._judged += 1
        improved = False
        for value in returns:
            place = self.count % WINDOW
            self._sum += value - float(self._recent[place])
            self._recent[place] = value
            self.count += 1
            if self.full:
                improved |= self._note_mean(self._sum / WINDOW, train_s)
        win_rate = self.win_rate
        if self.full and win_rate is not None:
            self.best_win_rate = max(win_rate, self.best_win_rate or 0.0)
        # A running sum drifts by rounding; the exact one is cheap once a batch of episodes.
        self._sum = float(self._recent[: self.in_mean].sum())
        return improved

    def reached(self, stop: Stop, env_steps: int | None) -> str | None:
        """Return which rule ends training now, or None; without ``env_steps`` the root looks at those."""
        values = {
            "mean_return": self.mean if self.full else None,
            "win_rate": self.win_rate if self.full else None,
            "env_steps": env_steps,
        }
        return next(iter(stop.reached(values).values()), None)

    def state(self) -> dict[str, Any]:
        """What a resumed run continues; the recent returns are not of it, since episodes begin anew."""
        return {
            "best_mean": self.best_mean,
            "best_win_rate": self.best_win_rate,
            "time_to": list(self.time_to.items()),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; thresholds added since then start unmet."""
        self.best_mean = state["best_mean"]
        self.best_win_rate = state.get("best_win_rate")  # Checkpoints of earlier versions lack it.
        for threshold, seconds in state["time_to"]:
            if threshold in self.time_to:
                self.time_to[threshold] = seconds

    def _note_mean(self, mean: float, train_s: float) -> bool:
        if self.best_mean is not None and mean <= self.best_mean:
            return False
        self.best_mean = mean
        for threshold, crossed in self.time_to.items():
            if crossed is None and mean >= threshold:
                self.time_to[threshold] = train_s
        return True
