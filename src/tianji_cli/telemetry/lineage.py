"""Plot of a population's lineage: scores and hyperparameters of the members, and their takeovers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from tianji_cli.files.lineage import REPLACED, ROUND, Lineage
from tianji_cli.telemetry.figures import COLORS, WIDTH

MOST_PANELS: Final = 4
"""Most panels of numeric hyperparameters."""
PANEL_HEIGHT: Final = 1.4
FIRST_HEIGHT: Final = 2.2
"""Inches of the first panel and of each other one."""
MOST_IN_ROW: Final = 6
"""Most members in a row of the legend."""
WIDE: Final = 20.0
"""A hyperparameter that spans more than this factor has a logarithmic axis."""


@dataclass
class MemberHistory:
    """Scores and hyperparameters of a member, over its env steps."""

    env_steps: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    hyperparameters: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    takeovers: list[tuple[int, float, int]] = field(default_factory=list)
    """Env steps, score of the other member at that time, and group of the other member."""


def histories(entries: Iterable[Mapping[str, Any]]) -> dict[int, MemberHistory]:
    """Return the history of each member, by its group, from the entries of a lineage."""
    found: dict[int, MemberHistory] = {}
    for entry in entries:
        scores = {one["group"]: one.get("score") for one in entry.get("members", ())}
        for one in entry["members"] if entry["kind"] != REPLACED else [entry]:
            history = found.setdefault(one["group"], MemberHistory())
            at = one.get("env_steps", history.env_steps[-1] if history.env_steps else 0)
            if entry["kind"] == ROUND:
                history.env_steps.append(at)
                history.scores.append(math.nan if one["score"] is None else one["score"])
                if one["from"] is not None:
                    history.takeovers.append((at, scores[one["from"]], one["from"]))
            history.hyperparameters.append((at, one["hyperparameters"]))
    return found


def draw_lineage(figure: Figure, lineage: Lineage) -> None:
    """Draw a lineage: scores in the first panel, and one panel for each numeric hyperparameter."""
    found = histories(lineage.entries)
    last = {key: value for history in found.values() for key, value in history.hyperparameters[-1][1].items()}
    numbers = [key for key, value in last.items() if isinstance(value, int | float)][:MOST_PANELS]
    heights = [FIRST_HEIGHT, *[PANEL_HEIGHT] * len(numbers)]
    figure.set_size_inches(WIDTH, sum(heights))
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    _draw_scores(panels[0], found, lineage.metric)
    for axes, key in zip(panels[1:], numbers, strict=True):
        _draw_hyperparameter(axes, found, key)
    panels[-1].set_xlabel("Environment steps of a member")
    panels[-1].xaxis.set_major_formatter(EngFormatter())


def _draw_scores(axes: Axes, found: Mapping[int, MemberHistory], metric: str) -> None:
    for group, history in sorted(found.items()):
        color = _color(group)
        axes.plot(history.env_steps, history.scores, color=color, marker="o", label=f"{group}")
        scores = dict(zip(history.env_steps, history.scores, strict=True))
        for at, score, other in history.takeovers:
            # From the better member to this one, in the colour of the better one.
            arrow = {"arrowstyle": "->", "color": _color(other), "linewidth": 0.8, "shrinkA": 0, "shrinkB": 1}
            axes.annotate("", (at, scores[at]), (at, score), arrowprops=arrow)
    axes.set_ylabel("Mean return" if metric == "mean_100" else "Evaluation")
    axes.set_title("Members", loc="left", fontsize="small", pad=14 * (1 + (len(found) - 1) // MOST_IN_ROW))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=MOST_IN_ROW, handlelength=1)


def _draw_hyperparameter(axes: Axes, found: Mapping[int, MemberHistory], key: str) -> None:
    values = [
        value for history in found.values() for _, of in history.hyperparameters if (value := of.get(key))
    ]
    if values and min(values) > 0 and max(values) > WIDE * min(values):
        axes.set_yscale("log")
    for group, history in sorted(found.items()):
        at = [env_steps for env_steps, _ in history.hyperparameters]
        own = [of.get(key, math.nan) for _, of in history.hyperparameters]
        end = history.env_steps[-1] if history.env_steps else 0
        axes.step([*at, end], [*own, own[-1]], where="post", color=_color(group))
    axes.set_ylabel(key.partition(".")[2] or key)


def _color(group: int) -> str:
    return COLORS[group % len(COLORS)]
