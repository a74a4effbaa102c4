"""Runs that nobody has trained, left as the writers of real ones leave them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from cli.lifecycle.conftest import merged
from cli.quick import CONFIG
from cli.telemetry.conftest import build_snapshot, build_summary

from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.plan.plan import this_host
from tianji_cli.telemetry.display import Display
from tianji_cli.telemetry.snapshot import RoleStatus
from tianji_cli.telemetry.telemetry import Telemetry
from tianji_cli.wire.reports import Evaluation

STEPS_PER_S = 1000
STOP = {"env_steps": 10_000}
Returns = Callable[[float], float | None]


def rises(to: float, over_s: float = 10.0) -> Returns:
    """A mean return that goes up from 0 in a straight line, and stays."""
    return lambda second: min(to, to * second / over_s)


def leave(
    out: Path,
    returns: Returns,
    *changes: Mapping[str, Any],
    name: str = "quick",
    seed: int = 1,
    seconds: Sequence[float] = tuple(range(1, 11)),
    ends: str | None = "finished",
    evaluation: Evaluation | None = None,
    evaluated: Mapping[float, float | None] | None = None,
    cut_off: Sequence[float] = (),
    time_to: Mapping[float, float | None] | None = None,
) -> RunDirectory:
    """Leave a run of so many seconds, 1,000 env steps each.

    Args:
        changes: of the config.
        ends: status of its summary; None: it was killed.
        evaluated: means of evaluations while training, by their seconds.
        cut_off: seconds of those of which an episode had not ended.
    """
    config = merged(CONFIG, {"experiment": {"name": name, "seed": seed, "stop": STOP}}, *changes)
    written = out / "written.toml"
    out.mkdir(parents=True, exist_ok=True)
    written.write_text(tomli_w.dumps(config))
    run = RunDirectory.create(name, out)
    run.write_config(dump_config(load_config(str(written), cores=2)))
    written.unlink()
    telemetry = Telemetry(run, Display(), None, None)
    roles = (RoleStatus(0, "root", None, this_host().name, None, None),)
    best: float | None = None
    for second in seconds:
        mean = returns(second)
        best = mean if best is None else max(best, mean or best)
        steps = round(STEPS_PER_S * second)
        figures = {"env_steps": steps, "train_s": float(second), "mean_100": mean, "best_mean_100": best}
        telemetry.update(build_snapshot(1, **figures, updates=steps, roles=roles))
        if evaluated and second in evaluated:
            row = {"kind": "evaluation", "wall_s": second, "train_s": float(second), "env_steps": steps}
            row |= {"mean": evaluated[second], "std": 0.0, "left_out": int(second in cut_off)}
            telemetry.evaluation(row)
    if ends is None:
        telemetry._metrics.close()  # As the kernel does for a process that is killed.
    else:
        found = {**figures, "updates": steps, "status": ends, "evaluation": evaluation}
        telemetry.close(build_summary(**found, time_to=dict(time_to or {})), plots=False)
    return run


def several(
    out: Path, finals: Sequence[float], *changes: Mapping[str, Any], **more: Any
) -> list[RunDirectory]:
    """Leave a run for each final return, with seeds from 1."""
    return [leave(out, rises(to), *changes, seed=seed, **more) for seed, to in enumerate(finals, 1)]


def rate(value: float) -> dict[str, Any]:
    """A config's learning rate."""
    return {"training": {"learning_rate": value}}
