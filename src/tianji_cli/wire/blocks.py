"""What blocks of memory that travel have in common: aligned arrays, and a header that is checked.

Nothing in a block says what it holds: sender and receiver derive the same layout beforehand, and a header of
a few numbers says whether they did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import numpy.typing as npt

ALIGNMENT: Final = 64
"""Arrays start at multiples of a cache line, which is also what vector loads like best."""


def aligned(nbytes: int) -> int:
    """Round a size up to where the next array may start."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def fingerprint_of(text: str) -> int:
    """64-bit hash of a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mismatch(header: npt.NDArray[Any], expected: Mapping[str, int]) -> str | None:
    """Say which number of a header is not as expected, or None."""
    for name, number in expected.items():
        if int(header[name]) != number:
            return f"its {name} is {int(header[name]):#x}, not {number:#x}"
    return None
