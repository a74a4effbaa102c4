"""What settings of algorithms have in common, and schedules of exploration. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Schedule = Literal["constant", "linear"]
"""How a hyperparameter changes over training."""


class Settings(BaseModel):
    """Settings as a section of a TOML file gives them: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class NoSettings(Settings):
    """For an agent, embryo or model that has nothing to set."""


def falling(start: float, end: float, over: int, env_steps: int) -> float:
    """Go from ``start`` to ``end`` in a straight line over so many env steps, and stay there.

    Args:
        start: at 0 env steps.
        end: from ``over`` env steps on.
        over: how many.
        env_steps: seen by now.
    """
    return start + min(1.0, env_steps / over) * (end - start)
