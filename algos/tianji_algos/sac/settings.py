"""Settings of SAC. Imports no torch."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from tianji_algos.settings import ActorQSettings, ContinuousAgentSettings

LEAST_LOG_STD: Final = -20.0
MOST_LOG_STD: Final = 2.0
"""Bounds of the logarithm of a policy's standard deviations, as in the authors' code."""


class SACAgentSettings(ContinuousAgentSettings):
    """Settings of SAC's agent, whose policy explores by itself; section ``[agent]`` of a config."""


class SACSettings(ActorQSettings):
    """Hyperparameters of SAC; section ``[training]`` of a config.

    Attributes:
        temperature: weight of the entropy; None lets SAC learn it, towards ``target_entropy``.
        initial_temperature: temperature at which learning begins.
        target_entropy: target entropy of the policy, whose actions go from -1 to 1; None is minus the numbers
            of an action (Haarnoja et al., 2018b, appendix D).
    """

    temperature: float | None = Field(None, gt=0)
    initial_temperature: float = Field(1.0, gt=0)
    target_entropy: float | None = None
