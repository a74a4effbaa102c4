"""Shows a run while it goes: live on a terminal, as plain lines elsewhere, not at all under --quiet.

Nothing here starts a thread or waits for a reader: a display draws when there is something new, on a stream
that keeps what its reader does not take.
"""

from __future__ import annotations

import io
import json
import os
import select
import stat
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Final, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tianji_cli.config.schema import STOP_RULES
from tianji_cli.quantities import count, duration, memory, ranges, several, share
from tianji_cli.telemetry.chart import ASCII, UNICODE, LearningCurve, draw
from tianji_cli.telemetry.progress import is_live
from tianji_cli.telemetry.report import returns_of
from tianji_cli.telemetry.snapshot import METRICS, RoleStatus, Snapshot, StopProgress, in_rows, lines
from tianji_cli.telemetry.styles import GOOD, LABEL, WARNING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.live import Live

INTERVAL_S: Final = 0.95
"""Shortest seconds between two drawings: one, less the jitter of the root's clock."""

LABEL_COLUMNS: Final = len("policy lag")

SIGHT_S: Final = 15.0
"""Seconds of a session, its start included, after which a goal that comes no nearer is "not in sight"."""

MOST_PAIRS: Final = 7
"""Most pairs of a plain line besides the time, to be read at a glance; ``metrics.jsonl`` has them all."""


class Display:
    """Shows a run while it goes. This base class shows nothing, as for --quiet."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the present state, unless the last drawing is too recent."""

    def remember_evaluation(self, env_steps: int, mean: float | None) -> None:
        """Add the mean return of an evaluation made during training to the chart."""

    def doing(self, what: str) -> None:
        """Show an activity that takes time while there is no state to show, or none that changes."""

    def event(self, text: str) -> None:
        """Show an event at once."""

    def close(self) -> None:
        """Show the last state if it was not shown yet, and give the terminal back. Harmless when repeated."""


def choose_display(
    title: str, *, quiet: bool, stream: TextIO, curve: Callable[[], LearningCurve] = LearningCurve
) -> Display:
    """Choose the display of a run. Displays write to stderr, since stdout belongs to the result.

    Args:
        curve: returns the learning curve so far, which a chart continues.
    """
    if quiet:
        return Display()
    if is_live(stream):
        return LiveDisplay(title, stream, curve())
    return PlainDisplay(stream)


class LiveDisplay(Display):
    """Owns the lower part of a terminal during a run, below the lines that scroll by; draws once a second.

    A terminal that has become narrower breaks the drawing into an unknown number of lines. So the display
    clears the terminal after every change of its size, and writes the newest events once more.
    """

    def __init__(self, title: str, stream: TextIO, curve: LearningCurve | None = None) -> None:
        self._title = title
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._live = self._new_live()
        self._size = self._console.size
        self._curve = LearningCurve() if curve is None else curve
        self._events: deque[Text] = deque(maxlen=EVENTS_KEPT)
        self._newest: Snapshot | None = None
        self._shown_s = float("-inf")
        self._doing = ""
        self._doing_since_s = 0.0

    def show(self, snapshot: Snapshot) -> None:
        """Draw the state, unless the last drawing is too recent."""
        self._newest = snapshot
        self._curve.add(snapshot.learner.env_steps, snapshot.learner.mean_100)
        if snapshot.elapsed_s - self._shown_s >= INTERVAL_S:
            self._shown_s = snapshot.elapsed_s
            self._draw(render(snapshot, self._title, self._curve, self._console))

    def remember_evaluation(self, env_steps: int, mean: float | None) -> None:
        """Add a point beside the curve."""
        self._curve.add_evaluation(env_steps, mean)

    def doing(self, what: str) -> None:
        """Draw a line in place of the state: the activity, and its duration once it takes a second."""
        now = time.monotonic()
        if what != self._doing:
            self._doing, self._doing_since_s = what, now
        took_s = now - self._doing_since_s
        text = Text(what, no_wrap=True, overflow="ellipsis")
        if took_s >= 1:
            text.append(f"  {duration(took_s, decimals=0)}", LABEL)
        self._draw(text)

    def event(self, text: str) -> None:
        """Write a line above the state, where it stays."""
        at = "" if self._newest is None else f"{duration(self._newest.elapsed_s)}  "
        self._events.append(Text.assemble((at, LABEL), text))
        self._console.print(self._events[-1])

    def close(self) -> None:
        """Remove the state; events stay on the screen."""
        self._live.stop()

    def _new_live(self) -> Live:
        from rich.live import Live  # noqa: PLC0415 - only where it is seen

        # stdout is left alone: it may be a file, and nothing is printed there before the run is over.
        # The last state is removed in the end: the result takes its place.
        return Live(console=self._console, auto_refresh=False, redirect_stdout=False, transient=True)

    def _draw(self, what: RenderableType) -> None:
        if self._live.is_started and self._console.size != self._size:
            self._live.update("")  # Live draws once more as it stops.
            self._live.stop()
            self._live = self._new_live()
            self._console.clear()
            for event in self._events:
                self._console.print(event)
        self._size = self._console.size
        if not self._live.is_started:
            self._live.start()
            # A run that is suspended or killed must not leave a shell without a cursor.
            self._console.show_cursor(True)
        self._live.update(what, refresh=True)


