"""What all settings of algorithms have in common. Imports no torch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Settings as a section of a TOML file gives them: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class NoSettings(Settings):
    """For an agent, embryo or model that has nothing to set."""
