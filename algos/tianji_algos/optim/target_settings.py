"""Settings of a target network. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tianji_algos.settings import Settings


class TargetSettings(Settings):
    """How a target network keeps up with the online network.

    Settings of what was not chosen may stand here, so that another can be chosen with ``--set``.

    Attributes:
        target_update: "hard" copies the online network now and then, "soft" follows it with every update.
        target_every: "hard": updates from one copy to the next.
        target_tau: "soft": share of the way that the target network goes with every update.
    """

    target_update: Literal["hard", "soft"] = "hard"
    target_every: int = Field(200, ge=1)
    target_tau: float = Field(0.005, gt=0, lt=1)
