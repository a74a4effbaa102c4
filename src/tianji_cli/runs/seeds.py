"""Several seeds of one config: their remaining trainings, and a summary of their results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import TianjiError, UsageError, errors_as
from tianji_cli.files.campaigns import SeedsDirectory
from tianji_cli.files.rundir import write_whole
from tianji_cli.limits import usable_cores
from tianji_cli.quantities import exact
from tianji_cli.runs.campaign import Campaign, Member
from tianji_cli.runs.comparison.statistics import interval
from tianji_cli.telemetry.metrics import read_summary
from tianji_cli.telemetry.run_state import is_running
from tianji_cli.telemetry.snapshot import Summary

SCHEMA: Final = 1


@dataclass
class Seeds:
    """The seeds of a directory.

    Args:
        new_settings: the user's, for seeds that go on. With these a seed that has reached its goal may have
            another goal.

    Raises:
        UsageError: one of them is running.
    """

    directory: SeedsDirectory
    new_settings: Sequence[str] = ()
    members: list[Member] = field(init=False)

    def __post_init__(self) -> None:
        runs = self.directory.runs
        for run in runs.values():
            if is_running(run):
                raise UsageError(f"{run.path} is running: tianji stop ends it")
        self.members = [Member(run, self.directory.config, seed) for seed, run in runs.items()]

    @property
    def status(self) -> str:
        """Status of all seeds: ``failed`` if one has failed, ``stopped`` if another one is not at its end."""
        found = {seed.status for seed in self.members}
        return "failed" if "failed" in found else "finished" if found == {"finished"} else "stopped"

    def train(self, job: JobConfig, show: Callable[[], None]) -> None:
        """Train the rest of each seed, as many at once as the cores carry; a failure ends no other one.

        Args:
            job: config of one seed, for the cores that it needs.
            show: called now and then, and each time a training begins or ends.

        An interruption ends the trainings after a checkpoint each, and is raised again here.
        """
        waiting = list(self.members)
        with Campaign(usable_cores(), job.cores_beside_others) as campaign:
            while waiting or campaign.running:
                while waiting and campaign.has_room:
                    seed = waiting.pop(0)
                    command = seed.command(self.new_settings)
                    if command is None:
                        seed.status = "finished"
                    else:
                        campaign.start(seed, command)
                show()
                campaign.wait()
        show()


def summarise(seeds: Seeds, job: JobConfig) -> dict[str, Any]:
    """Write the results of all seeds into the directory's ``summary.json``, and return them.

    ``final`` is an interquartile mean over the finished seeds, with its 95 % interval: of the final
    evaluation if each seed has a complete one, else of the last 100 episodes. A seed whose own summary is
    damaged, or missing after its end, has failed.

    Raises:
        TianjiError: the file cannot be written.
    """
    rows = [_row(seed) for seed in seeds.members]
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


def _row(seed: Member) -> dict[str, Any]:
    found = _summary_of(seed)  # This may set the seed's status to failed.
    row = {"seed": seed.seed, "run": str(seed.run.path.absolute()), "status": seed.status}
    row |= {"reason": seed.reason, "env_steps": None, "train_s": None, "evaluation": None}
    row |= {"mean_100": None, "best_mean_100": None, "time_to": {}}
    if found is None:
        return row
    learner, played = found.learner, found.evaluation
    row |= {name: getattr(learner, name) for name in ("env_steps", "train_s", "mean_100", "best_mean_100")}
    row |= {"time_to": {exact(threshold): seconds for threshold, seconds in learner.time_to.items()}}
    row |= {"evaluation": None if played is None or played.left_out else played.mean}
    return row if seed.reason else row | {"reason": found.reason}


def _summary_of(seed: Member) -> Summary | None:
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
