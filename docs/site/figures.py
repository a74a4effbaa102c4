"""Draws the pictures of the concepts' pages: `python docs/site/figures.py` writes docs/figures/concept-*.svg.

The pictures are plain SVG, which every browser draws without a network, and which stays sharp.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

FIGURES = Path(__file__).parents[1] / "figures"

INK, PALE = "#263238", "#607d8b"
COLOURS = {
    "actor": "#b2dfdb",
    "buffer": "#ffe0b2",
    "learner": "#c5cae9",
    "root": "#eceff1",
    "other": "#f8bbd0",
}


class Picture:
    """Boxes, arrows and words on a white page, in pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts: list[str] = []
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="sans-serif" font-size="15" role="img">\n'
            f"<title>{escape(title)}</title>\n"
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
            f'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="{INK}"/></marker></defs>\n'
            f'<rect width="{width}" height="{height}" fill="#fff"/>'
        )

    def box(
        self, x: int, y: int, width: int, height: int, kind: str, *lines: str, dashed: bool = False
    ) -> None:
        """Draw a box with lines of text in its middle, the first one bold; a dashed box is an empty frame."""
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        fill = "none" if dashed else COLOURS[kind]
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" '
            f'stroke="{PALE}" stroke-width="1.5"{dash}/>'
        )
        if not dashed:
            top = y + height / 2 - 9.5 * (len(lines) - 1)
            for number, line in enumerate(lines):
                self.text(x + width // 2, int(top + 19 * number + 5), line, bold=number == 0)

    def text(
        self, x: int, y: int, line: str, *, bold: bool = False, at: str = "middle", small: bool = False
    ) -> None:
        """Write a line of text."""
        style = ' font-weight="bold"' if bold else ""
        size = ' font-size="13"' if small else ""
        self._parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{at}" fill="{INK}"{style}{size}>{escape(line)}</text>'
        )

    def arrow(self, *points: tuple[int, int], double: bool = False, both: bool = False) -> None:
        """Draw an arrow through points.

        Args:
            double: draw it dashed: readers look at a value, and no message is sent.
            both: draw a tip at both ends.
        """
        path = "M" + " ".join(f"{x} {y}" for x, y in points)
        start = ' marker-start="url(#tip)"' if both else ""
        dash = ' stroke-dasharray="7 4"' if double else ""
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1.8"{dash}{start} '
            'marker-end="url(#tip)"/>'
        )

    def __str__(self) -> str:
        return "\n".join([self._head, *self._parts, "</svg>", ""])


def roles() -> Picture:
    """Roles, and the data that they send to one another."""
    it = Picture(820, 430, "Actors push fragments to the buffer, the learner publishes policies")
    it.box(10, 70, 800, 240, "root", dashed=True)
    it.text(24, 92, "a group", at="start", small=True)
    for number in range(3):
        it.box(40, 110 + 62 * number, 170, 48, "actor", f"actor {number}")
    it.box(360, 148, 140, 96, "buffer", "buffer", "rollouts", "or replay")
    it.box(620, 148, 160, 96, "learner", "learner", "updates", "the network")
    for number in range(3):
        it.arrow((210, 134 + 62 * number), (358, 172 + 24 * number))
    it.text(288, 122, "fragments")
    it.arrow((500, 196), (618, 196))
    it.text(560, 186, "batches")
    it.arrow((700, 244), (700, 290), (125, 290), (125, 284), double=True)
    it.text(420, 283, "policy: the newest value, looked at")
    it.box(300, 350, 260, 56, "root", "root, rank 0", "starts, watches, shows, ends")
    it.arrow((430, 350), (430, 312), both=True)
    it.text(444, 336, "control: reports, stop; no samples", at="start", small=True)
    it.box(40, 10, 200, 44, "other", "examiner, user roles")
    it.text(254, 37, "beside them: roles that evaluate, record, or are yours", at="start", small=True)
    return it


def sample() -> Picture:
    """Path of one sample, from a step of an environment to a new policy."""
    it = Picture(820, 330, "The way of one sample, from a step of an environment to a new policy")
    steps = [
        ("actor", "1  loan", "memory for", "T x N steps"),
        ("actor", "2  step", "act, env.step,", "write a row"),
        ("actor", "3  push", "the fragment", "is full"),
        ("buffer", "4  claim", "only the buffer", "holds it now"),
        ("buffer", "5  store", "a rollout, or a", "replay's slot"),
    ]
    for number, (kind, *lines) in enumerate(steps):
        it.box(14 + 162 * number, 40, 140, 84, kind, *lines)
        if number:
            it.arrow((14 + 162 * number - 22, 82), (14 + 162 * number - 1, 82))
    it.box(662, 200, 140, 84, "learner", "6  update", "a batch, one", "gradient step")
    it.box(430, 200, 170, 84, "learner", "7  publish", "parameters with", "version v + 1")
    it.box(
        14, 200, 302, 84, "actor", "8  adopt", "between two fragments, so each", "fragment is of one policy"
    )
    it.arrow((732, 124), (732, 198))
    it.arrow((662, 242), (602, 242))
    it.arrow((430, 242), (318, 242), double=True)
    it.arrow((84, 200), (84, 126))
    it.text(246, 24, "an actor goes on at once: it has another loan", small=True)
    it.text(590, 24, "the claim gives the actor its credit back", small=True)
    it.text(372, 310, "looked at, never queued: an old policy waits for nobody", small=True)
    return it


