"""Several seeds of one config: their remaining trainings, and a summary of their results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import ProcessExit, TianjiError, UsageError, errors_as
from tianji_cli.files.rundir import RunDirectory, write_whole
from tianji_cli.files.seeds import SeedsDirectory
from tianji_cli.limits import usable_cores
from tianji_cli.quantities import exact
from tianji_cli.runs.comparison.statistics import interval
from tianji_cli.runs.side_by_side import SideBySide, training_command, why_failed
from tianji_cli.signals import INTERRUPTED
from tianji_cli.telemetry.metrics import read_summary
from tianji_cli.telemetry.run_state import is_running, read_state
from tianji_cli.telemetry.snapshot import Summary

SCHEMA: Final = 1
LOOK_S: Final = 1.0
"""Seconds between two looks at runs that go on."""


@dataclass
class Seed:
    """A seed and the state of its training.

    Attributes:
        command: trains it; None if it is done.
        status: "waiting", "running", "finished", "stopped" or "failed".
        reason: reason why it stopped or failed, in words.
    """

    number: int
    run: RunDirectory
    command: Sequence[str] | None
    status: str = "waiting"
    reason: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the seed neither waits nor runs."""
        return self.status not in {"waiting", "running"}


@dataclass
class Seeds:
    """The seeds of a directory."""

    directory: SeedsDirectory
    each: list[Seed] = field(default_factory=list)

    @property
    def status(self) -> str:
        """Status of all seeds: ``failed`` if one has failed, ``stopped`` if another one is not at its end."""
        found = {seed.status for seed in self.each}
        return "failed" if "failed" in found else "finished" if found == {"finished"} else "stopped"


def to_begin(directory: SeedsDirectory) -> Seeds:
    """Plan the training of each seed from the beginning."""
    return Seeds(
        directory, [Seed(seed, run, _begin(directory, seed)) for seed, run in directory.runs.items()]
    )


def to_go_on(directory: SeedsDirectory, settings: Sequence[str]) -> Seeds:
    """Plan the rest of each seed: from its checkpoint, from the beginning if it has none, or nothing.

    Args:
        settings: the user's new settings. With these a seed that has reached its goal may have another goal.

    Raises:
        UsageError: one of them is running.
    """
    seeds = Seeds(directory)
    for number, run in directory.runs.items():
        if is_running(run):
            raise UsageError(f"{run.path} is running: tianji stop ends it")
        seeds.each.append(_to_go_on(directory, number, run, settings))
    return seeds


def _to_go_on(directory: SeedsDirectory, seed: int, run: RunDirectory, settings: Sequence[str]) -> Seed:
    if run.metrics.exists():
        if not settings and read_state(run).status == "finished":
            return Seed(seed, run, None, "finished")
        if (run.checkpoints / "last").exists():
            command = training_command(settings, "--resume", str(run.path.absolute()), "--quiet")
            return Seed(seed, run, command)
    run.begin_anew()
    return Seed(seed, run, _begin(directory, seed, settings))


def _begin(directory: SeedsDirectory, seed: int, settings: Sequence[str] = ()) -> list[str]:
    run = directory.path / str(seed)
    own = [*settings, f"experiment.seed={seed}"]
    return training_command(own, str(directory.config), "--run", str(run), "--quiet")


def train(seeds: Seeds, job: JobConfig, show: Callable[[Seeds], None]) -> None:
    """Train the seeds that are not done, as many at once as the cores carry; a failure ends no other one.

    Args:
        job: config of one seed, for the cores that it needs.
        show: called now and then, and each time a training begins or ends.

    An interruption ends the trainings after a checkpoint each, and is raised again here.
    """
    waiting = [seed for seed in seeds.each if seed.command is not None]
    by_number = {seed.number: seed for seed in waiting}
    try:
        with SideBySide[int](usable_cores(), job.cores) as runner:
            while waiting or runner.running:
                while waiting and runner.has_room:
                    seed = waiting.pop(0)
                    assert seed.command is not None
                    runner.start(seed.number, seed.command)
                    seed.status = "running"
                show(seeds)
                for number, ended in runner.wait(LOOK_S):
                    _note(by_number[number], ended)
    finally:
        for seed in seeds.each:
            if seed.status == "running":  # It was running until the interruption.
                _note_stopped(seed)
    show(seeds)


