"""When the command began, but for the start of the interpreter: imported before everything else."""

from __future__ import annotations

import time
from typing import Final

BEGAN_S: Final = time.monotonic()
"""``time.monotonic`` of the command's beginning. The process may be older: a shell's that became this one."""
