"""The colours of all figures: Okabe and Ito's palette, which colour-blind readers can tell apart.

Without its yellow, which paper does not show.
"""

from typing import Final

BLUE: Final = "#0072B2"
GREEN: Final = "#009E73"
AMBER: Final = "#E69F00"
ORANGE: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
SKY: Final = "#56B4E9"
BLACK: Final = "#000000"
GREY: Final = "#666666"
"""Of what is beside the point: levels, limits, notes."""

COLORS: Final = (BLUE, GREEN, AMBER, ORANGE, PURPLE, SKY, BLACK)
"""Of settings, groups and members, in their order; they go round where there are more."""
