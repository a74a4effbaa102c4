"""What the scaling experiments take by default. Imports nothing: the command line reads it."""

from __future__ import annotations

from typing import Final

SECONDS: Final = 20.0
"""Of a training."""
REPEATS: Final = 3
"""As in the paper."""
NODE_CORES: Final = 40
"""Of each node of the paper's cluster."""
LINK_MB_PER_S: Final = 1250.0
"""Of the link of each simulated node: 10 Gbit/s."""
