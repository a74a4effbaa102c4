"""Learning curves, throughput, policy lag and the replay's balance, drawn from ``metrics.jsonl``.

They can be drawn again at any time, as PNG or in a report: all their data come from the run directory.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from tianji_cli.files.lineage import Lineage
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.figures import BLUE, GREEN, GREY, HEIGHT, ORANGE, write_figure
from tianji_cli.telemetry.lineage import draw_lineage
from tianji_cli.telemetry.metrics import read_history

Rows = Sequence[Mapping[str, Any]]
Across = Callable[[Axes, Rows], list[float]]
"""Horizontal axis of a curve: the function labels the axis and returns the places of the rows."""

LINES: Final = ("-", "--", ":", "-.")

BURST: Final = 20
"""Throughput so many times its median, as before learning begins, makes its axis logarithmic."""

LOSS: Final = "loss "
"""First part of the names of plots of the losses that an update rule reports."""
MOST_LOSSES: Final = 16
"""Most plots of losses; ``metrics.jsonl`` has all losses."""

WINS: Final = "win_rate"
"""Name of a column, a stop rule and a plot."""

Drawing = Callable[[Axes], None]
"""Draws one plot, its labels included."""


def draw_plots(run: RunDirectory) -> None:
    """Draw every plot for which the run has data into ``plots/``.

    Raises:
        OSError: the metrics cannot be read or a plot cannot be written.
        ValueError: the metrics are damaged.
    """
    found = drawings(*read_history(run.metrics))
    for name, draw in found.items():
        write_figure(partial(_draw_alone, draw), HEIGHT, run.plots / f"{name}.png")
    lineage = Lineage.of_run(run.path)
    if lineage.rounds:
        for kind in ("png", "svg"):  # SVG is for a page on the run.
            write_figure(partial(draw_lineage, lineage=lineage), HEIGHT, run.plots / f"lineage.{kind}")


def _draw_alone(draw: Drawing, figure: Figure) -> None:
    draw(figure.add_subplot())


def drawings(
    rows: Rows, evaluations: Rows, thresholds: Sequence[float] = (), *, more: bool = False
) -> dict[str, Drawing]:
    """List the plots for which a run has data, by their names.

    Args:
        rows: snapshots, as ``read_history`` returns them.
        evaluations: evaluations made during training, likewise.
        thresholds: returns that are marked in the learning curves, where these come near them.
        more: include the plots that a run does not draw by itself: the length of episodes, losses, the busy
            share of roles, and the replay ratio of rollouts, which are used as often as the config asks.
    """
    started = [row for row in rows if row["env_steps"] > 0]
    returns = [row for row in started if row["returns.mean_100"] is not None]
    won = [row for row in started if f"returns.{WINS}" in row]
    lags = [row for row in started if row["staleness"] is not None]
    # Rows of an earlier version, which a resumed run goes on with, have no ages.
    ages = [row for row in started if row.get("sample_age") is not None]
    ratios = ages or [row for row in started if more and row.get("replay_ratio.actual") is not None]
    found: dict[str, Drawing] = {}
    for over, name in ((_steps, "steps"), (_time, "time")):
        if returns:
            found[f"return_over_{name}"] = partial(_draw_return, returns, evaluations, thresholds, over)
        if won:
            found[f"{WINS}_over_{name}"] = partial(_draw_wins, won, over)
    if trained := _trained(started):
        found["throughput"] = partial(_draw_throughput, trained)
    if lags:
        versions = MaxNLocator(integer=True)
        found["policy_lag"] = partial(_draw_spread, lags, "staleness", "Policy lag (versions)", versions)
    if ages:
        found["sample_age"] = partial(_draw_spread, ages, "sample_age", "Sample age (env steps)", None)
    if ratios:
        found["replay_ratio"] = partial(_draw_ratio, ratios)
    if more:
        lengths = [row for row in started if row.get("returns.mean_length") is not None]
        if lengths:
            found["episode_length"] = partial(
                _draw_one, lengths, "returns.mean_length", "Steps of an episode"
            )
        names = dict.fromkeys(name for row in started for name in row.get("losses") or ())
        for name in list(names)[:MOST_LOSSES]:
            key = f"{LOSS}{name}"
            with_loss = [
                {**row, key: row["losses"][name]} for row in started if name in (row.get("losses") or ())
            ]
            found[key] = partial(_draw_one, with_loss, key, _plain(name.replace("_", " ")))
    if more and (kinds := _kinds_of_roles(trained)):
        found["busy"] = partial(_draw_busy, trained, kinds)
    return found


def _trained(rows: Rows) -> list[Mapping[str, Any]]:
    """Return the rows during which training went on.

    Rows between two reports of a learner, before the first report of a resumed run, and during the evaluation
    at the end are left out: their rates are 0, and they all lie at one time.
    """
    found: list[Mapping[str, Any]] = []
    for row in rows:
        if row["train_s"] not in {0.0, found[-1]["train_s"] if found else 0.0}:
            found.append(row)
    return found


def _draw_return(
    rows: Rows, evaluations: Rows, thresholds: Sequence[float], over: Across, axes: Axes
) -> None:
    x = over(axes, rows)
    if played := [row for row in evaluations if row["mean"] is not None]:
        across = over(axes, [*played, rows[-1]])[:-1]  # The axis ends with the last row in any case.
        means, spreads = _values(played, "mean"), _values(played, "std")
        axes.errorbar(across, means, spreads, color=ORANGE, fmt="o", elinewidth=0.6, label="evaluations")
    # Rows of an earlier version, which a resumed run goes on with, know no groups.
    groups = sorted({group["group"] for row in rows for group in row.get("by_group", ())})
    for group in groups:
        label = "each group" if group == groups[0] else None
        axes.plot(x, _returns_of(group, rows), color=GREY, linewidth=0.6, label=label)
    axes.plot(
        x,
        _values(rows, "returns.mean_100"),
        color=BLUE,
        marker=_marker(rows),
        label="all groups" if groups else "training" if played else None,
    )
    goal = rows[-1]["stop"].get("mean_return")
    low, high = axes.get_ylim()
    for threshold in thresholds:
        if low <= threshold <= high and threshold != goal:
            axes.axhline(threshold, color=GREY, linestyle=":", linewidth=0.7)
    _draw_target(axes, goal, "stops at")
    if axes.get_legend_handles_labels()[1]:
        _legend_above(axes)
    axes.set_ylabel("Mean return of 100 episodes")


def _draw_one(rows: Rows, column: str, label: str, axes: Axes) -> None:
    axes.plot(_steps(axes, rows), _values(rows, column), color=BLUE, marker=_marker(rows))
    axes.set_ylabel(label)


def _draw_wins(rows: Rows, over: Across, axes: Axes) -> None:
    axes.plot(over(axes, rows), _values(rows, f"returns.{WINS}"), color=BLUE, marker=_marker(rows))
    _draw_target(axes, rows[-1]["stop"].get(WINS), "stops at")
    if axes.get_legend_handles_labels()[1]:
        _legend_above(axes)
    axes.set_ylabel("Share of 100 episodes won")
    axes.set_ylim(-0.02, 1.02)


def _draw_throughput(rows: Rows, axes: Axes) -> None:
    x = _time(axes, rows)
    # A resumed run that failed before its learner reported ends with rows that have no ratio.
    ratio = next((row["replay_ratio.target"] for row in reversed(rows) if row["replay_ratio.target"]), 1.0)
    # Divided by the replay ratio, consumption lies on production when the two are in balance (Eq. 4).
    lines = (
        ("produced", _values(rows, "produced_per_s"), BLUE, "-"),
        ("received", _values(rows, "received_per_s"), ORANGE, "--"),
        (f"consumed / {ratio:g}", [uses / ratio for uses in _values(rows, "consumed_per_s")], GREEN, ":"),
    )
    for label, y, color, style in lines:
        axes.plot(x, y, color=color, linestyle=style, marker=_marker(rows), label=label)
    axes.set_ylabel("Samples per second")
    _finish_from_zero(axes)
    rates = [rate for _, y, _, _ in lines for rate in y if rate > 0]
    if rates and max(rates) > BURST * statistics.median(rates):
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(min(rates) / 2, 2 * max(rates))
    axes.yaxis.set_major_formatter(EngFormatter())


def _draw_spread(rows: Rows, column: str, label: str, ticks: MaxNLocator | None, axes: Axes) -> None:
    """Draw a distribution over time; without ``ticks``, the labels of the axis have units."""
    x = _time(axes, rows)
    for name, color, style in (("max", GREY, ":"), ("p95", ORANGE, "--"), ("mean", BLUE, "-")):
        y = _values([row[column] for row in rows], name)
        axes.plot(x, y, color=color, linestyle=style, marker=_marker(rows), label=name)
    axes.set_ylabel(label)
    if ticks is None:
        axes.yaxis.set_major_formatter(EngFormatter())
    else:
        axes.yaxis.set_major_locator(ticks)
    _finish_from_zero(axes)


def _draw_ratio(rows: Rows, axes: Axes) -> None:
    x = _time(axes, rows)
    axes.plot(x, _values(rows, "replay_ratio.actual"), color=BLUE, marker=_marker(rows), label="actual")
    _draw_target(axes, rows[-1]["replay_ratio.target"], "target")
    axes.set_ylabel("Uses of each sample")
    _finish_from_zero(axes)


def _kinds_of_roles(rows: Rows) -> list[str]:
    """List the kinds of roles for which some row has a busy share."""
    shares = ((name, share) for row in rows for name, share in row.get("busy", {}).items())
    return list(dict.fromkeys(name.rpartition("-")[0] for name, share in shares if share is not None))


def _draw_busy(rows: Rows, kinds: Sequence[str], axes: Axes) -> None:
    """Draw the median busy share of the roles of each kind."""
    x = _time(axes, rows)
    for kind, (style, color) in zip(kinds, product(LINES, (BLUE, ORANGE, GREEN, GREY)), strict=False):
        y = [_middle(kind, row.get("busy", {})) for row in rows]
        axes.plot(x, y, color=color, linestyle=style, marker=_marker(rows), label=_plain(kind))
    axes.set_ylabel("Share of the time at work")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(-0.02, 1.02)
    _legend_above(axes)


def _plain(name: str) -> str:
    """Escape a name, which may be a user's, so that no part of it is typeset as a formula."""
    return name.replace("$", r"\$")


