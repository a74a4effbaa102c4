"""Finds the runs of a comparison and reads their files.

No config is built, so a run may come from another machine, and its environment need not be installed. Runs
that cannot be compared are refused here, before anything is computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from tianji_cli.config.schema import STOP_RULES
from tianji_cli.errors import TianjiError, UsageError, cut, describe, errors_as, printable
from tianji_cli.files.regular import read_toml
from tianji_cli.files.rundir import DEFAULT_OUT, RunDirectory, RunDirectoryError
from tianji_cli.runs.comparison.curves import Curve, curve_through, read_curve
from tianji_cli.telemetry.metrics import read_history, read_summary
from tianji_cli.telemetry.run_state import State, read_state
from tianji_cli.telemetry.snapshot import Summary

BUDGETS: Final = {name for name, rule in STOP_RULES.items() if rule.is_budget}
MOST_NAMED: Final = 4
"""Most runs that a message names."""

Config = Mapping[str, Any]
Read = TypeVar("Read")


@dataclass(frozen=True, kw_only=True, eq=False)
class ComparedRun:
    """Results of a run; two are equal only if they are one object.

    Attributes:
        config: its ``config.toml``, unchecked.
        status: state of the run.
        training: mean return of the last 100 training episodes; never empty.
        best: best mean of 100 training episodes so far; empty before so many have ended.
        evaluations: means of the evaluations during training all of whose episodes have ended.
        evaluation: mean of the evaluation at the end; None if there was none, or it was cut off.
        was_cut_off: only the shorter episodes of the evaluation at the end have ended.
        time_to: seconds to each of ``experiment.thresholds``, None for one not reached; empty without a
            summary.
        reached_goal: the run ended because it was good enough, not because its budget was used up.
    """

    run: RunDirectory
    config: Config
    status: State
    training: Curve
    best: Curve
    evaluations: Curve
    evaluation: float | None
    was_cut_off: bool
    time_to: Mapping[float, float | None]
    reached_goal: bool

    @property
    def name(self) -> str:
        """Name of the run in messages."""
        return printable(str(self.run.path))

    @property
    def seed(self) -> int | None:
        """Seed of its random streams; None if its config has no integer there."""
        found = self.section("experiment").get("seed")
        return found if isinstance(found, int) else None

    @property
    def experiment(self) -> str:
        """Name of its experiment."""
        return printable(str(self.section("experiment").get("name", self.run.path.parent.name)))

    @property
    def environment(self) -> str:
        """Type and id of its environment."""
        section = self.section("environment")
        return printable(" ".join(str(section[key]) for key in ("type", "id") if key in section))

    def section(self, name: str) -> Config:
        """One section of its config; empty if there is none."""
        return _table(self.config, name)


def find_runs(words: Sequence[str], out: Path = DEFAULT_OUT) -> tuple[list[RunDirectory], list[str]]:
    """Find the runs that a user names, each once.

    A word is a run's path, a directory with runs below it, ``name/n``, ``name/seeds-n``, or ``name`` for
    its newest run.

    Returns:
        The runs that have begun, and a warning that names the others, if there are any.

    Raises:
        UsageError: a word names no run.
    """
    runs: dict[Path, RunDirectory] = {}
    waiting: dict[Path, RunDirectory] = {}
    for word in words:
        for run in _meant(word, out):
            into = runs if run.config.is_file() else waiting
            into.setdefault(run.path.resolve(), run)
    if not runs:
        raise UsageError(f"{listed_places(waiting.values())} has not begun, and has left nothing yet")
    warnings = [f"not begun, and left out: {listed_places(waiting.values())}"] if waiting else []
    return list(runs.values()), warnings


def _meant(word: str, out: Path) -> list[RunDirectory]:
    place = Path(word)
    if (place / "config.toml").is_file():
        return [RunDirectory(place)]
    if found := _below(place):
        return found
    try:
        return [RunDirectory.find(word, out)]
    except RunDirectoryError:
        if found := _below(out / word):
            return found
        if place.is_dir():
            raise UsageError(f"{cut(repr(word))} is no run, and there are none below it") from None
        raise


def _below(place: Path) -> list[RunDirectory]:
    """List the runs below a directory, by their numbers; links and hidden directories are left out."""
    found, ahead = [], _folders_in(place)
    while ahead:
        path = ahead.pop()
        run = RunDirectory(path)
        # A seed that has not begun has its directory, and no config yet.
        if os.path.isfile(run.config) or (path.name.isdecimal() and os.path.isdir(run.checkpoints)):
            found.append(run)
        else:
            ahead += _folders_in(path)
    return found


def _folders_in(place: Path) -> list[Path]:
    """List the subdirectories of a directory, the last first; empty where it cannot be read."""
    try:
        with os.scandir(place) as entries:
            folders = [Path(one) for one in entries if one.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted((path for path in folders if path.name[0] != "."), key=_by_number, reverse=True)


def _by_number(path: Path) -> tuple[str, int, str]:
    name = path.name.rstrip("0123456789")
    return name, int(path.name[len(name) :] or 0), path.name


def read_runs(runs: Iterable[RunDirectory]) -> tuple[list[ComparedRun], list[str]]:
    """Read the results of runs, and check that they can be compared.

    Returns:
        The runs that have returns, and warnings that name the others, if there are any.

    Raises:
        UsageError: none has returns, or they are of different environments.
        TianjiError: all are damaged, or cannot be read.
    """
    read, warnings = read_each(runs, _read)
    found = [one for one in read if one.training.returns]
    silent = [f"{one.name} ({one.status})" for one in read if not one.training.returns]
    if not found:
        raise UsageError(f"nothing to compare: no episode has ended in {_few(silent, '; ')}")
    played: dict[str, list[ComparedRun]] = {}
    for one in found:
        played.setdefault(one.environment, []).append(one)
    if len(played) > 1:
        each = "\n".join(
            f"{environment}: {listed_places(one.run for one in of)}"
            for environment, of in list(played.items())[:MOST_NAMED]
        )
        raise UsageError(f"returns of different environments cannot be compared\n{each}")
    return found, warnings + ([f"no episode has ended, and left out: {_few(silent)}"] if silent else [])


def read_each(
    runs: Iterable[RunDirectory], read: Callable[[RunDirectory], Read]
) -> tuple[list[Read], list[str]]:
    """Read runs with ``read``; returns the results, and a warning for each damaged run, which is left out.

    Raises:
        TianjiError: all are damaged.
    """
    found, damaged = [], []
    for run in runs:
        try:
            found.append(read(run))
        except TianjiError as cause:
            damaged.append(cause)
    if damaged and not found:
        raise damaged[0]
    return found, [printable(f"damaged, and left out: {cause}") for cause in damaged]


def listed_places(runs: Iterable[RunDirectory]) -> str:
    """List the paths of a few of the runs."""
    return _few([printable(str(run.path)) for run in runs])


def _few(names: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return between.join(names[:MOST_NAMED]) + more


def listed(runs: Iterable[ComparedRun]) -> str:
    """List the paths of a few of the runs."""
    return listed_places(one.run for one in runs)


def read_config(run: RunDirectory) -> Config:
    """Read the config of a run, unchecked.

    Raises:
        TianjiError: it is damaged, or cannot be read.
    """
    with errors_as(TianjiError, f"cannot read {run.config}", OSError, ValueError):
        config = read_toml(run.config)
    if stray := [name for name, section in config.items() if not isinstance(section, dict)]:
        raise TianjiError(f"cannot read {run.config}: {stray[0]} is no section")
    return config


def read_rows(run: RunDirectory) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read snapshots and evaluations of a run; none before the first is written.

    Raises:
        TianjiError: they are damaged, or cannot be read.
    """
    try:
        return read_history(run.metrics)
    except FileNotFoundError:
        return [], []
    except (OSError, ValueError) as cause:
        raise TianjiError(f"cannot read {run.metrics}: {describe(cause)}") from cause
    except (KeyError, TypeError, AttributeError) as cause:
        raise strange_rows(run) from cause


