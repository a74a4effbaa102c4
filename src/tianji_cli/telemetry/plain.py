"""Progress without a terminal: one logfmt line (``key=value``) a second at most, and nothing under --quiet.

The keys are those of ``metrics.jsonl``, so a log can be searched for what is known from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Protocol, TextIO

from tianji_cli.telemetry.snapshot import Snapshot


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
    hours: their logs stay readable.

    Args:
        stream: where the lines go.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown_s = float("-inf")
        self._newest: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Write a line, unless the last one is too young."""
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
        self._shown_s = self._newest.elapsed_s
        self._write(" ".join(f"{key}={value}" for key, value in _pairs(self._newest)))

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _pairs(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    yield "elapsed_s", f"{snapshot.elapsed_s:.1f}"
    yield "env_steps", str(snapshot.env_steps)
    yield from _frames(snapshot)
    yield from _episodes(snapshot)
    yield "produced_per_s", f"{snapshot.produced_per_s:.0f}"
    yield "received_per_s", f"{snapshot.received_per_s:.0f}"
    yield "consumed_per_s", f"{snapshot.consumed_per_s:.0f}"
    yield "replay_ratio_target", f"{snapshot.replay_ratio_target:.4g}"
    if snapshot.replay_ratio_actual is not None:
        yield "replay_ratio_actual", f"{snapshot.replay_ratio_actual:.4g}"
    if snapshot.lag is not None:
        yield "lag_mean", f"{snapshot.lag.mean:.6g}"
        yield "lag_p95", f"{snapshot.lag.p95:.6g}"
        yield "lag_max", f"{snapshot.lag.max:.6g}"
    if snapshot.replay is not None:
        yield "replay_size", str(snapshot.replay.size)
        yield "replay_capacity", str(snapshot.replay.capacity)
    if snapshot.age is not None:
        yield "age_p50", f"{snapshot.age.p50:.6g}"
        yield "age_p95", f"{snapshot.age.p95:.6g}"
        yield "age_max", f"{snapshot.age.max:.6g}"
    if snapshot.uses is not None:
        yield "uses_mean", f"{snapshot.uses.mean:.3g}"
        yield "uses_max", f"{snapshot.uses.max:.3g}"
    if snapshot.stale_priorities:
        yield "stale_priorities", str(snapshot.stale_priorities)
    if snapshot.steps_given_up:
        yield "steps_given_up", str(snapshot.steps_given_up)
    if snapshot.averaging is not None:
        yield "averaging_rounds", str(snapshot.averaging.rounds)
        yield "averaging_missed", ",".join(map(str, snapshot.averaging.missed))
        if snapshot.averaging.lost:
            yield "averaging_lost", ",".join(map(str, snapshot.averaging.lost))
    if snapshot.bottleneck is not None:
        kind = snapshot.bottleneck.kind
        yield "bottleneck", _quoted(kind) if " " in kind else kind
    rule = snapshot.next_stop
    if rule is not None and rule.eta_s is not None:
        yield "next_stop", rule.rule
        yield "eta_s", f"{rule.eta_s:.0f}"


def _episodes(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    yield "episodes", str(snapshot.episodes)
    if snapshot.mean_100 is None:
        yield "mean_100", _quoted("no episode has ended yet")
    else:
        yield "mean_100", f"{snapshot.mean_100:.6g}"
        yield "episodes_in_mean", str(snapshot.episodes_in_mean)
    if snapshot.win_rate is not None:
        yield "win_rate", f"{snapshot.win_rate:.6g}"


def _frames(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    if (snapshot.frames_per_step or 1) > 1:
        yield "frames", str(snapshot.frames)
        yield "frames_per_s", f"{snapshot.frames_per_s:.0f}"


def _quoted(text: str) -> str:
    """Quote text for a logfmt value; it stays one line whatever it holds."""
    return json.dumps(text, ensure_ascii=False)
