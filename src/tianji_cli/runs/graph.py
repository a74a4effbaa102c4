"""A picture of a job's graph: roles from the left to the right, as samples go, and who reads whose slots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from tianji_cli.plan.plan import Plan
from tianji_cli.telemetry.figures import BLUE, GREY, ORANGE, write_figure

COLUMN: Final = 1.6
ROW: Final = 0.7
"""Inches between two roles."""


def draw_graph(plan: Plan, path: Path) -> None:
    """Draw the connected roles of a group with their channels and slots, as PNG, SVG or PDF.

    Raises:
        OSError: the file cannot be written.
    """
    places = _places(plan)
    width, height = (1 + max(place[axis] for place in places.values()) for axis in (0, 1))

    def draw_into(figure: Figure) -> None:
        figure.set_layout_engine("none")
        figure.set_size_inches(COLUMN * width, ROW * (height + 1))
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -1.5))
        axes.set_axis_off()
        boxes = {}
        for role, (x, y) in places.items():
            number = len(plan.connected(role, plan.groups[0]))
            label = f"{role} ({number})" if number > 1 else role
            boxes[role] = axes.text(x, y, label, ha="center", va="center", bbox=_BOX, zorder=3)
        if any({"buffer", "learner"} <= set(process.roles) for process in plan.processes):
            _arrow(axes, boxes["buffer"], boxes["learner"], "one process", GREY, style="-")
        for (sender, receiver), names in _channels(plan).items():
            _arrow(axes, boxes[sender], boxes[receiver], ", ".join(names), BLUE)
        for slot in plan.slots:
            for reader in slot.readers:
                _arrow(axes, boxes[slot.writer], boxes[reader], slot.name, ORANGE, dashed=True)

    write_figure(draw_into, ROW * (height + 1), path)


_BOX: Final = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": GREY}


def _channels(plan: Plan) -> Mapping[tuple[str, str], Sequence[str]]:
    """Names of the channels between each two roles."""
    found = defaultdict(list)
    for edge in plan.channels:
        for pair in edge.roles:
            found[pair].append(edge.name)
    return found


def _places(plan: Plan) -> dict[str, tuple[int, int]]:
    """Place each role: in the column behind all that send it samples, and below the others of that column."""
    # Dicts for sets: the same graph has the same picture. The learner may have no channel from a buffer.
    before: dict[str, dict[str, None]] = {"learner": {"buffer": None}}
    for edge in plan.channels:
        for sender, receiver in edge.roles if edge.drained else ():
            before.setdefault(receiver, {})[sender] = None
    others = [pair for edge in plan.channels for pair in edge.roles]
    others += [(slot.writer, reader) for slot in plan.slots for reader in slot.readers]
    sending = {sender for senders in before.values() for sender in senders}
    for sender, receiver in others:
        if receiver not in sending:  # Such as a follower, which hears from the learner alone.
            before.setdefault(receiver, {sender: None})
            sending.add(sender)
    columns: dict[str, int] = {}
    rows: defaultdict[int, int] = defaultdict(int)
    places = {}
    for role in TopologicalSorter(before).static_order():
        column = columns[role] = 1 + max((columns[sender] for sender in before.get(role, ())), default=-1)
        places[role] = column, rows[column]
        rows[column] += 1
    return places


def _arrow(
    axes: Axes,
    start: Text,
    end: Text,
    label: str,
    color: str,
    *,
    style: str = "->",
    dashed: bool = False,
) -> None:
    """Draw an arrow: straight to the next column, else in a bow around the roles between its ends."""
    (x, y), (to_x, to_y) = start.get_position(), end.get_position()
    bow = 0.0 if y == to_y and to_x == x + 1 else -0.25 if to_y > y and to_x < x else 0.25
    properties = {
        "arrowstyle": style,
        "color": color,
        "linestyle": "--" if dashed else "-",
        "connectionstyle": f"arc3,rad={bow}",
        "patchA": start.get_bbox_patch(),
        "patchB": end.get_bbox_patch(),
    }
    axes.annotate("", (to_x, to_y), (x, y), arrowprops=properties)
    # The bow is a quadratic Bezier curve; its label is nearer to the sender, where few other roles are.
    corner_x = (x + to_x) / 2 + bow * (y - to_y) * ROW / COLUMN
    corner_y = (y + to_y) / 2 + bow * (to_x - x) * COLUMN / ROW
    first, middle, last = 0.65**2, 2 * 0.65 * 0.35, 0.35**2
    if not bow:
        first, middle, last = 0.5, 0.0, 0.5
    place = first * x + middle * corner_x + last * to_x, first * y + middle * corner_y + last * to_y - 0.12
    axes.text(*place, label, ha="center", va="center", fontsize=6, color=color)