def strange_rows(run: RunDirectory) -> TianjiError:
    """Return the error for rows that are JSON, but not rows of this version."""
    return TianjiError(f"{run.metrics} has rows that this version of tianji cannot read")


def _read(run: RunDirectory) -> ComparedRun:
    config = read_config(run)
    status = read_state(run).status
    rows, evaluated = read_rows(run)
    # A resumed run that is not over has the summary of an earlier session.
    is_over = status in {"finished", "stopped", "failed"}
    summary = read_summary(run.summary) if is_over or status == "damaged" else None
    if summary is not None and summary.unaccounted:
        raise TianjiError(
            f"{run.path} does not account for {summary.unaccounted} samples, so there are no figures"
        )
    try:
        training, best = (read_curve(rows, _last(summary, of), of) for of in ("mean_100", "best_mean_100"))
        evaluations = curve_through(list(_played(evaluated)))
    except (KeyError, TypeError) as cause:
        raise strange_rows(run) from cause
    played = None if summary is None else summary.evaluation
    return ComparedRun(
        run=run,
        config=config,
        status=status,
        training=training,
        best=best,
        evaluations=evaluations,
        evaluation=float(played.mean) if played is not None and not played.left_out else None,
        was_cut_off=played is not None and played.left_out > 0,
        time_to={} if summary is None else summary.learner.time_to,
        reached_goal=summary is not None and _has_reached_goal(summary, config),
    )


def _table(of: Config, name: str) -> Config:
    found = of.get(name)
    return found if isinstance(found, Mapping) else {}


def _last(summary: Summary | None, of: str) -> dict[str, Any] | None:
    """Return the last point of a curve; None if there is none yet, or it has no value."""
    if summary is None or getattr(summary.learner, of) is None:
        return None
    learner = summary.learner
    return {"train_s": learner.train_s, "env_steps": learner.env_steps, "returns": {of: getattr(learner, of)}}


def _played(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[float, float, float]]:
    """Yield the complete evaluations that are newer than those before them, whichever group they are of."""
    at = (0.0, -1.0)
    for row in rows:
        if row["mean"] is None or row.get("left_out") or row["train_s"] <= at[0] or row["env_steps"] <= at[1]:
            continue
        at = row["train_s"], row["env_steps"]
        yield *at, row["mean"]


def _has_reached_goal(summary: Summary, config: Config) -> bool:
    """Whether a run ended by a rule other than its budget; False if in doubt."""
    stop = _table(_table(config, "experiment"), "stop")
    spent = {"env_steps": summary.learner.env_steps, "wall_s": summary.learner.train_s}
    within = all(spent[rule] < stop[rule] for rule in BUDGETS if isinstance(stop.get(rule), int | float))
    return summary.status == "finished" and within and any(rule not in BUDGETS for rule in stop)
