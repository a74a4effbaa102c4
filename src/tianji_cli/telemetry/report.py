"""The result of a run, on stdout: its outcome, its directory, and the next commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from tianji_cli.errors import printable
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.quantities import duration, number, several, share
from tianji_cli.telemetry.snapshot import (
    OF_A_REPLAY,
    OF_EPISODES,
    OF_PACE,
    OF_VERSIONS,
    Metric,
    RoleStatus,
    Snapshot,
    Summary,
    lines,
    of_names,
)
from tianji_cli.telemetry.styles import FAILURE, GOOD, WARNING
from tianji_cli.telemetry.tables import print_facts, write_json

STATUS_STYLES: Final = {
    "finished": f"bold {GOOD}",
    "stopped": f"bold {WARNING}",
    "failed": f"bold {FAILURE}",
}


def print_result(
    summary: Summary, run: RunDirectory, json_to: str | None = None, *, goes_on: bool = True
) -> None:
    """Print the result for people, and as JSON for programs if the user asked for it.

    Args:
        json_to: file for the summary as JSON; "-" prints JSON on stdout and nothing else.
        goes_on: a stopped or failed run can be resumed.

    Raises:
        TianjiError: the JSON file cannot be written.
    """
    if not write_json(document_of(summary, run), json_to):
        return
    console = Console(highlight=False)
    headline = Text.assemble(
        summary.experiment, " ", (summary.status, STATUS_STYLES[summary.status]), f": {summary.reason}"
    )
    # In a pipe rich assumes a width of 80 columns; there lines stay whole.
    whole = not console.is_terminal
    console.print(headline, soft_wrap=whole)
    facts = [*facts_of(summary), *warnings_of(summary)]
    to_copy = [("run directory", Text(printable(str(run.path))))]
    to_copy += [
        (label, Text(printable(command), style="bold"))
        for label, command in _next_steps(summary, run, goes_on=goes_on)
    ]
    print_facts(facts, to_copy)


def document_of(summary: Summary, run: RunDirectory) -> dict[str, Any]:
    """Return the document of ``--json``: the summary of a run, and its directory as ``run``."""
    return {**summary.document(), "run": str(run.path.absolute())}


def print_lines(lines: Iterable[str], *, to_copy: bool = False) -> None:
    """Print lines for people: on a terminal they break between words, in a pipe they stay whole.

    Args:
        to_copy: the lines are commands, and stay whole on a terminal, too, so that each can be copied.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    for line in lines:
        console.print(printable(line), soft_wrap=to_copy or not console.is_terminal)


def facts_of(summary: Summary) -> Iterator[tuple[str, Text]]:
    """Yield the results of a run, each with its label."""
    yield "return", returns_of(summary)
    if summary.init is not None:
        yield "began with", Text(f"{several(len(summary.init['taken']), 'tensor')} of {summary.init['from']}")
    yield from _lines(summary, OF_EPISODES)
    if summary.evaluation is not None:
        text = summary.evaluation.described("greedy episodes", "experiment.eval_max_s, eval_max_steps")
        yield "evaluation", Text(text, style=WARNING if summary.evaluation.left_out else "")
        if summary.evaluation.agents is not None:
            yield "of each agent", Text(of_names(summary.evaluation.agents))
        if summary.evaluation.metrics is not None:
            yield "its metrics", Text(of_names(summary.evaluation.metrics))
    for threshold, seconds in summary.learner.time_to.items():
        yield f"time to {threshold:g}", Text("not reached" if seconds is None else duration(seconds))
    yield from _lines(summary, OF_PACE)
    yield from _lines(summary, OF_VERSIONS)
    yield from _lines(summary, OF_A_REPLAY)
    yield (
        "samples",
        Text(
            f"{summary.produced} = {summary.received} received + {summary.in_flight} in flight + "
            f"{summary.lost} lost + {summary.dropped} dropped"
        ),
    )
    busy = _busy(summary.roles)
    if busy:
        yield "busy", Text(busy)


def returns_of(state: Snapshot, style: str = "bold") -> Text:
    """Return the mean return, in a style, and the episodes that it averages."""
    learner = state.learner
    if learner.mean_100 is None:
        return Text("no episode has ended")
    total = several(learner.episodes, "episode")
    is_all = learner.episodes_in_mean == learner.episodes
    behind = total if is_all else f"the last {learner.episodes_in_mean} of {total}"
    behind += f" in {len(state.by_group)} groups" if state.by_group else ""
    best = "" if learner.best_mean_100 is None else f", best {number(learner.best_mean_100)}"
    length = "" if learner.mean_length is None else f", {number(learner.mean_length)} steps"
    return Text.assemble((number(learner.mean_100), style), f"  mean of {behind}{length}{best}")


def _lines(summary: Summary, metrics: Iterable[Metric]) -> Iterator[tuple[str, Text]]:
    lost = summary.averaging is not None and summary.averaging.lost
    for label, text in lines(summary, metrics, attrgetter("result")):
        yield label, Text(text, style=WARNING if label == "averaging" and lost else "")


def _busy(roles: tuple[RoleStatus, ...]) -> str:
    shares: dict[str, list[float]] = {}
    for role in roles:
        if role.busy is not None:
            shares.setdefault(role.role, []).append(role.busy)
    described = []
    for kind, busy in shares.items():
        low, high = share(min(busy)), share(max(busy))
        described.append(f"{kind} {low}" if len(busy) == 1 else f"{len(busy)} {kind}s {low} to {high}")
    return ", ".join(described)


def warnings_of(summary: Summary) -> Iterator[tuple[str, Text]]:
    """Yield warnings for a reader of the figures, each with its label."""
    restarts = {role.name: role.restarts for role in summary.roles if role.restarts}
    if restarts:
        each = ", ".join(
            f"{name} {times} times" if times > 1 else f"{name} once" for name, times in restarts.items()
        )
        yield "restarted", Text(each, style=WARNING)
    if summary.rejected_frames:
        yield (
            "rejected",
            Text(f"{summary.rejected_frames} messages that were no frames of this job", style=WARNING),
        )
    given_up = summary.buffer.steps_given_up
    if given_up:
        what = (
            f"{several(given_up, 'step')} belonged to samples whose beginning had left the "
            "replay before they were complete: a larger distribution.buffer.capacity would be right"
        )
        yield "given up", Text(what, style=WARNING)
    if summary.unaccounted:
        yield (
            "unaccounted",
            Text(f"{summary.unaccounted} samples; do not trust this run's counts", style=f"bold {FAILURE}"),
        )


def _next_steps(summary: Summary, run: RunDirectory, *, goes_on: bool) -> Iterator[tuple[str, str]]:
    path = shlex.quote(str(run.path))
    if summary.status != "failed":
        yield "evaluate it", f"tianji eval {path}"
    if goes_on and summary.status != "finished" and summary.learner.env_steps:
        yield "go on with it", f"tianji train --resume {path}"
    if summary.status == "failed":
        yield "see its logs", f"ls {shlex.quote(str(run.path / 'logs'))}"
    else:
        yield "see its curves", f"tensorboard --logdir {path}"
