"""Figures of a sweep: history of values, parameters of good trials, importance of each parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from optuna.trial import FrozenTrial, TrialState

from tianji_cli.runs.sweep.space import Dimension, Space
from tianji_cli.telemetry.figures import BLUE, GREY, ORANGE

LABEL: Final = 22
"""Most characters of a parameter's name below an axis."""


def draw_history(figure: Figure, trials: Sequence[FrozenTrial], metric: str, *, minimizes: bool) -> None:
    """Draw the values of trials in their order, and the best so far."""
    axes = figure.subplots()
    for state, color, label in (
        (TrialState.COMPLETE, BLUE, "finished"),
        (TrialState.PRUNED, GREY, "pruned"),
    ):
        some = [one for one in trials if one.state == state]
        if some:
            axes.plot([one.number for one in some], _values(some), "o", color=color, label=label)
    over = [one for one in trials if one.state == TrialState.COMPLETE]
    if over:
        best = (np.minimum if minimizes else np.maximum).accumulate(_values(over))
        axes.step([one.number for one in over], best, where="post", color=ORANGE, label="best so far")
    axes.set_xlabel("Trial")
    axes.set_ylabel(metric)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside upper center", ncols=3)


def _values(trials: Sequence[FrozenTrial]) -> list[float]:
    return [one.value for one in trials if one.value is not None]


def draw_parallel(
    figure: Figure, trials: Sequence[FrozenTrial], space: Space, metric: str, *, minimizes: bool
) -> None:
    """Draw a line for each trial over an axis for each parameter; better trials are brighter."""
    figure.set_size_inches(max(3.5, 1.1 * (len(space.dimensions) + 2)), 2.6)
    axes = figure.subplots()
    scales = [_Scale(one) for one in space.dimensions]
    order = sorted(trials, key=lambda one: one.value or 0.0, reverse=minimizes)
    for rank, trial in enumerate(order):  # The best are drawn last, over all others.
        heights = [scale.height(trial) for scale in scales]
        shade = colormaps["viridis"](rank / max(1, len(order) - 1))
        axes.plot([*range(len(scales))], heights, color=shade, linewidth=0.8, marker="o", markersize=2)
    axes.set_xticks(range(len(scales)), [scale.name for scale in scales])
    axes.set_yticks([])
    axes.set_ylim(-0.12, 1.12)
    for place, scale in enumerate(scales):
        for height, text in scale.marks:
            axes.text(place + 0.03, height, text, fontsize=5, va="center", color=GREY)
    axes.set_title(f"{metric}: the brighter, the better", fontsize=7)


class _Scale:
    """One axis, on which trials lie between 0 and 1."""

    def __init__(self, dimension: Dimension) -> None:
        self._key = dimension.key
        parameter = dimension.parameter
        name = dimension.key.rpartition(".")[2]
        self.name = name if len(name) <= LABEL else f"{name[: LABEL - 3]}..."
        self._labels: list[Any] | None = None
        self.marks: list[tuple[float, str]]
        if parameter.choices is not None:
            self._labels = [dimension.label(choice) for choice in parameter.choices]
            last = max(1, len(self._labels) - 1)
            self.marks = [(place / last, str(text)[:16]) for place, text in enumerate(self._labels)]
            return
        assert parameter.low is not None
        assert parameter.high is not None
        self._log = parameter.log
        self._low, self._high = self._scaled(parameter.low), self._scaled(parameter.high)
        self.marks = [(-0.07, f"{parameter.low:.3g}"), (1.07, f"{parameter.high:.3g}")]

    def _scaled(self, value: float) -> float:
        return math.log(value) if self._log else value

    def height(self, trial: FrozenTrial) -> float:
        """Return the place of a trial on the axis, from 0 to 1; NaN if it has no such parameter."""
        if self._key not in trial.params:
            return math.nan
        value = trial.params[self._key]
        if self._labels is not None:
            return self._labels.index(value) / max(1, len(self._labels) - 1)
        return (self._scaled(value) - self._low) / (self._high - self._low)


def height_of_bars(number: int) -> float:
    """Return the height of a figure with so many bars, in inches."""
    return 0.8 + 0.22 * number


def draw_importances(figure: Figure, importances: Mapping[str, float]) -> None:
    """Draw a bar for each parameter, the longest on top."""
    axes = figure.subplots()
    order = sorted(importances, key=lambda key: importances[key])
    axes.barh(order, [importances[key] for key in order], color=BLUE)
    axes.set_xlim(0, 1)
    axes.set_xlabel("Importance (PED-ANOVA)")
