"""A page on a run, or on several beside one another: one HTML file, which needs no network and no script."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from tianji_cli.errors import TianjiError, UsageError, printable
from tianji_cli.files.rundir import write_whole
from tianji_cli.quantities import memory, ranges, several, share
from tianji_cli.runs.comparison.compare import Comparison, compare
from tianji_cli.runs.comparison.report import conditions, table, verdicts
from tianji_cli.runs.comparison.runs import find_runs, listed_places, read_runs
from tianji_cli.runs.report.drawing import (
    BUSY,
    PACE,
    RETURNS,
    Part,
    Picture,
    account,
    account_told,
    pictures_in_plots,
    pictures_of,
    pictures_of_comparison,
)
from tianji_cli.runs.report.reading import ReportedRun, read_reported
from tianji_cli.runs.report.settings import Setting, settings_of
from tianji_cli.telemetry.report import facts_of, warnings_of
from tianji_cli.telemetry.run_state import in_short
from tianji_cli.telemetry.snapshot import METRICS, RoleStatus, RoleSummary, lines

MOST_RUNS: Final = 500
"""Of a page: each has a section."""
MOST_ROLES: Final = 64
"""More roles of a run are summed up."""


@dataclass(frozen=True)
class Command:
    """A command to be copied, and what it does."""

    does: str
    words: str


@dataclass(frozen=True)
class Busy:
    """A line of the table of roles: one, or those of a kind.

    Attributes:
        share: of the time at work, 0 to 1; None if it is not known.
        said: the same in words.
    """

    role: str
    group: str
    host: str
    cores: str
    restarts: int
    share: float | None
    said: str


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """What the template shows of a run.

    Attributes:
        prefix: of the ids of its elements.
        outline: only the beginning is shown, beside others.
        account: where samples went; empty while it is not known.
        account_told: the same, in words.
    """

    run: ReportedRun
    prefix: str
    outline: bool
    begun: str
    size: str
    trains: dict[str, str]
    commands: list[Command]
    facts: list[tuple[str, str]]
    warnings: list[tuple[str, str]]
    bottleneck: str
    account: list[Part]
    account_told: str
    roles: list[Busy]
    returns: list[Picture]
    pace: list[Picture]
    busy: list[Picture]
    left: list[Picture]
    settings: list[Setting]

    @property
    def sections(self) -> dict[str, str]:
        """Headings by their ids, of what there is to be shown."""
        run = self.run
        found = {
            "run": "What was run",
            "result": "What it came to" if run.summary is not None else "How far it is",
            "returns": self.returns and "Returns",
            "pace": self.pace and "Pace, lag and balance",
            "samples": self.account and "Where every sample went",
            "roles": self.roles and "How busy the roles were",
            "drawn": self.left and "Who did what, and came from where",
            "events": (run.events or run.tracebacks) and "What happened",
            "machine": "Machine and versions",
            "config": "Config",
        }
        return {id_: str(title) for id_, title in found.items() if title}


@dataclass(frozen=True, kw_only=True)
class ComparisonPage:
    """What the template shows of several runs together."""

    environment: str
    conditions: dict[str, str]
    warnings: Sequence[str]
    headings: list[str]
    cells: list[list[str]]
    verdicts: list[str]
    pictures: list[Picture]
    keys: list[str]
    differs: list[tuple[str, list[str]]]


def write_report(words: Sequence[str], out: Path) -> str:
    """Write a page on the runs that some words mean.

    Returns:
        What was written, in words.

    Raises:
        UsageError: a word means no run, they cannot be compared, or there is no such place.
        TianjiError: a run is damaged, or of another version; the page cannot be written.
    """
    check_place(out)
    meant = find_runs(words)
    if len(meant.runs) > MOST_RUNS:
        raise UsageError(f"{len(meant.runs)} runs are more than a page has room for, {MOST_RUNS}: name fewer")
    waiting = [f"not begun, and left out: {listed_places(meant.waiting)}"] if meant.waiting else []
    comparison = None
    if len(meant.runs) > 1:
        comparison = _comparison_page(compare(read_runs(meant.runs), "env_steps", waiting))
    pages = [
        _run_page(read_reported(run, outline=comparison is not None), f"run-{place}-", comparison is not None)
        for place, run in enumerate(meant.runs, 1)
    ]
    again = shlex.join(["tianji", "report", *words, "--out", str(out)])
    content = _render(pages, comparison, again, waiting).encode()
    try:
        write_whole(out, content)
    except OSError as cause:
        raise TianjiError(f"cannot write {out}: {cause.strerror}; --out takes another path") from cause
    return f"{printable(str(out))}: {several(len(pages), 'run')}, {memory(len(content))}"


def check_place(out: Path) -> None:
    """Refuse a place where no page can be.

    Raises:
        UsageError: says what would be right.
    """
    if out.is_dir() or not out.parent.is_dir():
        what = "it is a directory" if out.is_dir() else f"there is no directory {out.parent}"
        raise UsageError(f"--out: cannot write {out}: {what}; a file such as report.html would be right")


def _render(
    pages: Sequence[RunPage], comparison: ComparisonPage | None, again: str, waiting: Sequence[str]
) -> str:
    templates = Environment(
        loader=PackageLoader("tianji_cli.runs.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("page.html").render(
        pages=pages,
        comparison=comparison,
        again=again,
        waiting=waiting,
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        version=version("tianji"),
    )


# -- of a run ------------------------------------------------------------------------------------------


def _run_page(run: ReportedRun, prefix: str, outline: bool) -> RunPage:
    summary, newest = run.summary, run.snapshot
    known = summary if summary is not None else newest
    parts: list[Part] = []
    told = ""
    if summary is not None:
        parts = account([summary.received, summary.in_flight, summary.lost, summary.dropped])
        told = account_told(parts, summary.produced)
        facts = [(label, text.plain) for label, text in facts_of(summary)]
        roles: Sequence[RoleSummary | RoleStatus] = summary.roles
    else:
        facts = [] if newest is None else list(lines(newest, METRICS, attrgetter("live")))
        roles = () if newest is None else newest.roles
    warnings = [] if summary is None else [(label, text.plain) for label, text in warnings_of(summary)]
    drawn = {} if outline else pictures_of(run, prefix)
    begun_s = run.state.begun_s
    return RunPage(
        run=run,
        prefix=prefix,
        outline=outline,
        begun="" if begun_s is None else f"{datetime.fromtimestamp(begun_s, UTC):%Y-%m-%d %H:%M} UTC",
        size=memory(run.state.nbytes),
        trains={label: printable(text) for label, text in in_short(run.config).items()},
        commands=list(_commands(run)),
        facts=facts,
        warnings=warnings,
        bottleneck="" if known is None or known.bottleneck is None else str(known.bottleneck),
        account=parts,
        account_told=told,
        roles=_busy(roles),
        returns=[drawn[name] for name in RETURNS if name in drawn],
        pace=[drawn[name] for name in PACE if name in drawn],
        busy=[drawn[name] for name in BUSY if name in drawn],
        left=[] if outline else pictures_in_plots(run.run, prefix),
        settings=settings_of(run.config),
    )


def _commands(run: ReportedRun) -> Iterator[Command]:
    """List how a run is run again, gone on with, and looked at."""
    path, status = shlex.quote(str(run.run.path)), run.state.status
    yield Command("train it again, in a new directory", f"tianji train {shlex.quote(str(run.run.config))}")
    if status == "running":
        yield Command("watch it", f"tianji watch {path}")
        yield Command("end it, with a checkpoint", f"tianji stop {path}")
    has_checkpoint = (run.run.checkpoints / "last").exists()
    if has_checkpoint and status == "finished" and run.summary is not None:
        further = f"experiment.stop={{env_steps={2 * run.summary.learner.env_steps}}}"
        beyond = f"tianji train --resume {path} --set {shlex.quote(further)}"
        yield Command("go on with it, beyond its goal", beyond)
    elif has_checkpoint and status != "running":
        yield Command("go on with it", f"tianji train --resume {path}")
    if has_checkpoint:
        yield Command("evaluate its best policy", f"tianji eval {path}")
    if "tensorboard" in run.section("experiment").get("track", ()):
        yield Command("see all curves", f"tensorboard --logdir {path}")


def _busy(roles: Sequence[RoleSummary | RoleStatus]) -> list[Busy]:
    """Put roles into lines: one each, or if there are many one for each kind."""
    if len(roles) <= MOST_ROLES:
        return [_line([role]) for role in roles]
    kinds = dict.fromkeys(role.role for role in roles)
    return [_line([role for role in roles if role.role == kind]) for kind in kinds]


def _line(alike: Sequence[RoleSummary | RoleStatus]) -> Busy:
    shares = [role.busy for role in alike if role.busy is not None]
    middle = statistics.median(shares) if shares else None
    said = "not known" if middle is None else share(middle)
    if len(shares) > 1:
        said = f"{said}, from {share(min(shares))} to {share(max(shares))}"
    first = alike[0]
    hosts = dict.fromkeys(role.host for role in alike)
    cores = sorted({core for role in alike for core in getattr(role, "cores", ())})
    groups = sorted({role.group for role in alike if role.group is not None})
    return Busy(
        role=f"{first.role} {first.rank}" if len(alike) == 1 else f"{len(alike)} {first.role}s",
        group=ranges(groups),
        host=next(iter(hosts)) if len(hosts) == 1 else f"{len(hosts)} hosts",
        cores=ranges(cores),
        restarts=sum(role.restarts for role in alike),
        share=middle,
        said=said,
    )


# -- of several ----------------------------------------------------------------------------------------


def _comparison_page(found: Comparison) -> ComparisonPage:
    headings, cells = table(found)
    keys = list(dict.fromkeys(key for row in found.rows for key in row.group.differs))
    return ComparisonPage(
        environment=found.environment,
        conditions=conditions(found),
        warnings=found.warnings,
        headings=headings,
        cells=cells,
        verdicts=list(verdicts(found)),
        pictures=pictures_of_comparison(found),
        keys=keys,
        differs=[(row.name, [_said(row.group.differs.get(key)) for key in keys]) for row in found.rows],
    )


def _said(value: Any) -> str:
    return "none" if value is None else printable(str(value))
