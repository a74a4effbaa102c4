"""What a trace costs a training: while it is on, and what the room for it costs while it is off.

On: one training, in which windows with a trace and windows without one take turns, so that both are of the
same processes; each pair is compared within itself. Off: trainings of this tree and of another one, such as
the commit before there were traces, in turns (`--against TREE`). Counted are env steps a second, and seconds
of CPU time of all processes that carry roles for each env step: the latter minds less who else computes here.

    python benchmarks/trace_cost.py [--config PATH] [--set KEY=VALUE] [--pairs 12] [--seconds 4]
                                    [--against TREE] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Final, NamedTuple

from training import POLL_S, Training, tianji_beside_python

from tianji_cli.files.counters import ProductionFile
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.files.traces import asked_for
from tianji_lab.environment import busy_share, cpu_model

MOST: Final = 0.02
"""Of throughput that a trace may cost, and of CPU time that it may add to an env step."""
SETTLES_S: Final = 3.0
"""Of training before anything is counted."""
HEARD_S: Final = 0.3
"""After the root has taken a request, until all workers measure."""
SENT_S: Final = 1.0
"""After a trace, until all workers have sent what they measured."""


class Counted(NamedTuple):
    """What a training did within a window."""

    seconds: float
    steps: int
    cpu_s: float

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds

    @property
    def cpu_per_step(self) -> float:
        return self.cpu_s / self.steps


def cpu_s(pids: Iterable[int]) -> float:
    """CPU time of all threads of some processes."""
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def count(training: Training, production: ProductionFile, seconds: float) -> Counted:
    """Let it train for so long, and count what it did."""
    pids = list(training.pids())
    began_s, steps, used_s = time.monotonic(), production.produced, cpu_s(pids)
    time.sleep(seconds)
    ended_s = time.monotonic()
    return Counted(ended_s - began_s, production.produced - steps, cpu_s(pids) - used_s)


@contextmanager
def trained(options: argparse.Namespace, seconds: float) -> Iterator[tuple[Training, RunDirectory]]:
    """Begin a training that goes on for so long once it has settled."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place)
        training = Training(options.tianji, options.config, options.set, 60.0 + seconds, out)
        try:
            training.train_until(SETTLES_S)
            (run,) = out.glob("*/*")
            yield training, RunDirectory(run)
        finally:
            training.kill()


def traced(training: Training, run: RunDirectory, production: ProductionFile, seconds: float) -> Counted:
    """Count within a trace."""
    with asked_for(run, seconds + 2 * HEARD_S) as place:
        while (place.path / "request.json").exists():
            time.sleep(POLL_S)
        time.sleep(HEARD_S)
        counted = count(training, production, seconds)
        while (result := place.read_result()) is None:
            time.sleep(POLL_S)
        time.sleep(SENT_S)
        assert not any(process.missing for process in result.processes), result
    return counted


def pairs_of_windows(options: argparse.Namespace) -> Iterator[tuple[Counted, Counted]]:
    """Count without and within a trace, in turns."""
    each_s = 2 * options.seconds + 4.0
    with trained(options, options.pairs * each_s) as (training, run):
        production = ProductionFile(run.path / "production.bin")
        for number in range(options.pairs):
            if number % 2:
                within = traced(training, run, production, options.seconds)
            without = count(training, production, options.seconds)
            if not number % 2:
                within = traced(training, run, production, options.seconds)
            yield without, within


def pairs_of_trees(options: argparse.Namespace) -> Iterator[tuple[Counted, Counted]]:
    """Count in trainings of another tree and of this one, in turns; none is traced."""
    here = Path(__file__).parents[1]
    for number in range(options.pairs):
        found = {}
        for tree in (options.against, here) if number % 2 else (here, options.against):
            parts = ("src", "algos", "envs", "transports")
            os.environ["PYTHONPATH"] = os.pathsep.join(str(tree.absolute() / part) for part in parts)
            with trained(options, options.seconds) as (training, run):
                production = ProductionFile(run.path / "production.bin")
                found[tree] = count(training, production, options.seconds)
        yield found[options.against], found[here]


def compare(what: str, pairs: Iterable[tuple[Counted, Counted]]) -> dict[str, object]:
    """Print how the second of each pair compares with the first."""
    found = []
    for before, after in pairs:
        found.append((before, after))
        print(f"# {what}: {before.steps_per_s:.0f} then {after.steps_per_s:.0f} env steps/s", flush=True)
    document: dict[str, object] = {"pairs": [[pair._asdict() for pair in both] for both in found]}
    for measure in ("steps_per_s", "cpu_per_step"):
        more = [getattr(after, measure) / getattr(before, measure) - 1 for before, after in found]
        low, middle, high = quantiles(more, n=4, method="inclusive") if len(more) > 1 else more * 3
        spread = median(abs(one - middle) for one in more) * 1.4826 / len(more) ** 0.5 * 1.2533
        print(f"{what:8} {measure:14} {middle:+8.2%} +- {spread:.2%}  middle half {low:+.2%} to {high:+.2%}")
        document[measure] = {"median": middle, "error": spread, "low": low, "high": high}
    return document


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="configs/ppo_cartpole.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each window")
    parser.add_argument("--against", type=Path, metavar="TREE", help="another checkout; nothing is traced")
    parser.add_argument("--tianji", default=tianji_beside_python())
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    environment = {"machine": cpu_model(), "busy before": f"{busy_share():.0%}", "set": " ".join(options.set)}
    for key, value in environment.items():
        print(f"# {key}: {value}")
    if options.against:
        document = compare("off", pairs_of_trees(options))
    else:
        document = compare("on", pairs_of_windows(options))
    if options.json:
        Path(options.json).write_text(json.dumps({"environment": environment} | document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
