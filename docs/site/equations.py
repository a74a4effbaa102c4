"""Draws equations as SVG inside the page, with matplotlib while the site is built.

Such equations look the same in every browser and need no font, no script and no network. MathML is no
alternative: without a mathematical font in the system, Chromium does not lower subscripts.
"""

from __future__ import annotations

from html import escape

import matplotlib as mpl
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath, text_to_path

mpl.rcParams["mathtext.fontset"] = "cm"
SIZE = 20
"""Font size for drawing; in the page an equation is as large as the text around it."""
COMMANDS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}


def drawn(latex: str) -> str:
    """Return an equation as SVG that is aligned with the text's baseline.

    Raises:
        ValueError: matplotlib does not know a command of the equation.
    """
    text, font = f"${latex}$", FontProperties(size=SIZE)
    width, height, below = text_to_path.get_text_width_height_descent(text, font, ismath=True)
    steps: list[str] = []
    for points, code in TextPath((0, 0), text, prop=font).iter_segments(curves=True, simplify=False):
        numbers = " ".join(f"{x:.1f}" if at % 2 == 0 else f"{-x:.1f}" for at, x in enumerate(points))
        steps.append(COMMANDS[code] + ("" if code == Path.CLOSEPOLY else numbers))
    box = f"0 {below - height:.1f} {width:.1f} {height:.1f}"
    style = f"width:{width / SIZE:.2f}em;height:{height / SIZE:.2f}em;vertical-align:{-below / SIZE:.2f}em"
    label = escape(latex, quote=True)
    head = f'<svg class="math" role="img" aria-label="{label}" viewBox="{box}" style="{style}">'
    return f'{head}<path d="{"".join(steps)}"/></svg>'
