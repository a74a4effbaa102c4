"""A chart of the return over environment steps, in characters: a line, the evaluations, and the goal.

A ``LearningCurve`` keeps as many points as a chart can show, however long a run is. With Unicode a
character of the line has two dots by four (Braille); elsewhere it is one star. Evaluations and the goal
have characters of their own, so that no meaning depends on colour alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from rich.text import Text

from tianji_cli.quantities import count
from tianji_cli.telemetry.metrics import EvaluationRow, Row, parsed, whole_lines
from tianji_cli.telemetry.styles import CURVE, EVALUATION, GOAL

MOST_POINTS: Final = 1024
"""Most points of a series: twice the dots of a line of 256 characters, so that halving them shows nowhere."""

LARGEST: Final = 1e100
"""Largest return that is drawn; the difference of two larger ones may be infinite."""

ALIKE: Final = 1e-9
"""Two values count as one if their distance is a smaller share of their size."""

CURVE_BYTES: Final = 8 << 20
"""Bytes of the metrics that are read for a chart, in a tenth of a second, however many there are."""

Point = tuple[float, float]
"""Environment steps, and a return."""


class Series:
    """A bounded series of returns over environment steps.

    A point nearer to the last one than a chart could show replaces it.
    """

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._apart = 0.0

    def add(self, env_steps: float, value: float | None) -> None:
        """Add a point; None, NaN and values beyond ``LARGEST`` are ignored."""
        if value is None or not abs(value) <= LARGEST:
            return
        self.forget_beyond(env_steps)
        if self.points and self._cell(self.points[-1]) == self._cell((env_steps, value)):
            self.points[-1] = env_steps, value
            return
        self.points.append((env_steps, value))
        if len(self.points) > MOST_POINTS:
            self._apart = 2 * env_steps / MOST_POINTS
            self.points = list({self._cell(point): point for point in self.points}.values())

    def forget_beyond(self, env_steps: float) -> None:
        """Forget the points beyond ``env_steps``."""
        while self.points and self.points[-1][0] > env_steps:
            self.points.pop()

    def _cell(self, point: Point) -> float:
        return point[0] // self._apart if self._apart else point[0]


class LearningCurve:
    """Learning curve of a run: returns of training episodes, and of evaluations made during training.

    A run that goes back in its steps, such as one resumed from a checkpoint, forgets the points beyond.
    """

    def __init__(self) -> None:
        self.returns, self.evaluations = Series(), Series()
        self._env_steps = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not (self.returns.points or self.evaluations.points)

    def add(self, env_steps: int, mean_100: float | None) -> None:
        """Add the mean return at the present step."""
        if env_steps < self._env_steps:
            self.returns.forget_beyond(env_steps)
            self.evaluations.forget_beyond(env_steps)
        self._env_steps = env_steps
        self.returns.add(env_steps, mean_100)

    def add_evaluation(self, env_steps: int, mean: float | None) -> None:
        """Add the mean return of an evaluation; its policy was published after ``env_steps`` steps."""
        self.evaluations.add(env_steps, mean)

    def add_row(self, row: Row | EvaluationRow) -> None:
        """Add the mean return of a row of the metrics."""
        if isinstance(row, EvaluationRow):
            self.add_evaluation(row.env_steps, row.mean)
        else:
            self.add(row.env_steps, row.mean_100)


def read_learning_curve(path: Path) -> LearningCurve:
    """Read the learning curve of a run so far, from a part of the snapshots if the run is long.

    Damaged lines, and a file that cannot be read, are skipped: the run to be continued matters more.
    """
    curve = LearningCurve()
    with contextlib.suppress(OSError, ValueError):
        for _, line in whole_lines(path, CURVE_BYTES):
            if (row := parsed(line)) is not None:
                curve.add_row(row)
    return curve


@dataclass(frozen=True)
class Scale:
    """Ticks at round numbers from ``low * step`` to ``high * step``; all values lie between them."""

    low: int
    high: int
    step: float

    @classmethod
    def around(cls, values: Sequence[float], most: int) -> Scale:
        """Choose the ticks for one or more finite values.

        Args:
            most: number of steps that the values may span; one more tick may be needed on either side.
        """
        low, high = min(values), max(values)
        if high - low <= ALIKE * max(abs(low), abs(high)):
            about = max(abs(low), abs(high)) / 10 or 1.0
            low, high = low - about, high + about
        exact = (high - low) / most
        power = 10.0 ** math.floor(math.log10(exact))
        step = next(times * power for times in (1, 2, 5, 10) if times * power >= exact * (1 - ALIKE))
        return cls(math.floor(low / step + ALIKE), math.ceil(high / step - ALIKE), step)

    @classmethod
    def fitting(cls, values: Sequence[float], rows: int) -> Scale:
        """Choose the ticks, six at most, with which values fill most of ``rows`` rows, three at least."""
        scales = [cls.around(values, most) for most in range(min(4, rows - 1), 0, -1)]
        fitting = [scale for scale in scales if scale.high - scale.low < rows]
        return max(fitting, key=lambda scale: scale.rows(rows) / (scale.high - scale.low) / scale.step)

    def rows(self, most: int) -> int:
        """Return the most rows, up to ``most``, that put the ticks in the middle of evenly spaced rows."""
        steps = self.high - self.low
        return 1 + (most - 1) // steps * steps

    @property
    def ticks(self) -> list[float]:
        """Values at the ticks, ascending."""
        return [number * self.step for number in range(self.low, self.high + 1)]

    def place(self, value: float, cells: int) -> int:
        """Return the cell of a value: the first has the lowest tick in it, the last of ``cells`` the highest.

        Finer cells within a cell, as the dots within a character, contain the same values as that cell.
        """
        return _cell((value / self.step - self.low) / (self.high - self.low), cells)

    @property
    def labels(self) -> list[str]:
        """Labels of the ticks, with a unit and enough decimals to tell them apart."""
        ticks = self.ticks
        most = max(abs(tick) for tick in ticks)
        if most >= 1e15 or self.step < 1e-6:
            digits = max(1, math.ceil(math.log10(most / self.step)) + 1)
            return [f"{tick:.{digits}g}" for tick in ticks]
        units = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " K"), (1.0, ""))
        unit, name = next((unit, name) for unit, name in units if most >= 10 * unit or unit == 1.0)
        decimals = max(0, -math.floor(math.log10(self.step / unit) + ALIKE))
        return [f"{tick / unit:.{decimals}f}{name}" for tick in ticks]


@dataclass(frozen=True)
class Marks:
    """The characters of a chart."""

    evaluation: str
    goal: str
    axis: str
    tick: str
    braille: bool

    @property
    def dots(self) -> tuple[int, int]:
        """Number of dots in a character, across and down."""
        return (2, 4) if self.braille else (1, 1)

    def character(self, dots: int) -> str:
        """Return the character with these dots; at least one is set."""
        return chr(0x2800 + dots) if self.braille else "*"


UNICODE: Final = Marks("◆", "┄", "│", "┤", braille=True)
ASCII: Final = Marks("o", "-", "|", "+", braille=False)

BITS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of the dots of a Braille character, by column and row."""

