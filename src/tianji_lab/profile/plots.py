"""Draws the paper's Figure 6(a) for a config and a machine: production against consumption.

Lines are the model's: solid up to the cores of this machine, dashed beyond. Squares are trainings. Buffers
may receive a hundred times as fast as learners learn: then a label replaces the line of reception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from tianji_cli.quantities import count, several
from tianji_cli.telemetry.bottleneck import BALANCED
from tianji_cli.telemetry.figures import AMBER, BLACK, BLUE, GREEN, GREY, write_figure
from tianji_lab.profile.model import Cluster, Model, Prediction
from tianji_lab.profile.race import Contender
from tianji_lab.profile.result import Profile
from tianji_lab.ranges import Range, draw_ranges

HEIGHT: Final = 2.9
"""Height of the figure in inches."""
BEYOND: Final = 2
"""Length of the axis, as a multiple of the balance point or the recommended actors."""
FEWEST: Final = 4
"""Minimum actors at the end of the axis."""
POINTS: Final = 64
"""Maximum points of a line, about."""
HEADROOM: Final = 1.06
"""Height of the axis, as a multiple of the highest line."""
LOW: Final = 0.2
"""Share of the axis's height below which a label has no room under a line."""
MOST: Final = 1 << 16
"""Maximum actors in the search for the balance point."""
DASHES: Final = (0, (2.2, 1.6))
COLORS: Final = {"production": BLUE, "reception": AMBER, "consumption": GREEN, "throughput": BLACK}
WIDTHS: Final = {"production": 2.4, "reception": 2.4, "consumption": 2.4, "throughput": 0.9}
"""Widths of the lines. Throughput follows the line of its limit: thin on thick, both are visible."""
RECOMMENDED: Final = (0, (1, 1.2))
"""Dashes of the line at the recommended actors."""

At = Callable[[int], Prediction]
"""Prediction for a number of actors of a group; the rest of the split is the recommended one."""


@dataclass(frozen=True)
class Point:
    """Mark of a split that was trained with.

    Attributes:
        actors: of a group.
        uses_per_s: over all groups: the mean, and its error bar.
        is_other: whether the split differs from that of the lines in more than actors.
    """

    actors: int
    uses_per_s: Range
    is_other: bool = False


def draw(found: Profile, path: Path) -> None:
    """Draw production, reception, consumption and throughput against actors into a file.

    Raises:
        OSError: the file cannot be written.
    """
    recommended, cores = found.recommended.prediction, found.measured.measurements.cores
    at = _predictor(found)
    trained = found.verified or ([] if found.race is None else found.race.contenders)
    points = [_point(contender, recommended) for contender in trained]
    balance = balance_point(at)
    curve = [at(actors) for actors in shown_actors(recommended.split.actors, balance, points)]

    def draw_into(figure: Figure) -> None:
        axes = figure.add_subplot()
        _scale(axes, curve, points)
        plot_curve(axes, curve, cores)
        _plot_points(axes, points)
        axes.axvline(recommended.split.actors, color=GREY, linewidth=0.8, linestyle=RECOMMENDED, zorder=1)
        if balance is not None:
            _mark_balance(axes, at(balance))
        _finish(axes, recommended)
        is_above = _note_reception(axes, curve)
        lines = [line for line in COLORS if not (is_above and line == "reception")]
        _legend(figure, curve, cores, points, lines)

    write_figure(draw_into, HEIGHT, path)


def _predictor(found: Profile) -> At:
    """Make the function that predicts the recommended split with other actors; pinned ones all have cores."""
    split = found.recommended.split
    cluster = Cluster(MOST) if split.pinned else found.model.cluster
    model = Model(found.model.job, found.measured.measurements, cluster)
    return lambda actors: model.predict(replace(split, actors=actors))


def _point(contender: Contender, recommended: Prediction) -> Point:
    split, runs = contender.candidate.split, contender.rates
    return Point(
        split.actors,
        Range(contender.measured, runs.low, runs.high),
        is_other=replace(split, actors=recommended.split.actors) != recommended.split,
    )


def balance_point(at: At) -> int | None:
    """Find the fewest actors that produce what the other roles can take (Equation 4); None if none do."""
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
    """Choose the numbers of actors of a group for the points of the lines."""
    last = max(FEWEST, BEYOND * recommended, BEYOND * (balance or 1), *(point.actors for point in points))
    stride = (last - 1) / (POINTS - 1)
    spread = range(1, last + 1) if last <= POINTS else (round(1 + stride * place) for place in range(POINTS))
    return sorted({*spread, recommended, *([balance] if balance else [])})


