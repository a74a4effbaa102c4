"""The paper's Figure 6(a) for a config and a machine: where production meets consumption.

Lines are the model's: solid as far as the cores of this machine go, dashed beyond. Markers are measurements.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

from tianji_cli.bench.curves import AMBER, BLACK, WIDE, WIDTH
from tianji_cli.profiling.measured import learner_s
from tianji_cli.profiling.measurements import Measurements
from tianji_cli.profiling.verify import Verified
from tianji_cli.telemetry.plots import BLUE, GREEN, GREY, STYLE
from tianji_cli.telemetry.rundir import write_whole
from tianji_cli.throughput.bottleneck import BALANCED
from tianji_cli.throughput.costs import Costs
from tianji_cli.throughput.prediction import Prediction

HEIGHT: Final = 2.9
"""Inches."""
BEYOND: Final = 2
"""The axis goes so many times as far as the balance point, or the recommended actors."""
FEWEST: Final = 4
"""Actors that the axis goes to at least."""
POINTS: Final = 64
"""Of a line."""
MOST: Final = 1 << 16
"""Actors after which no balance point is looked for."""
DASHES: Final = (0, (2.2, 1.6))
COLORS: Final = {"production": BLUE, "reception": AMBER, "consumption": GREEN, "throughput": BLACK}
WIDTHS: Final = {"production": 2.4, "reception": 2.4, "consumption": 2.4, "throughput": 0.9}
"""Throughput runs along the line of whatever limits it: thin on thick, both are seen."""
RECOMMENDED: Final = (0, (1, 1.2))
"""Dashes of the line at the recommended actors."""

At = Callable[[int], Prediction]
"""What so many actors of a group give; all else is as recommended."""


@dataclass(frozen=True)
class Point:
    """Something that was measured.

    Attributes:
        quantity: production, consumption or throughput.
        actors: of a group that were at work.
        uses_per_s: over all groups; production times uses of each sample.
        reach: how far repeats went below and above it.
        is_neighbour: learners or environments were not those of the lines.
    """

    quantity: str
    actors: int
    uses_per_s: float
    reach: tuple[float, float] = (0.0, 0.0)
    is_neighbour: bool = False


def draw(at: At, recommended: Prediction, cores: int, points: Sequence[Point], path: Path) -> None:
    """Draw production, reception, consumption and throughput against actors into a PNG file.

    Args:
        at: the model.
        recommended: what was chosen.
        cores: of this machine; what needs more was not measured.
        points: what was.
        path: of the file.

    Raises:
        OSError: the file cannot be written.
    """
    png = io.BytesIO()
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        # A figure of its own, not pyplot's: pyplot keeps global state and may look for a display.
        figure = Figure(figsize=(WIDTH, HEIGHT))
        axes = figure.add_subplot()
        balance = balance_point(at)
        curve = [at(actors) for actors in shown_actors(recommended.split.actors, balance, points)]
        plot_curve(axes, curve, cores)
        _plot_points(axes, points)
        _mark_choice(axes, recommended)
        if balance is not None:
            _mark_balance(axes, at(balance))
        _finish(axes, curve, recommended)
        _legend(figure, curve, cores, points)
        figure.savefig(png, format="png")
    write_whole(path, png.getvalue())


def measured_points(measured: Measurements, choice: Prediction, costs: Costs) -> list[Point]:
    """Take what was measured of the roles that were chosen; of several groups or learners nothing was.

    Args:
        measured: everything.
        choice: what was chosen.
        costs: of it.
    """
    split = choice.split
    if split.groups > 1 or split.learners > 1:
        return []
    points = []
    for actor in measured.actors:
        if actor.num_envs == split.num_envs:
            samples = choice.rho * actor.side_by_side * actor.samples
            seconds = [fragment_s + costs.actor.send_s for fragment_s in actor.fragment_s.values]
            points.append(_point("production", actor.side_by_side, samples, seconds))
    for learner in measured.learners:
        if (learner.cores, learner.share, learner.num_envs) == (split.learner_cores, 1, split.num_envs):
            receive_s = costs.buffer.receive_s
            parts = learner_s(learner, costs.actor.samples, choice.rho, receive_s)
            # Updates are what takes long, and what varies.
            others_s = sum(parts) - learner.update_s.cost
            seconds = [update_s + others_s for update_s in learner.update_s.values]
            beside = measured.cores - learner.cores if learner.crowded else 0
            points.append(_point("consumption", beside, learner.uses_per_update, seconds))
    return points


def verified_points(checks: Sequence[Verified], choice: Prediction) -> list[Point]:
    """Take what trainings came to.

    Args:
        checks: the trainings.
        choice: what was chosen.
    """
    return [
        Point(
            "throughput",
            check.split.actors,
            check.measured,
            (check.measured - min(check.uses_per_s.values), max(check.uses_per_s.values) - check.measured),
            is_neighbour=replace(check.split, actors=choice.split.actors) != choice.split,
        )
        for check in checks
    ]


def _point(quantity: str, actors: int, uses: float, seconds: Sequence[float]) -> Point:
    middle = uses / median(seconds)
    return Point(quantity, actors, middle, (middle - uses / max(seconds), uses / min(seconds) - middle))


def balance_point(at: At) -> int | None:
    """Find the fewest actors whose production is what the rest can take (Equation 4).

    Args:
        at: the model.

    Returns:
        None if no number of actors that could be meant is enough.
    """
    enough = 1
    while not _is_enough(at(enough)):
        enough *= 2
        if enough > MOST:
            return None
    too_few = enough // 2
    while enough - too_few > 1:
        between = (enough + too_few) // 2
        if _is_enough(at(between)):
            enough = between
        else:
            too_few = between
    return enough


def shown_actors(recommended: int, balance: int | None, points: Sequence[Point]) -> list[int]:
    """Choose the actors that lines are drawn for.

    Args:
        recommended: actors of a group.
        balance: the balance point, if there is one.
        points: what was measured.
    """
    last = max(FEWEST, BEYOND * recommended, BEYOND * (balance or 1), *(point.actors for point in points))
    stride = (last - 1) / (POINTS - 1)
    spread = range(1, last + 1) if last <= POINTS else (round(1 + stride * place) for place in range(POINTS))
    return sorted({*spread, recommended, *([balance] if balance else [])})


def plot_curve(axes: Axes, curve: Sequence[Prediction], cores: int) -> None:
    """Draw the four lines, dashed where they go beyond the cores of this machine."""
    here = sum(prediction.split.cores <= cores for prediction in curve)
    for quantity, color in COLORS.items():
        x = [prediction.split.actors for prediction in curve]
        y = [_uses_per_s(prediction, quantity) for prediction in curve]
        width, order = WIDTHS[quantity], 3.0 if quantity == "throughput" else 2.0
        axes.plot(x[:here], y[:here], color=color, linewidth=width, zorder=order)
        beyond = max(here - 1, 0)
        axes.plot(x[beyond:], y[beyond:], color=color, linewidth=width, linestyle=DASHES, zorder=order)


# -- marks ---------------------------------------------------------------------------------------------


def _plot_points(axes: Axes, points: Sequence[Point]) -> None:
    for point in points:
        below, above = point.reach
        axes.errorbar(
            point.actors,
            point.uses_per_s,
            [[below], [above]],
            color=COLORS[point.quantity],
            marker="s" if point.quantity == "throughput" else "o",
            markersize=4,
            markerfacecolor="white" if point.is_neighbour else COLORS[point.quantity],
            markeredgecolor=COLORS[point.quantity] if point.is_neighbour else "white",
            markeredgewidth=0.7 if point.is_neighbour else 0.5,
            linestyle="",
            clip_on=False,
            capsize=1.5,
            elinewidth=0.7,
            zorder=4,
        )


def _mark_choice(axes: Axes, recommended: Prediction) -> None:
    axes.axvline(recommended.split.actors, color=GREY, linewidth=0.8, linestyle=RECOMMENDED, zorder=1)


def _mark_balance(axes: Axes, balance: Prediction) -> None:
    actors = balance.split.actors
    height = min(_uses_per_s(balance, quantity) for quantity in ("reception", "consumption"))
    is_ample = actors == 1 and _uses_per_s(balance, "production") > (1 + BALANCED) * height
    axes.plot(
        actors,
        height,
        color=BLACK,
        marker="*",
        linestyle="",
        markersize=9,
        markerfacecolor="none",
        markeredgewidth=0.9,
        zorder=5,
    )
    axes.annotate(
        "1 actor is enough" if is_ample else f"balance: {actors} actor{'' if actors == 1 else 's'}",
        (actors, height),
        xytext=(7, -9),
        textcoords="offset points",
        va="top",
        fontsize=7,
        zorder=5,
    )


def _finish(axes: Axes, curve: Sequence[Prediction], recommended: Prediction) -> None:
    split = recommended.split
    axes.set_yscale("log")  # Buffers receive a hundred times as fast as learners learn.
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.6, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > WIDE else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(0, 1.03 * curve[-1].split.actors)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("Actors" if split.groups == 1 else f"Actors of each of {split.groups} groups")
    axes.set_ylabel("Sample uses per second")
    learners = f"{split.learners} learner{'' if split.learners == 1 else 's'}"
    cores = f"{split.learner_cores} core{'' if split.learner_cores == 1 else 's'}"
    axes.set_title(f"{learners} with {cores}, {split.num_envs} environments an actor", fontsize=8, loc="left")


def _legend(figure: Figure, curve: Sequence[Prediction], cores: int, points: Sequence[Point]) -> None:
    rho = f" x {curve[0].rho:g}"
    said = {"production": rho, "reception": rho, "consumption": "", "throughput": ""}
    handles = [
        Line2D([], [], color=color, linewidth=WIDTHS[quantity], label=f"{quantity}{said[quantity]}")
        for quantity, color in COLORS.items()
    ]
    handles += _marks(curve, cores, points)
    figure.legend(handles=handles, loc="outside upper center", ncols=3, handlelength=1.8)


def _marks(curve: Sequence[Prediction], cores: int, points: Sequence[Point]) -> Iterator[Line2D]:
    if curve[-1].split.cores > cores:
        yield Line2D([], [], color=GREY, linestyle=DASHES, label="beyond this machine")
    if points:
        yield Line2D([], [], color=GREY, marker="o", linestyle="", markersize=4, label="measured")
    if any(point.is_neighbour for point in points):
        hollow: dict[str, Any] = {"marker": "s", "markerfacecolor": "white", "markeredgewidth": 0.7}
        yield Line2D([], [], color=BLACK, linestyle="", markersize=4, label="neighbours", **hollow)
    yield Line2D([], [], color=GREY, linestyle=RECOMMENDED, linewidth=0.8, label="recommended")


# -- values --------------------------------------------------------------------------------------------


def _uses_per_s(prediction: Prediction, quantity: str) -> float:
    """Take a rate in sample uses a second: what is counted in env steps times the uses of each."""
    value: float = getattr(prediction, quantity)
    return value * prediction.rho if quantity in {"production", "reception"} else value


def _is_enough(prediction: Prediction) -> bool:
    taken = min(_uses_per_s(prediction, quantity) for quantity in ("reception", "consumption"))
    return _uses_per_s(prediction, "production") >= taken
