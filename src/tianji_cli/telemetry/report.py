"""The result of a run, on stdout: what happened, where it is, what to do with it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tianji_cli.errors import TianjiError
from tianji_cli.files.rundir import RunDirectory, write_whole
from tianji_cli.quantities import count, duration, memory, number, rate, several, share, spread
from tianji_cli.telemetry.evaluation import Evaluation
from tianji_cli.telemetry.snapshot import GroupStanding, ReplayFill, RoleSummary, Summary

STATUS_STYLES: Final = {"finished": "bold green", "stopped": "bold yellow", "failed": "bold red"}


def print_result(
    summary: Summary, run: RunDirectory, json_to: str | None = None, *, goes_on: bool = True
) -> None:
    """Print the result for people, and for programs where they asked for it.

    Args:
        summary: of the run.
        run: its directory.
        json_to: file for the summary as JSON; "-" prints that on stdout and nothing else.
        goes_on: a run that was stopped or has failed can be trained on.

    Raises:
        TianjiError: the JSON file cannot be written.
    """
    if json_to is not None:
        write_json(summary.document(), json_to)
    if json_to != "-":
        _print_facts(summary, run, goes_on=goes_on)


def write_json(document: Mapping[str, Any], to: str) -> None:
    """Write a JSON document to a file, or to stdout for "-".

    Raises:
        TianjiError: the file cannot be written.
    """
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if to == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        write_whole(Path(to), text.encode())
    except OSError as cause:
        raise TianjiError(f"cannot write {to}: {cause.strerror}; --json takes another path") from cause


def print_lines(lines: Iterable[str], *, to_copy: bool = False) -> None:
    """Print lines for people: on a terminal they break between words, in a pipe they stay whole.

    Args:
        lines: to print.
        to_copy: they are commands, and stay whole on a terminal, too: a line that it wraps is one line.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    for line in lines:
        console.print(line, soft_wrap=to_copy or not console.is_terminal)


def _print_facts(summary: Summary, run: RunDirectory, *, goes_on: bool) -> None:
    console = Console(highlight=False)
    headline = Text.assemble(
        summary.experiment, " ", (summary.status, STATUS_STYLES[summary.status]), f": {summary.reason}"
    )
    # In a pipe rich takes every reader for 80 columns wide; there lines stay whole.
    whole = not console.is_terminal
    console.print(headline, soft_wrap=whole)
    facts = [*_facts(summary), *_warnings(summary)]
    to_copy = [("run directory", Text(str(run.path)))]
    to_copy += [
        (label, Text(command, style="bold")) for label, command in _next_steps(summary, run, goes_on=goes_on)
    ]
    width = max(len(label) for label, _ in [*facts, *to_copy])
    if whole:
        for label, fact in facts:
            console.print(Text.assemble((label.ljust(width), "cyan"), "  ", fact), soft_wrap=True)
    else:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="cyan", width=width)
        table.add_column(overflow="fold")
        for row in facts:
            table.add_row(*row)
        console.print(table)
    for label, text in to_copy:  # A line that the terminal wraps is still one line.
        console.print(Text.assemble((label.ljust(width), "cyan"), "  ", text), soft_wrap=True)


def _facts(summary: Summary) -> Iterator[tuple[str, Text]]:
    returns = summary.returns
    if returns.mean_100 is None:
        yield "return", Text("no episode has ended")
    else:
        behind = f"mean of {'the last 100 of ' if returns.episodes > 100 else ''}{returns.episodes} episodes"
        behind += f" in {summary.groups} groups" if summary.groups > 1 else ""
        best = "" if returns.best_mean_100 is None else f", best {number(returns.best_mean_100)}"
        yield "return", Text.assemble((number(returns.mean_100), "bold"), f"  {behind}{best}")
    if returns.win_rate is not None:
        judged = several(returns.episodes_in_mean, "episode")
        yield "win rate", Text(f"{share(returns.win_rate)} of the last {judged}")
    if summary.evaluation is not None:
        yield from _facts_of_evaluation(summary.evaluation)
    for threshold, seconds in summary.time_to.items():
        yield f"time to {threshold:g}", Text("not reached" if seconds is None else duration(seconds))
    yield (
        "trained",
        Text(
            f"{_env_steps(summary)}, {count(summary.updates)} updates in "
            f"{duration(summary.train_s)}, {duration(summary.wall_s)} in all"
        ),
    )
    yield (
        "rates",
        Text(
            f"produced {rate(summary.produced_per_s)}, received {rate(summary.received_per_s)}, "
            f"consumed {rate(summary.consumed_per_s)}"
        ),
    )
    if summary.bottleneck is not None:
        yield "bottleneck", Text(str(summary.bottleneck))
    ratio = summary.replay_ratio
    actual = "no update made" if ratio.actual is None else f"{ratio.actual:.2f}"
    if ratio.target:  # Otherwise no learner lived to say it.
        yield "replay ratio", Text(f"{actual}, target {ratio.target:.2f}")
    if summary.staleness is not None:
        yield "policy lag", Text(f"{spread(summary.staleness)} versions")
    yield from _facts_of_groups(summary)
    yield from _facts_of_replay(summary)
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


