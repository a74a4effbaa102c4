"""State of a user role in a checkpoint: arrays by name, as safetensors with their sum. Imports no torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tianji_cli.files.directories import NewestCopy
from tianji_cli.files.saved import CheckpointError, read_sealed, seal

STATE: Final = "state.safetensors"


def write_state(place: Path, state: Mapping[str, npt.ArrayLike]) -> None:
    """Write arrays into a directory.

    Raises:
        ValueError: an array holds something else than numbers.
        OSError: the disk does not take them.
    """
    arrays = {name: np.ascontiguousarray(values).reshape(np.shape(values)) for name, values in state.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{name!r} is {array.dtype}, and a state has arrays of numbers")
    _write(place, save(arrays))


def keep_state(directory: Path, content: bytes) -> None:
    """Make a state from another host, a file's content, the newest copy in a directory.

    Raises:
        OSError: the disk does not take it.
    """
    with NewestCopy(directory, 0.0).replaced(str(time.time_ns())) as place:
        _write(place, content)


def _write(place: Path, content: bytes) -> None:
    (place / STATE).write_bytes(content)
    seal(place, [STATE])


def read_state(place: Path) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of a directory.

    Raises:
        CheckpointError: they cannot be read, or have changed since they were written.
    """
    try:
        return load(read_sealed(place, STATE))
    except SafetensorError as cause:
        raise CheckpointError(f"{place / STATE} holds no arrays: {cause}") from cause
