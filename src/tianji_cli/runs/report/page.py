"""A page on one run or several: one HTML file, which needs no network and no script."""

from __future__ import annotations

import os
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from tianji_cli.errors import TianjiError, UsageError, os_errors_as, printable
from tianji_cli.files.rundir import write_whole
from tianji_cli.quantities import memory, number, ranges, several, share
from tianji_cli.runs.comparison.compare import Comparison, compare
from tianji_cli.runs.comparison.report import conditions, table, verdicts
from tianji_cli.runs.comparison.runs import find_runs, read_each, read_runs
from tianji_cli.runs.report.drawing import (
    BUSY,
    PACE,
    RETURNS,
    Picture,
    account,
    describe_account,
    pictures_in_plots,
    pictures_of,
    pictures_of_comparison,
)
from tianji_cli.runs.report.reading import ReportedRun, read_reported
from tianji_cli.runs.report.settings import ABSENT, Setting, settings_of, written
from tianji_cli.telemetry.plots import LOSS
from tianji_cli.telemetry.report import facts_of, returns_of, warnings_of
from tianji_cli.telemetry.run_state import summarise_config
from tianji_cli.telemetry.snapshot import METRICS, RoleStatus, in_rows, lines

MOST_BYTES: Final = 2_000_000
MOST_RUNS: Final = 500
"""Most runs of a page; each has a line of a table."""
MOST_SECTIONS: Final = 60
"""Most runs with a section of their own."""
TO_THE_MINUTE: Final = "%Y-%m-%d %H:%M UTC"
MOST_ROLES: Final = 64
"""Most roles of a run with a line each; more are summed up by kind."""


@dataclass(frozen=True)
class RunPage:
    """A run, as the template shows it.

    Attributes:
        prefix: prefix of the ids of its elements.
        drawn: its pictures, by the names of the plots; empty where it is one of several runs.
        left: pictures that other commands have left.
    """

    run: ReportedRun
    prefix: str
    drawn: Mapping[str, Picture]
    left: Sequence[Picture]

    @property
    def sections(self) -> dict[str, str]:
        """Headings by their ids, for the sections that have contents."""
        run = self.run
        found = {
            "run": "What was run",
            "result": "What it came to" if run.state.is_over else "How far it is",
            "returns": self.returns and "Returns",
            "losses": self.losses and "Losses and diagnostics",
            "pace": self.pace and "Pace, lag and balance",
            "samples": self.account and "Where every sample went",
            "roles": self.roles and "How busy the roles were",
            "drawn": self.left and "Who did what, and came from where",
            "events": (run.events or run.tracebacks) and "What happened",
            "machine": "Machine and versions",
            "config": "Config",
        }
        return {id_: str(title) for id_, title in found.items() if title}

    @property
    def returns(self) -> list[Picture]:
        """Learning curves."""
        return self._pictures(RETURNS)

    @property
    def losses(self) -> list[Picture]:
        """Plots of the losses that its update rule reports."""
        return self._pictures([name for name in self.drawn if name.startswith(LOSS)])

    @property
    def pace(self) -> list[Picture]:
        """Plots of throughput, policy lag, replay ratio and sample age."""
        return self._pictures(PACE)

    @property
    def busy(self) -> list[Picture]:
        """Plots of the busy shares of its roles over time."""
        return self._pictures(BUSY)

    def _pictures(self, names: Sequence[str]) -> list[Picture]:
        return [self.drawn[name] for name in names if name in self.drawn]

    @property
    def about(self) -> str:
        """Time of its beginning, if known, and size of its files."""
        begun_s, size = self.run.state.begun_s, memory(self.run.state.nbytes)
        return (
            size
            if begun_s is None
            else f"begun {datetime.fromtimestamp(begun_s, UTC):{TO_THE_MINUTE}}, {size}"
        )

    @property
    def best(self) -> str:
        """Best mean return of 100 episodes; empty if none is known."""
        found = self.run.state.best_mean_100
        return "" if found is None else number(found)

    @property
    def trains(self) -> dict[str, str]:
        """Summary of its config, by label."""
        return {label: printable(text) for label, text in summarise_config(self.run.config).items()}

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Commands for the run, each after its effect."""
        return list(_commands(self.run))

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Its numbers, each with its label."""
        run = self.run
        if run.summary is not None:
            return [(label, text.plain) for label, text in facts_of(run.summary)]
        if run.snapshot is None:
            return []
        return [
            ("return", returns_of(run.snapshot).plain),
            *lines(run.snapshot, METRICS, attrgetter("live")),
        ]

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """Warnings about its numbers, each with its label."""
        summary = self.run.summary
        return [] if summary is None else [(label, text.plain) for label, text in warnings_of(summary)]

    @property
    def bottleneck(self) -> str:
        """Its bottleneck; empty while unknown."""
        known = self.run.snapshot
        return "" if known is None or known.bottleneck is None else str(known.bottleneck)

    @property
    def account(self) -> list[dict[str, Any]]:
        """Account of its samples; empty while unknown."""
        of = self.run.summary
        return [] if of is None else account([of.received, of.in_flight, of.lost, of.dropped])

    @property
    def account_text(self) -> str:
        """Account of its samples in words."""
        summary = self.run.summary
        return "" if summary is None else describe_account(self.account, summary.produced)

    @property
    def roles(self) -> list[dict[str, Any]]:
        """Busy shares of its roles: a line each, or a line for each kind if there are many."""
        known = self.run.snapshot
        return [_line(alike) for alike in in_rows(() if known is None else known.roles, MOST_ROLES)]

    @property
    def settings(self) -> list[Setting]:
        """Its config, key by key."""
        return settings_of(self.run.config)


