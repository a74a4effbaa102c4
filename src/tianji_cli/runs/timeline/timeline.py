"""A timeline: the spans of all roles of a run within one window, by one clock.

It is built from the spans that the workers of a run have measured, or read from a Chrome trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_cli.errors import TianjiError, errors_as
from tianji_cli.files.traces import IDLE, SPAN, WHAT, Spans, TracedProcess, TracePlace, TraceResult

Floats = npt.NDArray[np.float64]

IDLE_CODES: Final = [WHAT.index(what) for what in IDLE]


@dataclass(frozen=True, eq=False)
class Lane:
    """Spans of one role.

    Attributes:
        role: such as ``actor 3``.
        process: process of the role.
        spans: ordered by their start, in seconds since the start of the window; outer spans come first.
        seconds: length of the window.
    """

    role: str
    process: TracedProcess
    spans: Spans
    seconds: float

    def seconds_of(self, what: str) -> float:
        """Return the seconds in spans of this name; a span inside another of its name counts once more."""
        spans = self.spans[self.spans["what"] == WHAT.index(what)]
        return float((spans["ended_s"] - spans["began_s"]).sum())

    @cached_property
    def busy(self) -> float:
        """Share of the window in which the role was not idle."""
        outer = self.spans[is_outermost(self.spans)]
        outer = outer[~np.isin(outer["what"], IDLE_CODES)]
        return float((outer["ended_s"] - outer["began_s"]).sum()) / self.seconds


@dataclass(frozen=True)
class Timeline:
    """Spans of all roles of a run within a window.

    Attributes:
        name: name of the run.
        seconds: length of the window.
        processes: all processes that were to be traced.
        lanes: roles of the processes that were traced, in the order of their ranks.
    """

    name: str
    seconds: float
    processes: Sequence[TracedProcess]
    lanes: Sequence[Lane]

    def notes(self) -> Iterator[str]:
        """Yield sentences on missing and inexact parts of the timeline."""
        for process in self.processes:
            if process.missing:
                yield f"nothing is known of {process.title}: {process.missing}"
            if process.dropped:
                yield (
                    f"{process.title} did more than fits: its {process.dropped} oldest spans of "
                    f"{process.dropped + self._kept(process)} are left out"
                )
        uncertain = [process for process in self.processes if process.uncertainty_s]
        for host in dict.fromkeys(process.host for process in uncertain):
            worst_s = max(process.uncertainty_s for process in uncertain if process.host == host)
            yield f"the clock of {host} is known to within {1e3 * worst_s:.2g} ms"

    def _kept(self, process: TracedProcess) -> int:
        return sum(len(lane.spans) for lane in self.lanes if lane.process is process)


def read_timeline(name: str, place: TracePlace, result: TraceResult) -> Timeline:
    """Read the spans of the workers, convert them to the root's clock, and cut them to the window.

    Raises:
        TianjiError: a file of it is missing or damaged.
    """
    seconds = result.ended_s - result.began_s
    lanes = []
    for process in result.processes:
        if process.missing:
            continue
        with errors_as(TianjiError, f"the trace of {process.title} cannot be read", OSError, ValueError):
            spans = place.read_spans(process.rank).copy()
            _check(spans, process)
        for end in ("began_s", "ended_s"):
            spans[end] = np.clip(spans[end] + (process.offset_s - result.began_s), 0.0, seconds)
        spans = spans[spans["ended_s"] > spans["began_s"]]
        for number, role in enumerate(process.roles):
            own = spans[spans["role"] == number]
            lanes.append(Lane(role, process, own[np.lexsort((-own["ended_s"], own["began_s"]))], seconds))
    return Timeline(name, seconds, result.processes, lanes)


def _check(spans: Spans, process: TracedProcess) -> None:
    """Refuse spans that no worker can have measured.

    Raises:
        ValueError: the message says what is wrong.
    """
    if (spans["what"] >= len(WHAT)).any() or (spans["role"] >= len(process.roles)).any():
        raise ValueError("it has spans of roles, or of names, that there are none of")
    if not (np.isfinite(spans["began_s"]) & (spans["ended_s"] >= spans["began_s"])).all():
        raise ValueError("it has spans that end before they begin")


def is_outermost(spans: Spans) -> npt.NDArray[np.bool_]:
    """Return a mask of a lane's spans that lie in no other span."""
    latest_s = np.maximum.accumulate(spans["ended_s"])
    return np.concatenate(([True], spans["began_s"][1:] >= latest_s[:-1]))[: len(spans)]


def pieces_of(spans: Spans) -> Spans:
    """Divide nested spans into disjoint pieces; each piece is of the innermost span there."""
    pieces: list[tuple[float, float, int]] = []
    around: list[tuple[float, int]] = []  # End and name of the spans that go on, the innermost last.
    now = 0.0

    def until(moment: float) -> None:
        nonlocal now
        while around and around[-1][0] <= moment:
            ended_s, what = around.pop()
            if ended_s > now:
                pieces.append((now, ended_s, what))
                now = ended_s
        if around and moment > now:
            pieces.append((now, moment, around[-1][1]))
        now = max(now, moment)

    for began_s, ended_s, _, what in spans.tolist():
        until(began_s)
        around.append((ended_s, what))
    until(float("inf"))
    found = np.zeros(len(pieces), SPAN)
    for i, (began_s, ended_s, what) in enumerate(pieces):
        found[i] = began_s, ended_s, 0, what
    return found


def shares_in(pieces: Spans, edges: Floats) -> Floats:
    """Return the share of each activity in each interval of ``edges`` ``[B + 1]``: ``[B, len(WHAT)]``."""
    shares = np.zeros((len(edges) - 1, len(WHAT)))
    for what in np.unique(pieces["what"]):
        own = pieces[pieces["what"] == what]
        lengths = own["ended_s"] - own["began_s"]
        before = np.concatenate(([0.0], np.cumsum(lengths)))
        moments = np.column_stack((own["began_s"], own["ended_s"])).ravel()
        so_far = np.column_stack((before[:-1], before[1:])).ravel()
        shares[:, what] = np.diff(np.interp(edges, moments, so_far)) / np.diff(edges)
    return shares


def cut(spans: Spans, began_s: float, ended_s: float) -> Spans:
    """Return the parts of spans between two moments."""
    found = spans[(spans["ended_s"] > began_s) & (spans["began_s"] < ended_s)].copy()
    np.clip(found["began_s"], began_s, ended_s, out=found["began_s"])
    np.clip(found["ended_s"], began_s, ended_s, out=found["ended_s"])
    return found