EVENTS_KEPT: Final = 2
"""Lines above the state that are left to events, on a screen of the usual height."""

USUAL_HEIGHT: Final = 24

LEAST_CHART: Final = 5
MOST_CHART: Final = 14
"""Fewest and most lines of a chart."""

HIDDEN_FIRST: Final = ("losses", "averaging", "population", "priorities", "uses", "sample age")
"""Facts left out when the chart lacks room, the last one first; ``metrics.jsonl`` has them."""

LEAST_WIDTH: Final = 40
"""Fewest columns of a readable chart."""


def render(snapshot: Snapshot, title: str, curve: LearningCurve | None, console: Console) -> RenderableType:
    """Lay out a snapshot.

    Args:
        curve: the returns so far; None shows no chart.
        console: the console whose size the layout fits. Roles are summed up where they do not fit otherwise,
            or leave no room for the chart; some facts are left out then.
    """
    width, height = console.size
    header = Table.grid(expand=True)
    header.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    header.add_column(justify="right", no_wrap=True)
    header.add_row(Text(title, style="bold"), duration(snapshot.elapsed_s))
    columns = width - LABEL_COLUMNS - 2
    facts = list(_facts(snapshot, columns))
    lines_of = [len(console.render_lines(_table_of([fact]), pad=False)) for fact in facts]
    # One line is the header's, and one more keeps the screen from scrolling.
    room = height - sum(lines_of) - 2
    kept = EVENTS_KEPT if height >= USUAL_HEIGHT else 0
    if curve is not None and width >= LEAST_WIDTH and not curve.is_empty:
        lacking = LEAST_CHART + 1 + kept - room
        spared = [n for n in range(len(facts)) if facts[n][0] in HIDDEN_FIRST]
        while lacking > 0 and spared:
            lacking -= lines_of[spared[-1]]
            room += lines_of[spared[-1]]
            del facts[spared.pop()]
        if lacking <= 0:
            return Group(header, _table_of(facts), *_with_chart(snapshot, curve, console, room - kept))
        facts = list(_facts(snapshot, columns))
    return Group(header, _table_of(facts), roles_table(snapshot.roles, width, height - sum(lines_of) - 3))


def _with_chart(
    snapshot: Snapshot, curve: LearningCurve, console: Console, room: int
) -> Iterator[RenderableType]:
    """Lay out chart and roles on ``room`` lines; the chart gets ``LEAST_CHART`` of them at least."""
    kinds = len({role.role for role in snapshot.roles})
    each = len(snapshot.roles) if len(snapshot.roles) <= MAX_ROLES else kinds
    rows = next((rows for rows in (each, kinds) if rows + 1 + LEAST_CHART <= room), 0)
    marks = ASCII if console.options.ascii_only else UNICODE
    goal = next((rule.target for rule in snapshot.stop if STOP_RULES[rule.rule].in_chart), None)
    lines = min(room - (rows + 1 if rows else 1), MOST_CHART)
    yield from draw(curve, console.width, lines, labels=LABEL_COLUMNS, marks=marks, goal=goal)
    if rows:
        yield roles_table(snapshot.roles, console.width, rows)
    else:
        yield _table_of([("busy", _in_a_line(snapshot.roles, console.width - LABEL_COLUMNS - 2))])