Canvas = dict[tuple[int, int], int]
"""Dots of each character that has any, by column and row, from the left and from the top."""


def draw(
    curve: LearningCurve,
    columns: int,
    lines: int,
    *,
    labels: int,
    marks: Marks = UNICODE,
    goal: float | None = None,
) -> list[Text]:
    """Draw a chart; its last line has the scale of the steps.

    Args:
        curve: the learning curve, with one point at least.
        columns: width of the chart, labels included.
        lines: height of the chart, four at least; it uses as many lines as let its ticks lie evenly.
        labels: columns for the labels of the returns, if they need no more.
        goal: return that is marked once the run has come near it.
    """
    returns, evaluations = curve.returns.points, curve.evaluations.points
    values = [value for _, value in (*returns, *evaluations)]
    if goal is not None and not _is_near(goal, values):
        goal = None
    rows = lines - 1
    scale = Scale.fitting([*values, *([] if goal is None else [goal])], rows)
    rows = scale.rows(rows)
    ticks = {
        rows - 1 - scale.place(tick, rows): text for tick, text in zip(scale.ticks, scale.labels, strict=True)
    }
    labels = max(labels, *map(len, ticks.values()))
    width = max(1, columns - labels - 2)
    last = max(steps for steps, _ in (*returns, *evaluations))
    canvas = trace(returns, scale, last, width, rows, marks)
    marked = {place_of(point, scale, last, width, rows) for point in evaluations}
    at_goal = None if goal is None else rows - 1 - scale.place(goal, rows)
    drawn = []
    for row in range(rows):
        line = Text(f"{ticks.get(row, ''):>{labels}} {marks.tick if row in ticks else marks.axis}")
        for column in range(width):
            if (column, row) in marked:
                line.append(marks.evaluation, f"bold {EVALUATION}")
            elif (column, row) in canvas:
                line.append(marks.character(canvas[column, row]), CURVE)
            else:
                line.append(*((marks.goal, GOAL) if row == at_goal else (" ",)))
        drawn.append(line)
    return [*drawn, _below(labels + 2, width, last, marks, bool(marked), goal)]


