"""How far a learner has come: the counters that a resumed run continues."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


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
