"""Colours on a terminal, each legible on black and on white; no meaning depends on colour alone.

They are of the 216 colours that no theme changes. Themes choose the other colours for one background:
yellow and cyan vanish on white, blue on black, and dim text on either.
"""

from __future__ import annotations

from typing import Final

LABEL: Final = "color(31)"  # teal
GOOD: Final = "color(29)"  # green
CURVE: Final = "color(29)"
WARNING: Final = "color(130)"  # brown
FAILURE: Final = "color(160)"  # red
EVALUATION: Final = "color(133)"  # purple
GOAL: Final = "color(130)"