def _table_of(facts: Iterable[tuple[str, RenderableType]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style=LABEL, no_wrap=True, min_width=LABEL_COLUMNS)
    table.add_column()
    for label, fact in facts:
        table.add_row(label, fact)
    return table


def _facts(snapshot: Snapshot, columns: int) -> Iterator[tuple[str, RenderableType]]:
    pending = _pending(snapshot)
    if pending is not None:
        yield pending
    if snapshot.evaluating is not None:
        yield "evaluating", f"{snapshot.evaluating}, {count(snapshot.evaluating.env_steps)} env steps"
    yield "return", returns_of(snapshot, f"bold {GOOD}")
    for label, text in lines(snapshot, METRICS, attrgetter("live")):
        yield label, _in_one_line(text.split(", "), columns) if label == "losses" else text
    if snapshot.stop and snapshot.evaluating is None:
        yield "stops at", _stop_rules(snapshot, columns)


def _pending(snapshot: Snapshot) -> tuple[str, str] | None:
    """Describe the wait of a run that does not train; None if it trains or evaluates."""
    by_state: dict[str, dict[int, str]] = {}
    for role in snapshot.roles:
        by_state.setdefault(role.state, {})[role.rank] = f"{role.role} {role.rank}"
    if starting := by_state.get("starting"):
        ready = len(by_state.get("running", {}))
        return (
            "starting",
            f"{ready} of {several(ready + len(starting), 'process', 'es')} ready; {_waits(starting)}",
        )
    if stopping := by_state.get("stopping"):
        return "stopping", f"saving what was learnt; {_waits(stopping)}"
    if "running" not in by_state or snapshot.evaluating is not None:
        return None
    if not snapshot.produced:
        return "starting", "no environment step yet: environments are reset, or compile"
    if not snapshot.learner.updates:
        return "starting", "no update yet: the first batch comes together, or what learns compiles"
    return None


def _in_one_line(parts: Sequence[str], columns: int) -> str:
    """Join as many parts as fit on a line; ``metrics.jsonl`` has all of them."""
    shown = ""
    for left_out in range(len(parts)):
        shown = ", ".join(parts[: len(parts) - left_out]) + (f" and {left_out} more" if left_out else "")
        if len(shown) <= columns:
            break
    return shown


MOST_NAMED: Final = 3


def _waits(ranks: Mapping[int, str]) -> str:
    """Name the processes that others wait for, by their last role: a buffer comes before its learner."""
    named = list(ranks.values())
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return f"waiting for {', '.join(named[:MOST_NAMED])}{more}"


STOP_COLUMNS: Final = 66
"""Columns that stop rules need together with the time and steps left."""


def _stop_rules(snapshot: Snapshot, columns: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    shown = 3 if columns >= STOP_COLUMNS else 2
    for _column in range(shown):
        table.add_column(no_wrap=True)
    for rule in snapshot.stop:
        written = STOP_RULES[rule.rule].written
        now = "-" if rule.value is None else written(rule.value)
        style = "bold" if rule is snapshot.next_stop else ""
        reached = f"{now} of {written(rule.target)}"
        table.add_row(*(rule.rule, reached, Text(_left(rule, snapshot), style=style))[:shown])
    return table


def _left(rule: StopProgress, snapshot: Snapshot) -> str:
    if rule.eta_s is None:
        # The pace is unknown at first, so a missing forecast means nothing yet.
        return "" if rule.value is None or snapshot.elapsed_s < SIGHT_S else "not in sight"
    if not rule.eta_s:
        return "reached"
    steps = rule.eta_s * snapshot.produced_per_s
    if rule.rule == "env_steps" and rule.value is not None:
        steps = rule.target - rule.value
    return f"{duration(rule.eta_s, decimals=0)}, {count(max(0.0, steps))} steps left"


MAX_ROLES: Final = 12
"""Most roles with a line each, even where there is room for more: 64 lines a second cannot be read."""

WIDE: Final = 100
"""Fewest columns that show process ids and the memory of each role, or of the largest."""


def roles_table(roles: Sequence[RoleStatus], width: int, lines: int) -> Table:
    """Build the table of the roles: a line each if they fit on ``lines`` lines, else a line for each kind."""
    columns = ["role", "rank"]
    columns += ["group"] if len({role.group for role in roles} - {None}) > 1 else []
    columns += ["host"] if len({role.host for role in roles}) > 1 else []
    columns += ["pid"] if width >= WIDE else []
    columns += ["memory"] if width >= WIDE else []
    columns += ["busy", "restarts", "state"]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=LABEL, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    for alike in in_rows(roles, min(lines, MAX_ROLES)):
        cells = _cells(alike)
        table.add_row(*(cells[column] for column in columns))
    return table


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
        "memory": memory(max(taken)) if (taken := [role.memory for role in alike if role.memory]) else "-",
        "busy": _busy([role.busy for role in alike if role.busy is not None]),
        "restarts": Text(str(restarts), style=WARNING if restarts else ""),
        "state": Text(state, style="" if set(states) <= {"running", "planned"} else WARNING),
    }


def _in_a_line(roles: Sequence[RoleStatus], columns: int) -> str:
    """Write the busy share of each kind of roles in one line, with restarts and unusual states."""
    parts = []
    for alike in in_rows(roles, 0):
        cells = _cells(alike)
        notes = [f"{cells['restarts']} restarts"] if any(role.restarts for role in alike) else []
        notes += [] if {role.state for role in alike} == {"running"} else [str(cells["state"])]
        if notes == ["planned"] or (cells["busy"] == "-" and not notes):
            continue
        busy = str(cells["busy"]).partition(",")[0]
        parts.append(f"{cells['role']} {busy}" + (f" ({', '.join(notes)})" if notes else ""))
    return _in_one_line(parts, columns)


def _busy(shares: Sequence[float]) -> str:
    if not shares:
        return "-"
    if len(shares) == 1:
        return share(shares[0])
    return f"{100 * min(shares):.0f}-{share(max(shares))}, median {share(statistics.median(shares))}"


class PlainDisplay(Display):
    """Writes logfmt lines (``key=value``) into a pipe or a file; the keys are those of ``metrics.jsonl``.

    A line comes each second in the first minute, then ever more slowly, down to one a minute in runs of
    hours, so that their logs stay readable. No line comes while nothing changes but the time.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown_s = float("-inf")
        self._shown: list[tuple[str, str]] = []
        self._newest: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Write a line, unless the last line is too recent or has the same values."""
        self._newest = snapshot
        if snapshot.elapsed_s - self._shown_s >= min(max(1.0, snapshot.elapsed_s / 60), 60.0):
            self._write_newest()

    def event(self, text: str) -> None:
        """Write a line for an event."""
        at = "" if self._newest is None else f"wall_s={self._newest.elapsed_s:.1f} "
        self._write(f"{at}event={_quoted(text)}")

    def close(self) -> None:
        """Write a line for the last state if it has none yet."""
        if self._newest is not None and self._newest.elapsed_s > self._shown_s:
            self._write_newest()

    def _write_newest(self) -> None:
        assert self._newest is not None
        shown = list(_pairs(_timeless(self._newest)))
        if shown == self._shown:
            return
        self._shown, self._shown_s = shown, self._newest.elapsed_s
        line = [("wall_s", f"{self._newest.elapsed_s:.1f}"), *list(_pairs(self._newest))[:MOST_PAIRS]]
        self._write(" ".join(f"{key}={value}" for key, value in line))

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _timeless(snapshot: Snapshot) -> Snapshot:
    """Remove the fields that change with the time alone."""
    evaluating = snapshot.evaluating and replace(snapshot.evaluating, seconds=0.0)
    return replace(snapshot, stop=(), evaluating=evaluating)


def _pairs(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a line besides the time, the most important first; no pace once training is over."""
    for metric in METRICS:
        value = metric.value(snapshot) if metric.plain else None
        if value is not None:
            text = metric.plain.format(value)
            yield metric.path, _quoted(text) if " " in text else text
            if metric.path == "evaluating":
                return


def _quoted(text: str) -> str:
    """Quote text for a logfmt value; the value stays on one line whatever it contains."""
    return json.dumps(text, ensure_ascii=False)


MOST_KEPT_BYTES: Final = 64 << 10
"""Most bytes kept for a slow reader. Events are also in the root's log."""
CLOSE_LIMIT_S: Final = 1.0
"""Seconds that closing waits for the reader."""


@contextmanager
def nonblocking(stream: TextIO) -> Iterator[TextIO]:
    """Yield a stream that writes to the same place as another stream, and never waits.

    Text that the reader does not take is kept for later. A write that would exceed the limit is left out as a
    whole, and the next write that fits says how many were left out.

    Args:
        stream: the other stream. A file never blocks, so a file is yielded as it is.
    """
    descriptor = _opened_anew(stream)
    if descriptor is None:
        yield stream
        return
    # Unbuffered between the two: each printed text is kept or left out as a whole.
    taker = cast(IO[bytes], _Nonblocking(descriptor))
    with io.TextIOWrapper(taker, stream.encoding, stream.errors, newline="", write_through=True) as ours:
        yield ours


def _opened_anew(stream: TextIO) -> int | None:
    """Open a terminal or a pipe once more: all who share one open description share its blocking mode."""
    try:
        stream.flush()
        number = stream.fileno()
        if not stream.isatty() and not stat.S_ISFIFO(os.fstat(number).st_mode):
            return None
        return os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # No file at all, or a terminal of another user's.
        return None


class _Nonblocking(io.RawIOBase):
    """Owns a descriptor that does not block, and the bytes that its reader has not taken yet.

    A write is passed on, kept, or left out as a whole and counted; closing waits for the reader.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._kept = bytearray()
        self._left_out = 0

    def writable(self) -> bool:
        """Return True: the stream is for writing only."""
        return True

    def isatty(self) -> bool:
        """Whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """Return the descriptor, which is not that of the original stream."""
        return self._descriptor

    def write(self, data: ReadableBuffer) -> int:
        """Pass text on, keep it, or leave it out as a whole; never waits."""
        text = bytes(data)
        self._pass_on()
        if len(self._kept) + len(text) > MOST_KEPT_BYTES:
            self._left_out += 1
            return len(text)
        if self._left_out:
            self._kept += f"... {self._left_out} writes were left out here: they were not read ...\n".encode()
            self._left_out = 0
        self._kept += text
        self._pass_on()
        return len(text)

    def flush(self) -> None:
        """Pass on as many of the kept bytes as the reader takes now."""
        if not self.closed:
            self._pass_on()

    def close(self) -> None:
        """Give the reader ``CLOSE_LIMIT_S`` to take the kept bytes, then close the descriptor."""
        if self.closed:
            return
        try:
            deadline = time.monotonic() + CLOSE_LIMIT_S
            poller = select.poll()
            poller.register(self._descriptor, select.POLLOUT)
            while self._kept and (remaining_s := deadline - time.monotonic()) > 0:
                poller.poll(1000 * remaining_s)
                self._pass_on()
        except OSError:  # The reader is gone.
            pass
        finally:
            os.close(self._descriptor)
            super().close()

    def _pass_on(self) -> None:
        try:
            while self._kept:
                del self._kept[: os.write(self._descriptor, self._kept)]
        except BlockingIOError:
            return
        except OSError:
            self._kept.clear()  # The reader has gone.
            raise
