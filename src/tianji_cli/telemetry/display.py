"""How a run shows itself while it goes: live on a terminal, plain lines elsewhere, nothing under --quiet.

No thread is started: the root draws when it has something new.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final, TextIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tianji_cli.config.schema import STOP_RULES
from tianji_cli.quantities import count, duration, number, ranges, several, share
from tianji_cli.telemetry.snapshot import METRICS, RoleStatus, Snapshot, StopProgress, lines

INTERVAL_S: Final = 0.95
"""Shortest time between two drawings: a second, less what the root's clock may waver."""

LEVELS: Final = "▁▂▃▄▅▆▇█"
MAX_CURVE_COLUMNS: Final = 60
LABEL_COLUMNS: Final = len("policy lag")

SIGHT_S: Final = 15.0
"""Seconds of a session, its start among them, after which a goal that comes no nearer is out of sight."""

MOST_PAIRS: Final = 7
"""Pairs of a line beside the time: what is read at a glance. Everything is in ``metrics.jsonl``."""


class Display:
    """Shows a run while it goes; this one shows nothing, as for --quiet."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the present state, unless the last one is too young to be replaced."""

    def remember(self, mean_100: float) -> None:
        """Take in a mean return of the past, whose snapshot is not to be shown."""

    def event(self, text: str) -> None:
        """Tell at once that something happened."""

    def close(self) -> None:
        """Show the last state if it was not shown yet, and give the terminal back. Harmless when repeated."""


def choose_display(title: str, *, quiet: bool, stream: TextIO) -> Display:
    """Choose how a run shows itself: on stderr, since stdout belongs to the result."""
    if quiet:
        return Display()
    if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return LiveDisplay(title, stream)
    return PlainDisplay(stream)


class LiveDisplay(Display):
    """Owns the lower part of a terminal while a run goes, below what scrolls by; draws it once a second."""

    def __init__(self, title: str, stream: TextIO) -> None:
        from rich.live import Live  # noqa: PLC0415 - only where it is seen

        self._title = title
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        # stdout is left alone: it may be a file, and nothing is printed there before the run is over.
        # The last state goes away in the end: the result takes its place.
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, transient=True)
        self._curve: list[float] = []
        self._newest: Snapshot | None = None
        self._shown_s = float("-inf")

    def show(self, snapshot: Snapshot) -> None:
        """Draw the state, unless the last drawing is too young."""
        self._newest = snapshot
        if snapshot.learner.mean_100 is not None:
            self.remember(snapshot.learner.mean_100)
        if snapshot.elapsed_s - self._shown_s >= INTERVAL_S:
            self._draw_newest()

    def remember(self, mean_100: float) -> None:
        """Take in a point of the curve."""
        self._curve.append(mean_100)

    def event(self, text: str) -> None:
        """Write a line above the state, where it stays."""
        at = "" if self._newest is None else f"{duration(self._newest.elapsed_s)}  "
        self._console.print(Text.assemble((at, "dim"), text))

    def close(self) -> None:
        """Take the state away; what happened stays on the screen."""
        self._live.stop()

    def _draw_newest(self) -> None:
        assert self._newest is not None
        self._shown_s = self._newest.elapsed_s
        if not self._live.is_started:
            self._live.start()
            # A run that is suspended or killed must not leave a shell without a cursor.
            self._console.show_cursor(True)
        self._live.update(
            render(
                self._newest,
                self._title,
                () if self._console.options.ascii_only else self._curve,
                self._console,
            ),
            refresh=True,
        )


def render(snapshot: Snapshot, title: str, curve: Sequence[float], console: Console) -> RenderableType:
    """Lay a snapshot out.

    Args:
        curve: ``mean_100`` so far, oldest first; empty shows no curve.
        console: whose size it is to fit; roles are summed up where they do not fit otherwise.
    """
    width, height = console.size
    header = Table.grid(expand=True)
    header.add_column(no_wrap=True, overflow="ellipsis")
    header.add_column(justify="right", no_wrap=True)
    header.add_row(Text(title, style="bold"), duration(snapshot.elapsed_s))
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="cyan", no_wrap=True, min_width=LABEL_COLUMNS)
    facts.add_column()
    for label, fact in _facts(snapshot, curve, min(MAX_CURVE_COLUMNS, width - LABEL_COLUMNS - 2)):
        facts.add_row(label, fact)
    # Two lines are the header's and the roles' own header, and one more keeps the screen from scrolling.
    left = height - len(console.render_lines(facts, pad=False)) - 3
    return Group(header, facts, roles_table(snapshot.roles, width, left))


def sparkline(values: Sequence[float], columns: int) -> str:
    """Draw values as one line of blocks, at most ``columns`` wide; the lowest is the lowest block."""
    if len(values) > columns:
        values = [values[round(i * (len(values) - 1) / (columns - 1))] for i in range(columns)]
    low, high = min(values), max(values)
    scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(LEVELS[round((value - low) * scale)] for value in values)