def _middle(kind: str, busy: Mapping[str, float | None]) -> float:
    shares = [share for name, share in busy.items() if name.rpartition("-")[0] == kind and share is not None]
    return statistics.median(shares) if shares else math.nan


def _draw_target(axes: Axes, target: float | None, label: str) -> None:
    if target is not None:
        axes.axhline(target, color=GREY, linestyle="--", linewidth=0.9, label=f"{label} {target:g}")


def _values(rows: Rows, name: str) -> list[float]:
    """Return one column; a number that was not finite when it was written is a gap in the curve."""
    return [math.nan if row[name] is None else row[name] for row in rows]


def _returns_of(group: int, rows: Rows) -> list[float]:
    """Return one group's mean returns; where it had none there is a gap in the curve."""
    means = ({of["group"]: of["mean_100"] for of in row.get("by_group", ())}.get(group) for row in rows)
    return [math.nan if mean is None else mean for mean in means]


def _finish_from_zero(axes: Axes) -> None:
    top = max(axes.dataLim.ymax, 0.0) or 1.0
    axes.set_ylim(0, 1.08 * top)
    _legend_above(axes)


def _legend_above(axes: Axes) -> None:
    """Put the legend where no curve can run through it."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=3)


def _steps(axes: Axes, rows: Rows) -> list[float]:
    axes.set_xlabel("Environment steps")
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.set_xlim(0, 1.02 * rows[-1]["env_steps"])
    return [row["env_steps"] for row in rows]


def _time(axes: Axes, rows: Rows) -> list[float]:
    longest_s = rows[-1]["train_s"]
    unit, seconds = ("s", 1) if longest_s < 600 else ("min", 60) if longest_s < 7200 else ("h", 3600)
    axes.set_xlabel(f"Time since the first environment step ({unit})")
    axes.set_xlim(0, 1.02 * longest_s / seconds or 1.0)
    return [row["train_s"] / seconds for row in rows]


def _marker(rows: Rows) -> str:
    """Return the marker of a curve: a short run shows its points, because one point alone makes no line."""
    return "o" if len(rows) < 20 else ""