def _facts_of_evaluation(evaluation: Evaluation) -> Iterator[tuple[str, Text]]:
    said = evaluation.described("greedy episodes", "experiment.eval_max_s, eval_max_steps")
    yield "evaluation", Text(said, style="yellow" if evaluation.left_out else "")
    if evaluation.agents is not None:
        yield "of each agent", Text(of_agents(evaluation.agents))


def of_agents(means: Mapping[str, float]) -> str:
    """Write the mean return of each agent of a team."""
    return ", ".join(f"{name} {number(mean)}" for name, mean in means.items())


def _env_steps(summary: Summary) -> str:
    frames = summary.frames or 0
    taken = f", {count(frames)} frames" if frames > summary.env_steps else ""
    beyond = f" ({count(summary.overshoot)} beyond the goal)" if summary.overshoot else ""
    return f"{count(summary.env_steps)} env steps{beyond}{taken}"


def _facts_of_groups(summary: Summary) -> Iterator[tuple[str, Text]]:
    if summary.averaging is not None:
        yield "averaging", Text(str(summary.averaging), style="yellow" if summary.averaging.lost else "")
    if summary.by_group:
        yield "groups", Text("; ".join(map(_group, summary.by_group)))


def _facts_of_replay(summary: Summary) -> Iterator[tuple[str, Text]]:
    if summary.replay is not None:
        yield "replay", Text(_replay(summary.replay, summary.staleness_p))
    if summary.sample_age is not None:
        yield "sample age", Text(f"{spread(summary.sample_age)} env steps")
    if summary.uses is not None:
        yield "uses", Text(f"{spread(summary.uses)} of each sample")
    if summary.stale_priorities:
        late = f"{summary.stale_priorities} came after their samples had made room for others"
        yield "priorities", Text(late)


def _replay(replay: ReplayFill, staleness_p: float | None) -> str:
    filled = f"{count(replay.size)} of {count(replay.capacity)} env steps, {memory(replay.nbytes)}"
    return filled if staleness_p is None else f"{filled}; a batch is {staleness_p:.3g} of it (P, Equation 2)"


def _group(group: GroupStanding) -> str:
    mean = "no episode has ended" if group.mean_100 is None else f"return {number(group.mean_100)}"
    return f"{group.group}: {mean}, {count(group.env_steps)} env steps, {count(group.updates)} updates"


def _busy(roles: tuple[RoleSummary, ...]) -> str:
    shares: dict[str, list[float]] = {}
    for role in roles:
        if role.busy is not None:
            shares.setdefault(role.role, []).append(role.busy)
    described = []
    for kind, busy in shares.items():
        low, high = share(min(busy)), share(max(busy))
        described.append(f"{kind} {low}" if len(busy) == 1 else f"{len(busy)} {kind}s {low} to {high}")
    return ", ".join(described)


def _warnings(summary: Summary) -> Iterator[tuple[str, Text]]:
    restarts = {f"{role.role}-{role.rank}": role.restarts for role in summary.roles if role.restarts}
    if restarts:
        each = ", ".join(
            f"{name} {times} times" if times > 1 else f"{name} once" for name, times in restarts.items()
        )
        yield "restarted", Text(each, style="yellow")
    if summary.rejected_frames:
        yield (
            "rejected",
            Text(f"{summary.rejected_frames} messages that were no frames of this job", style="yellow"),
        )
    if summary.steps_given_up:
        what = (
            f"{several(summary.steps_given_up, 'step')} belonged to episodes whose beginning had left the "
            "replay before they ended: a larger distribution.buffer.capacity would be right"
        )
        yield "given up", Text(what, style="yellow")
    if summary.unaccounted:
        yield (
            "unaccounted",
            Text(f"{summary.unaccounted} samples; do not trust this run's counts", style="bold red"),
        )


def _next_steps(summary: Summary, run: RunDirectory, *, goes_on: bool) -> Iterator[tuple[str, str]]:
    path = shlex.quote(str(run.path))
    if summary.status != "failed":
        yield "evaluate it", f"tianji eval {path}"
    if goes_on and summary.status != "finished" and summary.env_steps:
        yield "go on with it", f"tianji train --resume {path}"
    if summary.status == "failed":
        yield "see its logs", f"ls {shlex.quote(str(run.path / 'logs'))}"
    else:
        yield "see its curves", f"tensorboard --logdir {path}"
