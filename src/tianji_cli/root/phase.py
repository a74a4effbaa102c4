"""Where a job is between its start and its end, and how it ended."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tianji_cli.telemetry.snapshot import Status


class Phase(enum.Enum):
    """Where a job is; in the order they follow one another."""

    STARTING = "starting"
    TRAINING = "training"
    WINDING_DOWN = "winding down"
    STOPPING = "stopping"
    EVALUATING = "evaluating"
    OVER = "over"


@dataclass
class Outcome:
    """How a job ended.

    Attributes:
        status: as in the summary.
        reason: in words.
    """

    status: Status
    reason: str
