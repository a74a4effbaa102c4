"""Numbers that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """Copy a JSON value with None for every float that JSON cannot hold (NaN and the infinities)."""
    if isinstance(value, float):
        # JSON knows plain floats only; NumPy's float64 is a float by inheritance.
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
