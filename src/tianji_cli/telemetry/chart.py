"""A chart of the return over environment steps, in characters: a line, the evaluations, and the goal.

A ``Course`` keeps as many points as a chart can show, however long a run is. Where the terminal has Unicode
a character of the line has two dots by four (Braille); elsewhere it is one star. Evaluations and the goal
have characters of their own, so nothing is told by its colour alone.
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
from tianji_cli.telemetry.metrics import EvaluationRow, parsed, whole_lines
from tianji_cli.telemetry.styles import CURVE, EVALUATION, GOAL

MOST_POINTS: Final = 1024
"""Of a series: twice the dots of a line of 256 characters, so that halving them shows nowhere."""

LARGEST: Final = 1e100
"""A return beyond it is not drawn: the difference of two of them may be no number any more."""

ALIKE: Final = 1e-9
"""Values whose distance is a smaller share of their size count as one."""

COURSE_BYTES: Final = 8 << 20
"""So much of the metrics is read for a chart, in a tenth of a second, however large they are."""

Point = tuple[float, float]
"""Environment steps, and a return."""


class Series:
    """A bounded series of returns over environment steps.

    Of points nearer to one another than a chart could show the newest is kept.
    """

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._apart = 0.0

    def add(self, env_steps: float, value: float | None) -> None:
        """Take in a point; None, NaN and what is beyond ``LARGEST`` are none."""
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
        """Forget the points that lie beyond so many steps."""
        while self.points and self.points[-1][0] > env_steps:
            self.points.pop()

    def _cell(self, point: Point) -> float:
        return point[0] // self._apart if self._apart else point[0]


class Course:
    """How returns of a run went: of training episodes, and of evaluations while training.

    A run that goes back in its steps, as one that is resumed from a checkpoint, forgets what lies beyond.
    """

    def __init__(self) -> None:
        self.returns, self.evaluations = Series(), Series()
        self._env_steps = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not (self.returns.points or self.evaluations.points)

    def add(self, env_steps: int, mean_100: float | None) -> None:
        """Take in where the run is."""
        if env_steps < self._env_steps:
            self.returns.forget_beyond(env_steps)
            self.evaluations.forget_beyond(env_steps)
        self._env_steps = env_steps
        self.returns.add(env_steps, mean_100)

    def add_evaluation(self, env_steps: int, mean: float | None) -> None:
        """Take in an evaluation of a policy that so many steps had made."""
        self.evaluations.add(env_steps, mean)


def read_course(path: Path) -> Course:
    """Read how returns went so far, for a chart; of a long run not every snapshot is looked at.

    Lines that are damaged, and a file that cannot be read, are passed over: there is a run to go on with.
    """
    course = Course()
    with contextlib.suppress(OSError, ValueError):
        for _, line in whole_lines(path, COURSE_BYTES):
            row = parsed(line)
            if isinstance(row, EvaluationRow):
                course.add_evaluation(row.env_steps, row.mean)
            elif row is not None:
                course.add(row.env_steps, row.mean_100)
    return course


@dataclass(frozen=True)
class Scale:
    """Ticks at round numbers from ``low * step`` to ``high * step``, among which all values are."""

    low: int
    high: int
    step: float

    @classmethod
    def around(cls, values: Sequence[float], most: int) -> Scale:
        """Find the ticks for some values, all finite, of which there is one at least.

        Args:
            most: how many steps the values may span; one more tick may be needed on either side.
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
        """Find the ticks, six at most, with which values have most of so many rows, three at least."""
        scales = [cls.around(values, most) for most in range(min(4, rows - 1), 0, -1)]
        fitting = [scale for scale in scales if scale.high - scale.low < rows]
        return max(fitting, key=lambda scale: scale.rows(rows) / (scale.high - scale.low) / scale.step)

    def rows(self, most: int) -> int:
        """Find how many rows there are, so that the ticks are in the middle of rows and lie evenly."""
        steps = self.high - self.low
        return 1 + (most - 1) // steps * steps

    @property
    def ticks(self) -> list[float]:
        """The values at the ticks, ascending."""
        return [number * self.step for number in range(self.low, self.high + 1)]

    def place(self, value: float, cells: int) -> int:
        """Find the cell of a value among so many: 0 has the lowest tick in it, the last one the highest.

        Cells that are cut into finer ones, as characters are into dots, hold the same values as those.
        """
        return _cell((value / self.step - self.low) / (self.high - self.low), cells)

    @property
    def labels(self) -> list[str]:
        """The ticks as text, with a unit and as many decimals as tell them from one another."""
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
        """Dots of a character, across and down."""
        return (2, 4) if self.braille else (1, 1)

    def character(self, dots: int) -> str:
        """Return the character with these dots, of which there is one at least."""
        return chr(0x2800 + dots) if self.braille else "*"


UNICODE: Final = Marks("◆", "┄", "│", "┤", braille=True)
ASCII: Final = Marks("o", "-", "|", "+", braille=False)

BITS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Of the dots of a Braille character, by column and row."""

Canvas = dict[tuple[int, int], int]
"""The dots of each character that has any, by column and row, from the left and from the top."""


def draw(
    course: Course,
    columns: int,
    lines: int,
    *,
    labels: int,
    marks: Marks = UNICODE,
    goal: float | None = None,
) -> list[Text]:
    """Draw a chart, the last line of which has the scale of the steps.

    Args:
        course: with one point at least.
        columns: in all.
        lines: four at least; it takes as many of them as let its ticks lie evenly.
        labels: columns for the labels of the returns, if they need no more.
        goal: a return that is marked once the run has come near it.
    """
    returns, evaluations = course.returns.points, course.evaluations.points
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
    """Find the column and the row of a point, from the left and from the top; the chart ends at ``last``."""
    return _cell(point[0] / last if last else 0.0, columns), rows - 1 - scale.place(point[1], rows)


def _cell(share: float, cells: int) -> int:
    """Find the cell of a share from 0 to 1; the last one has 1 in it, too."""
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
    """List the dots of a straight line."""
    (x, y), (to_x, to_y) = start, end
    steps = max(abs(to_x - x), abs(to_y - y))
    for step in range(1, steps):
        yield x + round((to_x - x) * step / steps), y + round((to_y - y) * step / steps)


def _is_near(goal: float, values: Sequence[float]) -> bool:
    """Whether a goal belongs into a chart: it must not press the values into a part of it."""
    low, high = min(values), max(values)
    return abs(goal) <= LARGEST and low - (high - low) / 2 <= goal <= high + (high - low) / 2


def _below(indent: int, width: int, last: float, marks: Marks, marked: bool, goal: float | None) -> Text:
    """Label the steps; between the two ends the characters are explained, as far as there is room."""
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