def write_report(words: Sequence[str], out: Path) -> str:
    """Write a page on the runs that some words name.

    Returns:
        Path, number of runs and size of the page, in words.

    Raises:
        UsageError: a word names no run, they cannot be compared, or there is no such place.
        TianjiError: a run is damaged, or of another version; the page cannot be written.
    """
    _check_place(out)
    meant, waiting = find_runs(words)
    if len(meant) > MOST_RUNS:
        raise UsageError(f"{len(meant)} runs are more than a page has room for, {MOST_RUNS}: name fewer")
    comparison = None
    if len(meant) > 1:
        reported, damaged = read_each(meant, partial(read_reported, outline=True))
        compared, left_out = read_runs(one.run for one in reported)
        warnings = [*waiting, *damaged, *left_out]
        comparison = _comparison_page(compare(compared, "env_steps", warnings))
        pages = [RunPage(one, f"run-{place}-", {}, ()) for place, one in enumerate(reported, 1)]
    else:
        found = read_reported(meant[0])
        pages = [RunPage(found, "", pictures_of(found), pictures_in_plots(found.run))]
    again = shlex.join(["tianji", "report", *words, "--out", str(out)])
    content = _render(pages, comparison, again, waiting).encode()
    if len(content) > MOST_BYTES:
        size = f"{memory(len(content))}, and {memory(MOST_BYTES)} are the most"
        raise UsageError(f"the page would have {size}: name fewer runs")
    with os_errors_as(TianjiError, f"cannot write {out}", "--out takes another path"):
        write_whole(out, content)
    return f"{printable(str(out))}: {several(len(pages), 'run')}, {memory(len(content))}"


def _check_place(out: Path) -> None:
    """Refuse a path that no page can be written to.

    Raises:
        UsageError: the message says what would be right.
    """
    if out.is_dir():
        what = "it is a directory"
    elif not out.parent.is_dir():
        what = f"there is no directory {out.parent}"
    elif not os.access(out if out.exists() else out.parent, os.W_OK):
        what = "it may not be written to"
    else:
        return
    raise UsageError(f"--out: cannot write {out}: {what}; a file such as report.html would be right")


