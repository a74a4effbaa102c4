"""How far a learner has come: the counters that a resumed run continues, and the rules that end a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from tianji_cli.data.episodes import Episodes


@dataclass
class Progress:
    """Counters of a learner, over all sessions of a run.

    Attributes:
        env_steps: samples received from the actors.
        consumed: sample uses in updates.
        updates: gradient updates.
        version: of the newest published policy.
        train_s: seconds since the first environment step, less the pauses between sessions.
        sessions: how often the run was resumed.
    """

    env_steps: int = 0
    consumed: int = 0
    updates: int = 0
    version: int = 0
    train_s: float = 0.0
    sessions: int = 0

    @classmethod
    def checked(cls, saved: Any) -> Self:
        """Read counters that were saved.

        Raises:
            ValueError: one is unknown, negative or no number.
            TypeError: they are no table.
        """
        if not isinstance(saved, Mapping):
            raise TypeError("the counters are no table")
        wanted = {field.name: field.type for field in fields(cls)}
        if unknown := saved.keys() - wanted.keys():
            raise ValueError(f"there is no counter {min(unknown)!r}")
        for name, value in saved.items():
            whole = isinstance(value, int) and not isinstance(value, bool)
            number = whole or (wanted[name] == "float" and isinstance(value, float) and math.isfinite(value))
            if not number or value < 0:
                raise ValueError(f"{name} is {value!r}")
        return cls(**saved)


@dataclass(frozen=True)
class StopRule:
    """What ends training in the learner's view; time limits are the root's.

    Attributes:
        mean_return: the mean of the last 100 episodes reaches this.
        env_steps: so many samples were received.
        win_rate: of the last 100 episodes this share was won.
    """

    mean_return: float | None = None
    env_steps: int | None = None
    win_rate: float | None = None

    def reached(self, progress: Progress, episodes: Episodes) -> str | None:
        """Say which rule holds, or None."""
        mean = episodes.mean
        if self.mean_return is not None and episodes.full and mean is not None and mean >= self.mean_return:
            return f"mean return of the last {episodes.in_mean} episodes is {mean:.6g}"
        win_rate = episodes.win_rate
        if self.win_rate is not None and episodes.full and win_rate is not None and win_rate >= self.win_rate:
            return f"{100 * win_rate:.0f} % of the last {episodes.in_mean} episodes were won"
        if self.env_steps is not None and progress.env_steps >= self.env_steps:
            return f"{self.env_steps} environment steps"
        return None