def plot_curve(axes: Axes, curve: Sequence[Prediction], cores: int) -> None:
    """Draw the four lines, dashed beyond the cores of this machine."""
    here = sum(_is_here(prediction, cores) for prediction in curve)
    for quantity, color in COLORS.items():
        x = [prediction.split.actors for prediction in curve]
        y = [_uses_per_s(prediction, quantity) for prediction in curve]
        width, order = WIDTHS[quantity], 3.0 if quantity == "throughput" else 2.0
        axes.plot(x[:here], y[:here], color=color, linewidth=width, zorder=order)
        beyond = max(here - 1, 0)
        axes.plot(x[beyond:], y[beyond:], color=color, linewidth=width, linestyle=DASHES, zorder=order)


def _scale(axes: Axes, curve: Sequence[Prediction], points: Sequence[Point]) -> None:
    """Scale the axes to all lines except reception, which may lie a hundred times as high."""
    shown = [_uses_per_s(each, quantity) for each in curve for quantity in COLORS if quantity != "reception"]
    axes.set_ylim(0, HEADROOM * max(*shown, *(point.uses_per_s.high for point in points)))
    axes.set_xlim(0, 1.03 * curve[-1].split.actors)


# -- marks ---------------------------------------------------------------------------------------------


def _plot_points(axes: Axes, points: Sequence[Point]) -> None:
    for point in points:
        style: dict[str, Any] = {
            "marker": "s",
            "markersize": 4,
            "linestyle": "",
            "clip_on": False,
            "zorder": 4,
        }
        if point.is_other:
            style |= {"markerfacecolor": "white", "markeredgecolor": BLACK, "markeredgewidth": 0.7}
        else:
            style |= {"markerfacecolor": BLACK, "markeredgecolor": "white", "markeredgewidth": 0.5}
        draw_ranges(axes, [point.actors], [point.uses_per_s], color=BLACK, **style)


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
    is_low = height < LOW * axes.get_ylim()[1]  # No room for the label between star and axis.
    axes.annotate(
        "1 actor is enough" if is_ample else f"balance: {several(actors, 'actor')}",
        (actors, height),
        xytext=(30, 5) if is_low else (7, -9),
        textcoords="offset points",
        va="bottom" if is_low else "top",
        fontsize=7,
        zorder=5,
    )


def _finish(axes: Axes, recommended: Prediction) -> None:
    split = recommended.split
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("Actors" if split.groups == 1 else f"Actors of each of {split.groups} groups")
    axes.set_ylabel("Sample uses per second")
    learners = f"{several(split.learners, 'learner')} with {several(split.learner_cores, 'core')}"
    title = f"{learners}, {split.num_envs} environments an actor{split.manner}"
    axes.set_title(title, fontsize=8, loc="left")


def _note_reception(axes: Axes, curve: Sequence[Prediction]) -> bool:
    """Label the reception if its line lies above the axes; returns whether it does."""
    lowest = min(_uses_per_s(prediction, "reception") for prediction in curve)
    if lowest <= axes.get_ylim()[1]:
        return False
    axes.annotate(
        f"\N{UPWARDS ARROW} {_label('reception', curve)}: {count(lowest)}",
        (0.02, 0.98),
        xycoords="axes fraction",
        va="top",
        fontsize=7,
        color=COLORS["reception"],
        zorder=5,
    )
    return True


def _legend(
    figure: Figure, curve: Sequence[Prediction], cores: int, points: Sequence[Point], lines: Iterable[str]
) -> None:
    handles = [
        Line2D([], [], color=COLORS[line], linewidth=WIDTHS[line], label=_label(line, curve))
        for line in lines
    ]
    handles += _marks(curve, cores, points)
    figure.legend(handles=handles, loc="outside upper center", ncols=3, handlelength=1.8)


def _label(quantity: str, curve: Sequence[Prediction]) -> str:
    return f"{quantity} x {curve[0].rho:g}" if quantity in {"production", "reception"} else quantity


def _marks(curve: Sequence[Prediction], cores: int, points: Sequence[Point]) -> Iterator[Line2D]:
    if not _is_here(curve[-1], cores):
        yield Line2D([], [], color=GREY, linestyle=DASHES, label="beyond this machine")
    if points:
        yield Line2D([], [], color=GREY, marker="s", linestyle="", markersize=4, label="trained")
    if any(point.is_other for point in points):
        hollow: dict[str, Any] = {"marker": "s", "markerfacecolor": "white", "markeredgewidth": 0.7}
        yield Line2D([], [], color=BLACK, linestyle="", markersize=4, label="other splits", **hollow)
    yield Line2D([], [], color=GREY, linestyle=RECOMMENDED, linewidth=0.8, label="recommended")


# -- values --------------------------------------------------------------------------------------------


def _uses_per_s(prediction: Prediction, quantity: str) -> float:
    return prediction.throughput if quantity == "throughput" else prediction.limits[quantity]


def _is_here(prediction: Prediction, cores: int) -> bool:
    return prediction.split.cores <= cores or not prediction.split.pinned


def _is_enough(prediction: Prediction) -> bool:
    taken = min(_uses_per_s(prediction, quantity) for quantity in ("reception", "consumption"))
    return _uses_per_s(prediction, "production") >= taken
