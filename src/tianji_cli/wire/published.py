"""What a learner publishes: the parameters, and how far training has come, which actors schedule by."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

_ENV_STEPS: Final = np.dtype(np.int64)
_PARAMETER: Final = np.dtype(np.float32)


def nbytes(parameter_count: int) -> int:
    """Size of a published policy, in bytes."""
    return _ENV_STEPS.itemsize + parameter_count * _PARAMETER.itemsize


class PublishedPolicy:
    """Views of a published policy; owns nothing.

    Args:
        memory: ``nbytes(parameter_count)`` bytes.

    Attributes:
        env_steps: received by the learner so far, over all sessions; an array without dimensions.
        parameters: ``[parameter_count]`` as ``Model.write_parameters`` writes them.
    """

    __slots__ = ("env_steps", "memory", "parameters")

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.env_steps: npt.NDArray[Any] = np.ndarray((), _ENV_STEPS, memory)
        count = (memory.nbytes - _ENV_STEPS.itemsize) // _PARAMETER.itemsize
        self.parameters: npt.NDArray[np.float32] = np.ndarray(
            (count,), _PARAMETER, memory, _ENV_STEPS.itemsize
        )
