"""Progress without a terminal: one logfmt line (``key=value``) a second at most, and nothing under --quiet.

The keys are those of ``metrics.jsonl``, so a log can be searched for what is known from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Protocol, TextIO

from tianji_cli.telemetry.snapshot import METRICS, Snapshot

MOST_PAIRS: Final = 7
"""Pairs of a line beside the time: what is read at a glance. Everything is in ``metrics.jsonl``."""


class Display(Protocol):
    """Shows a run while it goes."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the present state, unless the last one is too young to be replaced."""

    def remember(self, mean_100: float) -> None:
        """Take in a mean return of the past, whose snapshot is not to be shown."""

    def event(self, text: str) -> None:
        """Tell at once that something happened."""

    def close(self) -> None:
        """Show the last state if it was not shown yet, and give the terminal back. Harmless when repeated."""


class QuietDisplay:
    """Shows nothing."""

    def show(self, snapshot: Snapshot) -> None:
        """Show nothing."""

    def remember(self, mean_100: float) -> None:
        """Remember nothing."""

    def event(self, text: str) -> None:
        """Tell nothing."""

    def close(self) -> None:
        """Do nothing."""


class PlainDisplay:
    """Owns the lines that a run writes into a pipe or a file.

    A line comes each second in the first minute, then ever more slowly, down to one a minute in runs of
    hours: their logs stay readable. None comes while nothing changes but the time.

    Args:
        stream: where the lines go.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown_s = float("-inf")
        self._shown: list[tuple[str, str]] = []
        self._newest: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Write a line, unless the last one is too young or says the same."""
        self._newest = snapshot
        if snapshot.elapsed_s - self._shown_s >= min(max(1.0, snapshot.elapsed_s / 60), 60.0):
            self._write_newest()

    def remember(self, mean_100: float) -> None:
        """Lines say nothing of the past."""

    def event(self, text: str) -> None:
        """Write a line about something that happened."""
        at = "" if self._newest is None else f"elapsed_s={self._newest.elapsed_s:.1f} "
        self._write(f"{at}event={_quoted(text)}")

    def close(self) -> None:
        """Write a line about the last state if it has none yet."""
        if self._newest is not None and self._newest.elapsed_s > self._shown_s:
            self._write_newest()

    def _write_newest(self) -> None:
        assert self._newest is not None
        shown = list(_pairs(_timeless(self._newest)))
        if shown == self._shown:
            return
        self._shown, self._shown_s = shown, self._newest.elapsed_s
        line = [("elapsed_s", f"{self._newest.elapsed_s:.1f}"), *list(_pairs(self._newest))[:MOST_PAIRS]]
        self._write(" ".join(f"{key}={value}" for key, value in line))

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _timeless(snapshot: Snapshot) -> Snapshot:
    """Leave out of a state what changes with nothing but the time."""
    evaluating = snapshot.evaluating and replace(snapshot.evaluating, seconds=0.0)
    return replace(snapshot, stop=(), evaluating=evaluating)


def _pairs(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """What a line says beside the time, the most important first; no pace once training is over."""
    for metric in METRICS:
        value = metric.value(snapshot) if metric.plain else None
        if value is not None:
            key, _, written = metric.plain.partition("=")
            text = written.format(value)
            yield key, _quoted(text) if " " in text else text
            if key == "evaluating":
                return


def _quoted(text: str) -> str:
    """Quote text for a logfmt value; it stays one line whatever it holds."""
    return json.dumps(text, ensure_ascii=False)