def place_of(point: Point, scale: Scale, last: float, columns: int, rows: int) -> tuple[int, int]:
    """Return the column and the row of a point, from the left and the top; the chart ends at ``last``."""
    return _cell(point[0] / last if last else 0.0, columns), rows - 1 - scale.place(point[1], rows)


def _cell(share: float, cells: int) -> int:
    """Return the cell of a share from 0 to 1; the last cell contains 1, too."""
    return min(cells - 1, max(0, math.floor(share * cells)))


def trace(
    points: Sequence[Point], scale: Scale, last: float, columns: int, rows: int, marks: Marks
) -> Canvas:
    """Join points by a line of dots."""
    wide, high = marks.dots
    places = [place_of(point, scale, last, columns * wide, rows * high) for point in points]
    canvas: Canvas = {}
    for x, y in (*places, *(dot for two in pairwise(places) for dot in _between(*two))):
        cell = x // wide, y // high
        canvas[cell] = canvas.get(cell, 0) | (BITS[x % wide][y % high] if marks.braille else 1)
    return canvas


def _between(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the dots of a straight line between two others."""
    (x, y), (to_x, to_y) = start, end
    steps = max(abs(to_x - x), abs(to_y - y))
    for step in range(1, steps):
        yield x + round((to_x - x) * step / steps), y + round((to_y - y) * step / steps)


def _is_near(goal: float, values: Sequence[float]) -> bool:
    """Whether a goal belongs into a chart: it must not squeeze the values into a part of the chart."""
    low, high = min(values), max(values)
    return abs(goal) <= LARGEST and low - (high - low) / 2 <= goal <= high + (high - low) / 2


def _below(indent: int, width: int, last: float, marks: Marks, marked: bool, goal: float | None) -> Text:
    """Label the steps; between the two ends, explain as many characters as there is room for."""
    end = f"{count(last)} env steps"
    explained = [(marks.evaluation, f"bold {EVALUATION}", " evaluation")] if marked else []
    explained += [] if goal is None else [(2 * marks.goal, GOAL, f" stops at {goal:g}")]
    left = width - 1 - len(end)
    if left < 0:
        return Text("")
    for shown in range(len(explained), -1, -1):
        parts = [Text.assemble((mark, style), what) for mark, style, what in explained[:shown]]
        legend = Text("   ").join(parts)
        if len(legend) + 4 <= left:
            break
    legend.pad_left((left - len(legend)) // 2)
    line = Text.assemble(" " * indent, "0", legend)
    line.pad_right(indent + width - len(end) - len(line))
    return line.append(end)