def _note(seed: Seed, ended: ProcessExit) -> None:
    if ended.status == 0:
        seed.status = "finished"
    elif ended.status == INTERRUPTED:
        _note_stopped(seed)
    else:
        seed.status, seed.reason = "failed", why_failed(ended)


def _note_stopped(seed: Seed) -> None:
    """Record the state of a stopped seed: it may have been over, or not have begun."""
    if not seed.run.metrics.exists():
        seed.status = "waiting"
        return
    found = read_state(seed.run)
    is_over = found.status in {"finished", "failed"}
    seed.status, seed.reason = (found.status if is_over else "stopped"), found.reason


def summarise(seeds: Seeds, job: JobConfig) -> dict[str, Any]:
    """Write the results of all seeds into the directory's ``summary.json``, and return them.

    ``final`` is an interquartile mean over the finished seeds, with its 95 % interval: of the final
    evaluation if each seed has a complete one, else of the last 100 episodes. A seed whose own summary is
    damaged, or missing after its end, has failed.

    Raises:
        TianjiError: the file cannot be written.
    """
    rows = [_row(seed) for seed in seeds.each]
    done = [row for row in rows if row["status"] == "finished"]
    of = "evaluation" if done and all(row["evaluation"] is not None for row in done) else "mean_100"
    thresholds = dict.fromkeys(name for row in done for name in row["time_to"])
    document = {
        "schema": SCHEMA,
        "experiment": job.experiment.name,
        "status": seeds.status,
        "seeds": rows,
        "of": of,
        "final": _over([row[of] for row in done]),
        "train_s": _over([row["train_s"] for row in done]),
        "time_to": {name: _times([row["time_to"].get(name) for row in done]) for name in thresholds},
    }
    with errors_as(TianjiError, f"cannot write {seeds.directory.summary}", OSError):
        write_whole(seeds.directory.summary, json.dumps(document, indent=2, allow_nan=False).encode())
    return document


def _row(seed: Seed) -> dict[str, Any]:
    found = _summary_of(seed)  # This may set the seed's status to failed.
    row = {"seed": seed.number, "run": str(seed.run.path.absolute()), "status": seed.status}
    row |= {"reason": seed.reason, "env_steps": None, "train_s": None, "evaluation": None}
    row |= {"mean_100": None, "best_mean_100": None, "time_to": {}}
    if found is None:
        return row
    learner, played = found.learner, found.evaluation
    row |= {name: getattr(learner, name) for name in ("env_steps", "train_s", "mean_100", "best_mean_100")}
    row |= {"time_to": {exact(threshold): seconds for threshold, seconds in learner.time_to.items()}}
    row |= {"evaluation": None if played is None or played.left_out else played.mean}
    return row if seed.reason else row | {"reason": found.reason}


def _summary_of(seed: Seed) -> Summary | None:
    try:
        found = read_summary(seed.run.summary)
    except TianjiError as damaged:
        seed.status, seed.reason = "failed", str(damaged)
        return None
    if found is None and seed.status == "finished":  # Its training has finished, now or before.
        place = seed.run.path
        seed.status, seed.reason = (
            "failed",
            f"it was killed after its training, and has no summary.json: tianji eval {place} plays it, "
            f"and rm -r {place}/* has it train anew",
        )
    return found


def _over(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Interquartile mean and interval; None if a value is missing, or there is none."""
    known = [value for value in values if value is not None]
    return asdict(interval(np.array(known))) if known and len(known) == len(values) else None


def _times(values: Sequence[float | None]) -> dict[str, Any]:
    """Number of seeds that reached a threshold, and interval of the times; other seeds count as slower."""
    times = np.array([math.inf if value is None else value for value in values])
    return {"reached": int(np.isfinite(times).sum()), "of": len(times), **asdict(interval(times))}
