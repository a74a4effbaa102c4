"""Pictures of a page: drawings of a run or a comparison, and the files in a run's ``plots/``.

A page stays small however long a run was: curves are thinned to ``MOST_ROWS`` rows, only the best of many
groups are drawn, and a picture that is too large is named and left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from tianji_cli.errors import one_line, printable
from tianji_cli.files.regular import read_regular
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.quantities import count, exact, memory, number, several
from tianji_cli.runs.comparison.compare import Comparison, Row
from tianji_cli.runs.comparison.figures import drawing
from tianji_cli.runs.comparison.runs import strange_rows
from tianji_cli.runs.report.reading import ReportedRun, Rows
from tianji_cli.runs.report.svg import NoPictureError, inline
from tianji_cli.telemetry.figures import HEIGHT, render_figure
from tianji_cli.telemetry.plots import LOSS, Drawing, drawings

MOST_ROWS: Final = 400
"""Most rows of a curve: a page has fewer pixels for it."""
MOST_CURVES: Final = 16
"""Most curves of the groups of a run, or of a comparison."""
MOST_SVG_BYTES: Final = 4 << 20
"""Most bytes of a picture in ``plots/``."""
MOST_INLINE_BYTES: Final = 600_000
"""Most bytes of such a picture once it is in the page."""


@dataclass(frozen=True)
class Picture:
    """A figure of a page.

    Attributes:
        note: text below it.
        svg: None if the picture is left out, for the reason in the note.
        is_wide: it is as wide as the page, and scrolls where the page is narrow.
    """

    title: str
    note: str
    svg: Markup | None
    is_wide: bool = False


# Names of plots, in the order of the page.
RETURNS: Final = (
    *("return_over_steps", "return_over_time", "win_rate_over_steps", "win_rate_over_time", "episode_length"),
)
PACE: Final = ("throughput", "policy_lag", "replay_ratio", "sample_age")
BUSY: Final = ("busy",)

_OF_A_RUN: Final[Mapping[str, tuple[str, str, str]]] = {
    "return_over_steps": (
        "Return over env steps",
        "Mean of the last 100 training episodes.",
        "returns.mean_100",
    ),
    "return_over_time": ("Return over time", "The same, over seconds of training.", "returns.mean_100"),
    "win_rate_over_steps": ("Won over env steps", "Share of the last 100 episodes.", "returns.win_rate"),
    "win_rate_over_time": ("Won over time", "The same, over seconds of training.", "returns.win_rate"),
    "episode_length": (
        "Episode length",
        "Env steps, mean of the last 100 training episodes.",
        "returns.mean_length",
    ),
    "throughput": (
        "Throughput",
        "Env steps that actors made and buffers received, and uses in updates over the replay ratio: in "
        "balance all three are one line.",
        "produced_per_s",
    ),
    "policy_lag": (
        "Policy lag",
        "How many versions old the policy was that had made a sample when it was used.",
        "staleness.mean",
    ),
    "replay_ratio": (
        "Replay ratio",
        "Uses of each sample in updates; the target is what one process, taking turns, would make of them.",
        "replay_ratio.actual",
    ),
    "sample_age": (
        "Sample age",
        "Env steps that were received between a sample and its draw from the replay.",
        "sample_age.mean",
    ),
    "busy": ("Busy over time", "The middle one of the roles of each kind.", ""),
}
"""Title and note of each plot, and the column that its description summarises for those who do not see it."""

_OF_A_COMPARISON: Final[Mapping[str, tuple[str, str]]] = {
    "return_over_steps": ("Return over env steps", "Interquartile means with 95 % bootstrap intervals."),
    "return_over_time": ("Return over time", "The same, over seconds of training."),
    "performance_profile": ("Performance profile", "The share of runs with a final return above each value."),
    "intervals": ("Intervals", "Final returns, areas, and who is better than the first."),
}

_OF_PLOTS: Final[Mapping[str, tuple[str, str]]] = {
    "graph": (
        "Data flow",
        "Roles, the channels between them, and, dashed, slots of which the newest counts.",
    ),
    "timeline": ("Timeline", "What each role did, on each core."),
    "lineage": ("Lineage", "Who of the population came from whom."),
}
"""Pictures in ``plots/`` that other commands leave, and a page shows."""


def pictures_of(run: ReportedRun) -> dict[str, Picture]:
    """Draw all plots for which a run has data, by their names.

    Raises:
        TianjiError: rows lack keys that this version writes.
    """
    try:
        return _pictures_of(run)
    except (KeyError, TypeError) as cause:
        raise strange_rows(run.run) from cause


def _pictures_of(run: ReportedRun) -> dict[str, Picture]:
    began = [row for row in run.rows if row["env_steps"] > 0]
    rows = _drawn(began)
    evaluations = _spread(run.evaluations, MOST_ROWS)
    found = drawings(rows, evaluations, _thresholds(run), more=True)
    pictures = {}
    for name, (title, note, column) in _OF_A_RUN.items():
        if name in found:
            svg = _svg(found[name], name, title, _describe_curve(note, rows, column))
            pictures[name] = Picture(title, " ".join([note, *_more(name, run)]), svg)
    for place, (name, draw) in enumerate((of for of in found.items() if of[0].startswith(LOSS)), 1):
        column = name.removeprefix(LOSS)
        title = printable(column.replace("_", " ").capitalize())
        note = "As the update rule reports it, mean since the report before."
        svg = _svg(draw, f"loss_{place}", title, _describe_curve(note, rows, f"losses.{column}"))
        pictures[name] = Picture(title, note, svg)
    if len(rows) < len(began) and "throughput" in pictures:
        of = pictures["throughput"]
        more = f"Curves are drawn through {MOST_ROWS} of {count(len(began))} reports."
        pictures["throughput"] = replace(of, note=f"{of.note} {more}")
    return pictures


def _more(name: str, run: ReportedRun) -> Iterator[str]:
    """Describe the points, lines and groups in the curves of a return besides the mean."""
    if not name.startswith("return_over"):
        return
    if run.evaluations:
        yield "Points are evaluations while training, with their standard deviation."
    if thresholds := _thresholds(run):
        yield f"Dotted: thresholds {', '.join(map(exact, thresholds))}."
    groups = len(next((row["by_group"] for row in reversed(run.rows) if row.get("by_group")), ()))
    if groups > MOST_CURVES:
        yield f"Thin: the first {MOST_CURVES} of {groups} groups."


def _svg(draw: Drawing, id_: str, title: str, description: str) -> Markup:
    def into(figure: Figure) -> None:
        draw(figure.add_subplot())

    return _inline(render_figure(into, HEIGHT, "svg"), id_, title, description)


def _inline(content: bytes, id_: str, title: str, description: str) -> Markup:
    # It has only elements and attributes of a list, and its texts are escaped.
    return Markup(inline(content, id_, title, description))  # noqa: S704


def _thresholds(run: ReportedRun) -> list[float]:
    named = run.section("experiment").get("thresholds", ())
    return [float(value) for value in named if isinstance(value, int | float)]


def _drawn(rows: Rows) -> Rows:
    """Return as many rows and groups as a curve has room for."""
    return [
        row
        if len(row.get("by_group") or ()) <= MOST_CURVES
        else {**row, "by_group": row["by_group"][:MOST_CURVES]}
        for row in _spread(rows, MOST_ROWS)
    ]


def _spread(rows: Rows, most: int) -> Rows:
    """Return at most ``most`` rows, evenly spread, with the first and the last."""
    if len(rows) <= most:
        return rows
    return [rows[place] for place in np.linspace(0, len(rows) - 1, most).round().astype(int)]


def _describe_curve(note: str, rows: Rows, column: str) -> str:
    """Describe a curve in words."""
    values = [value for row in rows if (value := _value(row, column)) is not None]
    if not values:
        return note
    first, last, highest = (_number(value) for value in (values[0], values[-1], max(values)))
    return f"{note} It begins at {first}, ends at {last}, and is {highest} at most."


def _value(row: Mapping[str, Any], column: str) -> float | None:
    table, _, name = column.partition(".")
    within = row.get(table)
    value = row.get(column, within.get(name) if isinstance(within, Mapping) else None)
    return value if isinstance(value, int | float) else None


def _number(value: float) -> str:
    return count(value) if value >= 1e4 else number(value)


def pictures_of_comparison(found: Comparison) -> list[Picture]:
    """Draw a comparison: its curves, profiles and intervals."""
    drawn, left_out = _best(found)
    pictures = []
    for name, (title, note) in _OF_A_COMPARISON.items():
        description = f"{note} {'; '.join(_final(row.name, row.final.iqm) for row in drawn.rows)}."
        svg = _inline(render_figure(*drawing(name, drawn), "svg"), name, title, description)
        pictures.append(Picture(title, f"{note} {left_out}".rstrip(), svg))
    return pictures


def _best(found: Comparison) -> tuple[Comparison, str]:
    """Return the comparison with the groups to be drawn, and a sentence on them if some are left out."""
    if len(found.rows) <= MOST_CURVES:
        return found, ""
    others = sorted(found.rows[1:], key=_height, reverse=True)[: MOST_CURVES - 1]
    kept = [row for row in found.rows if row is found.rows[0] or any(row is other for other in others)]
    sentence = f"Of {len(found.rows)} groups the first and the {len(others)} with the highest final returns."
    return replace(found, rows=tuple(kept)), sentence


def _height(row: Row) -> float:
    return -math.inf if row.final.iqm is None else row.final.iqm


def _final(name: str, iqm: float | None) -> str:
    return f"{name}: final return {'not known' if iqm is None else number(iqm)}"


def pictures_in_plots(run: RunDirectory) -> list[Picture]:
    """Read the pictures that other commands have drawn into a run's ``plots/``."""
    found = []
    for name, (title, note) in _OF_PLOTS.items():
        path = run.plots / f"{name}.svg"
        try:
            svg = _inline(read_regular(path, MOST_SVG_BYTES), name, title, note)
        except FileNotFoundError:
            continue
        except (OSError, NoPictureError) as cause:
            reason = one_line((cause.strerror if isinstance(cause, OSError) else None) or str(cause))
            found.append(Picture(title, f"{printable(str(path))} is left out: {reason}.", None))
            continue
        if len(svg) > MOST_INLINE_BYTES:
            reason = f"it has {memory(len(svg))}, and a page takes {memory(MOST_INLINE_BYTES)}"
            found.append(Picture(title, f"{printable(str(path))} is left out: {reason}.", None))
        else:
            found.append(Picture(title, note, svg, is_wide=name == "timeline"))
    return found