def _render(
    pages: Sequence[RunPage], comparison: Mapping[str, Any] | None, again: str, waiting: Sequence[str]
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
        most_sections=MOST_SECTIONS,
        again=again,
        waiting=waiting,
        made=f"{datetime.now(UTC):{TO_THE_MINUTE}}",
        version=version("tianji"),
    )


# -- of a run ------------------------------------------------------------------------------------------


def _commands(run: ReportedRun) -> Iterator[tuple[str, str]]:
    """Yield the commands that repeat a run, resume it, and show it, each after its effect."""
    path, status = shlex.quote(str(run.run.path)), run.state.status
    yield "train it again, in a new directory", f"tianji train {shlex.quote(str(run.run.config))}"
    if status == "running":
        yield "watch it", f"tianji watch {path}"
        yield "end it, with a checkpoint", f"tianji stop {path}"
    has_checkpoint = (run.run.checkpoints / "last").exists()
    if has_checkpoint and status == "finished" and run.summary is not None:
        further = f"experiment.stop={{env_steps={2 * run.summary.learner.env_steps}}}"
        beyond = f"tianji train --resume {path} --set {shlex.quote(further)}"
        yield "go on with it, beyond its goal", beyond
    elif has_checkpoint and status != "running":
        yield "go on with it", f"tianji train --resume {path}"
    if has_checkpoint:
        yield "evaluate its best policy", f"tianji eval {path}"
    if "tensorboard" in run.section("experiment").get("track", ()):
        yield "see all curves", f"tensorboard --logdir {path}"


def _line(alike: Sequence[RoleStatus]) -> dict[str, Any]:
    """Return a line of the table of roles: one role, or all of a kind.

    ``share`` is the busy share, 0 to 1, and None if it is unknown; ``words`` has it in words.
    """
    shares = [role.busy for role in alike if role.busy is not None]
    middle = statistics.median(shares) if shares else None
    words = "not known" if middle is None else share(middle)
    if len(shares) > 1:
        words = f"{words}, from {share(min(shares))} to {share(max(shares))}"
    first = alike[0]
    hosts = dict.fromkeys(role.host for role in alike)
    cores = sorted({core for role in alike for core in role.cores})
    groups = sorted({role.group for role in alike if role.group is not None})
    return {
        "role": f"{first.role} {first.rank}" if len(alike) == 1 else f"{len(alike)} {first.role}s",
        "group": ranges(groups),
        "host": next(iter(hosts)) if len(hosts) == 1 else f"{len(hosts)} hosts",
        "cores": ranges(cores),
        "restarts": sum(role.restarts for role in alike),
        "share": middle,
        "words": words,
    }


# -- of several ----------------------------------------------------------------------------------------


def _comparison_page(found: Comparison) -> dict[str, Any]:
    """Return several runs together, as the template shows them."""
    headings, cells = table(found)
    differs = _differs(found)
    sections = {
        "groups": "Groups",
        "curves": "Curves and intervals",
        "differs": "What differs",
        "runs": "The runs",
    }
    if not differs:
        del sections["differs"]
    return {
        "environment": found.environment,
        "sections": sections,
        "conditions": conditions(found),
        "warnings": found.warnings,
        "headings": headings,
        "cells": cells,
        "verdicts": list(verdicts(found)),
        "pictures": pictures_of_comparison(found),
        "differs": differs,
    }


def _differs(found: Comparison) -> list[tuple[str, ...]]:
    """Return a table of the differing keys, headings first; empty if there are none.

    The more numerous of groups and keys run from top to bottom.
    """
    keys = list(dict.fromkeys(key for row in found.rows for key in row.group.differs))
    if not keys:
        return []
    lines = [("group", *keys)]
    lines += [(row.name, *(_value(row.group.differs.get(key)) for key in keys)) for row in found.rows]
    if len(keys) <= len(found.rows):
        return lines
    (_, *names), *others = zip(*lines, strict=True)
    return [("key", *names), *others]


def _value(value: Any) -> str:
    return ABSENT if value is None else written(value)