def _facts(snapshot: Snapshot, curve: Sequence[float], columns: int) -> Iterator[tuple[str, RenderableType]]:
    if snapshot.evaluating is not None:
        yield "evaluating", f"{snapshot.evaluating}, {count(snapshot.evaluating.env_steps)} env steps"
    yield "return", _returns(snapshot)
    if len(curve) > 1 and columns > 1:
        yield "", Text(sparkline(curve, columns), style="green")
    yield from lines(snapshot, METRICS, attrgetter("live"))
    if snapshot.stop and snapshot.evaluating is None:
        yield "stops at", _stop_rules(snapshot)


def _returns(snapshot: Snapshot) -> Text:
    learner = snapshot.learner
    if learner.mean_100 is None:
        return Text("no episode has ended yet", style="dim")
    total = several(learner.episodes, "episode")
    all_count = learner.episodes_in_mean == learner.episodes
    behind = total if all_count else f"the last {learner.episodes_in_mean} of {total}"
    behind += f" in {len(snapshot.by_group)} groups" if snapshot.by_group else ""
    best = "" if learner.best_mean_100 is None else f", best {number(learner.best_mean_100)}"
    return Text.assemble((number(learner.mean_100), "bold green"), f"  mean of {behind}{best}")


def _stop_rules(snapshot: Snapshot) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _column in range(3):
        table.add_column(no_wrap=True)
    for rule in snapshot.stop:
        written = STOP_RULES[rule.rule].written
        now = "-" if rule.value is None else written(rule.value)
        style = "bold" if rule is snapshot.next_stop else ""
        reached = f"{now} of {written(rule.target)}"
        table.add_row(rule.rule, reached, Text(_left(rule, snapshot), style=style))
    return table


def _left(rule: StopProgress, snapshot: Snapshot) -> str:
    if rule.eta_s is None:
        # At first nothing is known of the pace; that says nothing yet.
        return "" if rule.value is None or snapshot.elapsed_s < SIGHT_S else "not in sight"
    if not rule.eta_s:
        return "reached"
    steps = rule.eta_s * snapshot.produced_per_s
    if rule.rule == "env_steps" and rule.value is not None:
        steps = rule.target - rule.value
    return f"{duration(rule.eta_s, decimals=0)}, {count(max(0.0, steps))} steps left"


MAX_ROLES: Final = 12
"""More roles than this are summed up even where there is room: 64 lines a second cannot be read."""

WIDE: Final = 100
"""Columns from which there is room for process ids."""


def roles_table(roles: Sequence[RoleStatus], width: int, lines: int) -> Table:
    """Show how busy the roles are, on so many lines."""
    columns = ["role", "rank"]
    columns += ["group"] if len({role.group for role in roles} - {None}) > 1 else []
    columns += ["host"] if len({role.host for role in roles}) > 1 else []
    columns += ["pid"] if width >= WIDE else []
    columns += ["busy", "restarts", "state"]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="cyan", pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    for alike in _rows(roles, lines):
        cells = _cells(alike)
        table.add_row(*(cells[column] for column in columns))
    return table


def _rows(roles: Sequence[RoleStatus], lines: int) -> list[list[RoleStatus]]:
    """Sort roles into rows: one each if they fit, else one for each kind."""
    if len(roles) <= min(lines, MAX_ROLES):
        return [[role] for role in roles]
    return [
        [role for role in roles if role.role == kind] for kind in dict.fromkeys(role.role for role in roles)
    ]


def _cells(alike: Sequence[RoleStatus]) -> dict[str, str | Text]:
    states = Counter(role.state for role in alike)
    state = (
        ", ".join(f"{number} {state}" for state, number in states.items())
        if len(states) > 1
        else next(iter(states))
    )
    restarts = sum(role.restarts for role in alike)
    hosts = sorted({role.host for role in alike})
    pids = [role.pid for role in alike if role.pid is not None]
    return {
        "role": alike[0].role if len(alike) == 1 else f"{len(alike)} {alike[0].role}s",
        "rank": ranges(sorted({role.rank for role in alike})),
        "group": ranges(sorted({role.group for role in alike if role.group is not None})),
        "host": hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts",
        "pid": str(pids[0]) if len(alike) == 1 and pids else "",
        "busy": _busy([role.busy for role in alike if role.busy is not None]),
        "restarts": Text(str(restarts), style="yellow" if restarts else ""),
        "state": Text(state, style="" if set(states) == {"running"} else "yellow"),
    }


def _busy(shares: Sequence[float]) -> str:
    if not shares:
        return "-"
    if len(shares) == 1:
        return share(shares[0])
    return f"{100 * min(shares):.0f}-{share(max(shares))}, median {share(statistics.median(shares))}"


class PlainDisplay(Display):
    """Writes logfmt lines (``key=value``) into a pipe or a file; the keys are those of ``metrics.jsonl``.

    A line comes each second in the first minute, then ever more slowly, down to one a minute in runs of
    hours: their logs stay readable. None comes while nothing changes but the time.
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