# -- where samples went --------------------------------------------------------------------------------


BAR: Final = 1000.0
THINNEST: Final = 10.0
"""Least width of a part of the bar that is not 0, so that it can be seen."""

_TERMS: Final = (
    ("received", "by the buffers", "blue"),
    ("in flight", "pushed and not received when the run stopped, or not pushed yet", "sky"),
    ("lost", "with a process that died", "orange"),
    ("dropped", "on purpose, by a rule that says so", "amber"),
)


def account(steps: Sequence[int]) -> list[dict[str, Any]]:
    """Lay out the bar of the account of samples.

    Args:
        steps: received, in flight, lost, dropped.

    Returns:
        The terms, as the template shows them. ``color`` is a CSS variable of the page, ``x`` and ``width``
        are where a term's part of the bar begins and its width, in thousandths; 0 wide if the term is 0.
    """
    total = sum(steps) or 1
    widths = [max(THINNEST, BAR * one / total) if one else 0.0 for one in steps]
    beyond = sum(widths) - BAR
    largest = widths.index(max(widths))
    widths[largest] -= beyond if any(steps) else 0.0
    parts, x = [], 0.0
    for (name, meaning, color), one, width in zip(_TERMS, steps, widths, strict=True):
        part = {"name": name, "steps": one, "meaning": meaning, "color": color}
        parts.append(part | {"x": round(x, 1), "width": round(width, 1)})
        x += width
    return parts


def describe_account(parts: Sequence[Mapping[str, Any]], produced: int) -> str:
    """Describe the account in words."""
    terms = ", ".join(f"{part['steps']} {part['name']}" for part in parts)
    return f"{several(produced, 'env step')}: {terms}"
