"""Settings of SAC. Imports no torch."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from tianji_algos.settings import ActorQSettings, ContinuousAgentSettings

LEAST_LOG_STD: Final = -20.0
MOST_LOG_STD: Final = 2.0
"""A policy's standard deviations are kept between these, as in the authors' code."""


class SACAgentSettings(ContinuousAgentSettings):
    """How SAC's agent acts: by its policy, which explores by itself; section ``[agent]`` of a config."""


class SACSettings(ActorQSettings):
    """Hyperparameters of SAC; section ``[training]`` of a config.

    Attributes:
        temperature: what a unit of entropy is worth; None lets it be learned, towards ``target_entropy``.
        initial_temperature: where learning it begins.
        target_entropy: of the policy, whose actions go from -1 to 1; None is minus the numbers of an action
            (Haarnoja et al., 2018b, appendix D).
    """

    temperature: float | None = Field(None, gt=0)
    initial_temperature: float = Field(1.0, gt=0)
    target_entropy: float | None = None
