"""Picture of timelines, one below the other on one scale: activities of each role, and gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tianji_cli.files.traces import WHAT
from tianji_cli.quantities import share
from tianji_cli.runs.timeline.timeline import Floats, Lane, Timeline, cut, pieces_of, shares_in
from tianji_cli.telemetry.figures import AMBER, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY

WIDTH: Final = 7.0
LANE: Final = 0.24
AROUND: Final = 0.55
"""Inches: width of the picture, height of a lane, and space above and below the lanes of a timeline."""

MOST_LANES: Final = 32
"""Most lanes of a timeline; the file has the others, too."""

ROUNDS: Final = 3
"""Rounds in the picture, each from one published version to the next."""

COLUMNS: Final = 1500
"""Columns of a lane; a shorter span contributes a part of a column's colour."""

LEGEND: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "act": (BLUE, ("act",)),
    "step": (SKY, ("step",)),
    "push, adopt, publish": (ORANGE, ("push", "adopt", "publish", "scatter")),
    "claim": (AMBER, ("claim",)),
    "draw": (PURPLE, ("draw",)),
    "update": (GREEN, ("update",)),
    "save": (GREY, ("save",)),
    "rest of a turn": ("#c4c4c4", ("turn",)),
    "waits for credit": ("#f9dccb", ("wait for credit",)),
    "sleeps": ("#f4f4f4", ("sleep",)),
}
"""Colours by label, and the activities that have them."""

ORDER: Final = ("actor", "buffer", "learner", "follower")
"""Roles from top to bottom, in the order that samples take; other roles follow."""

NOTHING: Final = "#f4f4f4"
"""Colour of a role between two spans: other roles of its process have their turns."""


def draw_timelines(figure: Figure, timelines: Mapping[str, Timeline]) -> None:
    """Draw timelines one below the other, each by its title.

    All show as much time as the one with the longest rounds needs for ``ROUNDS`` of them.
    """
    shown = [sorted(timeline.lanes, key=_place)[:MOST_LANES] for timeline in timelines.values()]
    heights = [AROUND + LANE * max(1, len(lanes)) for lanes in shown]
    figure.set_size_inches(WIDTH, sum(heights) + AROUND)
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    span_s = max(map(_rounds_s, timelines.values()))
    names: set[str] = set()
    for axes, (title, timeline), lanes in zip(panels, timelines.items(), shown, strict=True):
        names |= _draw(axes, timeline, lanes, _first_s(timeline, span_s), span_s)
        more = len(timeline.lanes) - len(lanes)
        heading = title + (f" ({more} more roles are in the file)" if more else "")
        axes.set_title(heading, loc="left", fontsize=8, parse_math=False)
    panels[-1].set_xlabel("Milliseconds")
    patches = [Patch(color=color, label=label) for label, (color, _) in LEGEND.items() if label in names]
    figure.legend(handles=patches, loc="outside lower center", ncols=5)


def _place(lane: Lane) -> int:
    kind = lane.role.partition(" ")[0]
    return ORDER.index(kind) if kind in ORDER else len(ORDER)


def _draw(axes: Axes, timeline: Timeline, lanes: Sequence[Lane], first_s: float, span_s: float) -> set[str]:
    """Draw the lanes of a timeline; returns the labels of the activities that can be seen."""
    edges = np.linspace(first_s, first_s + span_s, COLUMNS + 1)
    found: set[str] = set()
    for i, lane in enumerate(lanes):
        shares = shares_in(pieces_of(cut(lane.spans, edges[0], edges[-1])), edges)
        place = (0.0, 1e3 * span_s, i + 0.38, i - 0.38)
        axes.imshow(_colours(shares)[None], extent=place, aspect="auto", interpolation="nearest")
        axes.text(1.005, i, share(lane.busy), transform=axes.get_yaxis_transform(), va="center", fontsize=7)
        found |= {label for label, (_, whats) in LEGEND.items() if shares[:, _places(whats)].any()}
    axes.text(1.005, -1.0, "busy", transform=axes.get_yaxis_transform(), va="center", fontsize=7)
    axes.set_xlim(0.0, 1e3 * span_s)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_yticks(range(len(lanes)), _labels(timeline, lanes), parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.spines[["left"]].set_visible(False)
    return found


def _labels(timeline: Timeline, lanes: Sequence[Lane]) -> list[str]:
    """Name each lane: its role, and its host if there are several."""
    several = len({process.host for process in timeline.processes}) > 1
    return [f"{lane.role} on {lane.process.host}" if several else lane.role for lane in lanes]


def _colours(shares: Floats) -> Floats:
    """Return a colour for each column, ``[B, 3]``, mixed by the shares of its activities."""
    colours = np.zeros((len(WHAT), 3))
    for color, whats in LEGEND.values():
        colours[_places(whats)] = to_rgb(color)
    rest = 1.0 - shares.sum(axis=1, keepdims=True)
    mixed: Floats = np.clip(shares @ colours + rest * np.array(to_rgb(NOTHING)), 0.0, 1.0)
    return mixed


def _places(whats: Sequence[str]) -> list[int]:
    return [WHAT.index(what) for what in whats]


def _published_s(timeline: Timeline) -> Floats:
    """Times at which the first lane that has any published."""
    published = [
        lane.spans["began_s"][lane.spans["what"] == WHAT.index("publish")] for lane in timeline.lanes
    ]
    return next((times for times in published if len(times)), np.empty(0))


def _rounds_s(timeline: Timeline) -> float:
    """Median seconds of ``ROUNDS`` rounds; the whole window if it has fewer rounds."""
    published_s = _published_s(timeline)
    if len(published_s) <= ROUNDS:
        return timeline.seconds
    return float(np.median(published_s[ROUNDS:] - published_s[:-ROUNDS]))


def _first_s(timeline: Timeline, span_s: float) -> float:
    """Choose the start of the picture: about in the middle, at the start of rounds that fit in ``span_s``."""
    last_s = max(0.0, timeline.seconds - span_s)
    published_s = _published_s(timeline)
    rounds_s = published_s[ROUNDS:] - published_s[:-ROUNDS]
    begins_s = published_s[: len(rounds_s)]
    fitting = begins_s[(rounds_s <= span_s) & (begins_s <= last_s)]
    return float(fitting[np.argmin(np.abs(fitting - last_s / 2))]) if len(fitting) else last_s / 2