def balance() -> Picture:
    """Rate limiter between production and consumption."""
    it = Picture(820, 350, "Production times the replay ratio is held equal to consumption")
    it.box(20, 120, 180, 90, "actor", "production", "env steps a second", "that actors make")
    it.box(310, 120, 200, 90, "buffer", "rate limiter", "claims a fragment?", "draws a batch?")
    it.box(620, 120, 180, 90, "learner", "consumption", "sample uses a second", "in updates")
    it.arrow((200, 165), (308, 165))
    it.arrow((510, 165), (618, 165))
    it.text(410, 40, "uses = replay ratio x received, give or take the tolerance", bold=True)
    it.box(20, 262, 360, 64, "actor", "actors are ahead", "fragments stay unclaimed, their window fills")
    it.box(440, 262, 360, 64, "learner", "the learner is ahead", "no batch is drawn until more has come")
    it.arrow((360, 210), (250, 260))
    it.arrow((460, 210), (570, 260))
    it.arrow((410, 56), (410, 118))
    return it


def lag() -> Picture:
    """Policy lag of a sample."""
    it = Picture(820, 290, "With one fragment under way, a sample is one version old when it is used")
    it.text(14, 82, "learner", at="start", bold=True)
    it.text(14, 192, "actor", at="start", bold=True)
    for number in range(4):
        x = 110 + 175 * number
        it.box(x, 50, 165, 52, "learner", f"learns from {chr(65 + number)}", f"publishes v{number + 1}")
        it.box(x, 160, 165, 52, "actor", f"makes {chr(66 + number)}", f"with v{number}")
        if number < 3:
            it.arrow((x + 160, 102), (x + 190, 158), double=True)
            it.arrow((x + 150, 160), (x + 200, 104))
    it.text(410, 28, "time", small=True)
    it.arrow((430, 23), (520, 23))
    it.text(
        410,
        246,
        "B was made with v0, and is learnt from when v1 is the newest: its lag is 1 version.",
        small=True,
    )
    it.text(
        410,
        268,
        "In step (mode = sync) the actor waits for v1 before it makes B, and the lag is 0.",
        small=True,
    )
    return it


def groups() -> Picture:
    """Several groups and the root between them."""
    it = Picture(820, 320, "Groups train by themselves; the root averages their parameters")
    for number in range(3):
        x = 14 + 272 * number
        it.box(x, 20, 250, 150, "root", dashed=True)
        it.text(x + 12, 40, f"group {number}", at="start", small=True)
        it.box(x + 14, 52, 100, 44, "actor", "actors")
        it.box(x + 14, 112, 100, 44, "buffer", "buffer")
        it.box(x + 136, 80, 100, 52, "learner", "learner")
        it.arrow((x + 64, 96), (x + 64, 110))
        it.arrow((x + 114, 134), (x + 134, 118))
        it.arrow((x + 134, 92), (x + 116, 76), double=True)
        it.arrow((x + 186, 134), (x + 186, 200), (350 + 60 * number, 226), both=True)
    it.box(310, 228, 200, 64, "root", "root", "average of parameters")
    it.text(250, 250, "parameters there,", at="end", small=True)
    it.text(250, 268, "every sync_interval updates", at="end", small=True)
    it.text(570, 250, "their average back,", at="start", small=True)
    it.text(570, 268, "as soon as there is one", at="start", small=True)
    return it


PICTURES: dict[str, Callable[[], Picture]] = {
    "roles": roles,
    "sample": sample,
    "balance": balance,
    "lag": lag,
    "groups": groups,
}


def old_pictures() -> list[str]:
    """Messages about pictures that differ from those that this script draws."""
    return [
        f"docs/figures/concept-{name}.svg: python docs/site/figures.py draws another one"
        for name, drawn in PICTURES.items()
        if not (file := FIGURES / f"concept-{name}.svg").exists() or file.read_text() != str(drawn())
    ]


def main() -> int:
    """Write all pictures."""
    for name, drawn in PICTURES.items():
        (FIGURES / f"concept-{name}.svg").write_text(str(drawn()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
