"""``state.json`` of a checkpoint: counters, and what an update rule and the episodes keep. Needs no torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from tianji_cli.files.progress import Progress
from tianji_cli.files.sums import CheckpointError, read_sealed

SCHEMA: Final = 1
MODEL: Final = "model.safetensors"
TRAINING: Final = "training.safetensors"
STATE: Final = "state.json"


def load_state(directory: Path) -> dict[str, Any]:
    """Read the ``state.json`` of a checkpoint to go on from.

    Raises:
        CheckpointError: it is not there, damaged, of another schema, or has values that cannot be.
    """
    document, path = load_document(directory), directory / STATE
    try:
        Progress.checked(document["progress"])
        _check_episodes(document["episodes"])
        if not isinstance(document["embryo"], dict):
            raise TypeError("embryo is no table")
    except (ValueError, TypeError, KeyError) as cause:
        raise CheckpointError(f"{path} has what cannot be: {cause}") from cause
    return document


def load_document(directory: Path) -> dict[str, Any]:
    """Read a ``state.json``, which says of what schema a checkpoint is, that of the best policy included.

    Raises:
        CheckpointError: it is not there, damaged, or of another schema.
    """
    path = directory / STATE
    try:
        document = json.loads(read_sealed(directory, STATE))
    except (ValueError, RecursionError) as cause:
        raise CheckpointError(f"{path} is no JSON: {cause}") from cause
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise CheckpointError(f"{path} is not of schema {SCHEMA}, which this version reads")
    return document


def _check_episodes(episodes: Any) -> None:
    best = episodes["best_mean"]
    if best is not None and not math.isfinite(best):
        raise ValueError(f"best_mean is {best}")
    if not 0 <= (episodes.get("best_win_rate") or 0.0) <= 1:
        raise ValueError(f"best_win_rate is {episodes['best_win_rate']}")
    for threshold, seconds in episodes["time_to"]:
        if not math.isfinite(threshold) or not 0 <= (seconds or 0.0) < math.inf:
            raise ValueError(f"time_to says {seconds} for {threshold}")
