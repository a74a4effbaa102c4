"""Equations as pictures inside the page, drawn by matplotlib while the site is built.

They look the same in every browser and need neither a font, nor a script, nor a network. MathML was tried:
without a mathematical font in the system Chromium does not lower subscripts.
"""

from __future__ import annotations

from html import escape

import matplotlib as mpl
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath, text_to_path

mpl.rcParams["mathtext.fontset"] = "cm"
SIZE = 20
"""Of the letters while they are drawn; in the page they are as large as the text around them."""
COMMANDS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}


def drawn(latex: str) -> str:
    """Return an equation as SVG that stands on the line of the text.

    Raises:
        ValueError: matplotlib does not know a command of it.
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
