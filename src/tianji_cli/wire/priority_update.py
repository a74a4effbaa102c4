"""New priorities on their way from a learner to the replay in another process."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_algos.errors import DivergedError

_SAMPLE: Final = np.dtype([("key", "<i8"), ("priority", "<f4")])


def nbytes(batch_size: int) -> int:
    """Size of the message for a batch, in bytes."""
    return batch_size * _SAMPLE.itemsize


def write(memory: memoryview, keys: npt.NDArray[np.int64], priorities: npt.NDArray[np.float32]) -> None:
    """Write the priorities ``[B]`` of the samples with these keys ``[B]``.

    Raises:
        DivergedError: a priority is not finite.
    """
    if not _are_valid(priorities):
        raise DivergedError("a sample's new priority is not finite: the loss has diverged")
    message = np.ndarray(len(keys), _SAMPLE, memory)
    message["key"] = keys
    message["priority"] = priorities


def read(memory: memoryview, batch_size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]] | None:
    """View keys ``[B]`` and priorities ``[B]`` in what ``write`` wrote; None if it is no such message."""
    if memory.nbytes != nbytes(batch_size):
        return None
    message = np.ndarray(batch_size, _SAMPLE, memory)
    keys, priorities = message["key"], message["priority"]
    return (keys, priorities) if _are_valid(priorities) else None


def _are_valid(priorities: npt.NDArray[np.float32]) -> bool:
    """One NaN or infinity in a sum of priorities would be there for ever."""
    return bool(np.isfinite(priorities).all() and (priorities >= 0).all())
