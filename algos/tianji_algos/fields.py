"""What one step of one environment leaves behind: the fields of a fragment. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FieldSpec:
    """One array of a fragment, ``[T, N, *shape]`` (``[T + 1, N, *shape]`` with ``bootstrap``).

    Attributes:
        name: the field's name, unique in a fragment.
        dtype: a fixed-size dtype without byte order or object parts.
        shape: shape per step and environment.
        bootstrap: carry one row more than there are steps: the value after the last step.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...] = ()
    bootstrap: bool = False
