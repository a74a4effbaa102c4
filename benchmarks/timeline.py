"""Draws the effect of relaxed dependencies: timelines of a config trained serially, in step, asynchronously.

Serially all roles take turns in one process; in step actors wait for each new policy, and the learner for
them; asynchronously no role waits for another as long as nothing gets too far ahead. Each training is traced
for a while once it has settled, and the figure has the timelines one below the other on one scale, as in
Figure 1 of the paper. Of several rounds it shows the fastest training of each way, which other programs have
disturbed least.

    python benchmarks/timeline.py [--config PATH] [--set KEY=VALUE] [--seconds 5] [--rounds 3] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from tianji_cli.files.rundir import RunDirectory
from tianji_cli.launch.children import run_child
from tianji_cli.quantities import count, share
from tianji_cli.runs.campaign import training_command
from tianji_cli.runs.timeline.chrome import read_chrome
from tianji_cli.runs.timeline.figure import draw_timelines
from tianji_cli.runs.timeline.timeline import Timeline
from tianji_cli.telemetry.figures import write_figure
from tianji_lab.environment import busy_share, cpu_model

WAYS: Final = {
    "serial": ('distribution.transport="inproc"', 'distribution.mode="sync"'),
    "in step": ('distribution.transport="shm"', 'distribution.mode="sync"'),
    "asynchronous": ('distribution.transport="shm"', 'distribution.mode="async"'),
}
STARTS_S: Final = 3.0
"""Seconds of training that are not traced."""
END_S: Final = 60.0


def train(options: argparse.Namespace, settings: tuple[str, ...], name: str, place: Path) -> RunDirectory:
    """Train in one way with a trace; returns the run."""
    more = [f"experiment.stop={{ wall_s = {options.seconds + STARTS_S:g} }}", "experiment.eval_episodes=0"]
    words = ("--name", name, "--out", str(place), "--quiet", "--trace", f"{options.seconds:g}")
    command = training_command([*settings, *more, *options.set], options.config, *words)
    ended, _ = run_child(command, patience_s=END_S)
    if ended.status != 0:
        raise SystemExit(f"the training {name} failed:\n{ended.last_words}")
    return RunDirectory.find(name, place)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="configs/ppo_lunarlander.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each training that are traced")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="timelines.png and .svg")
    options = parser.parse_args()
    print(f"# machine: {cpu_model()}\n# busy before: {share(busy_share())}", flush=True)
    found: dict[str, list[tuple[float, Timeline]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as place:
        for way, settings in [*WAYS.items()] * options.rounds:
            run = train(options, settings, way.replace(" ", "_"), Path(place))
            timeline = read_chrome(run.trace)
            per_s = json.loads(run.summary.read_text())["produced_per_s"]
            busy = ", ".join(f"{lane.role} {share(lane.busy)}" for lane in timeline.lanes)
            print(f"{way:13} {count(per_s)} env steps/s; busy: {busy}", flush=True)
            found[way].append((per_s, timeline))
    fastest = {way: max(trained, key=lambda one: one[0]) for way, trained in found.items()}
    timelines = {f"{way}: {count(per_s)} env steps/s": one for way, (per_s, one) in fastest.items()}
    options.out.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "svg"):
        path = options.out / f"timelines.{kind}"
        write_figure(partial(draw_timelines, timelines=timelines), 1.0, path)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
