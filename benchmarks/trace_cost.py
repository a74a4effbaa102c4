"""Measures the cost of a trace: CPU time and throughput while it is on, and CPU time of its code while off.

- `cpu`: all roles of a config take turns in one process, for some rounds with a trace and for as many without
  one. Measures CPU time for each env step without the rest of a training, so that there is little noise.
- `throughput`: one ordinary training, in which windows with a trace and windows without one take turns.
- `off`: as `cpu`, untraced, in processes of this tree and of another one, such as the commit before there
  were traces. Both begin together and work at the same time, each on a core of its own, which they swap.

Every result is the median over pairs of the ratio within a pair, with its standard error.

    python benchmarks/trace_cost.py cpu|throughput|off [--config PATH] [--set KEY=VALUE] [--pairs 60]
                                                       [--against TREE] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

for library in ("OMP", "OPENBLAS", "MKL"):  # As in a job's processes; before NumPy is imported.
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

from training import POLL_S, Training, tianji_beside_python

from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.files.counters import ProductionFile
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import make_plan
from tianji_lab.environment import busy_share, cpu_model

ROUNDS: Final = 20
"""Published versions in each measurement in one process. After a change the interpreter takes some hundred
turns until code is fast again, which a trace of seconds does not notice."""
WINDOW_S: Final = 3.0
SETTLES_S: Final = 3.0
"""Seconds of training before the first window."""
HEARD_S: Final = 0.3
"""Seconds from the root's receipt of a request until all workers measure."""
SENT_S: Final = 1.0
"""Seconds from the end of a trace until all workers have sent their measurements."""
SEGMENTS: Final = 8
"""Measurements of one process in the comparison of trees; the first does not count."""

Pairs = Iterator[tuple[float, float]]


class Turns:
    """Runs all roles of a job in this process; ends their loop after ``ROUNDS`` published versions."""

    def __init__(self, options: argparse.Namespace, place: Path) -> None:
        import torch  # noqa: PLC0415

        from tianji_cli.roles import role  # noqa: PLC0415
        from tianji_cli.worker.build import build_roles  # noqa: PLC0415
        from tianji_cli.worker.builder import Builder  # noqa: PLC0415
        from tianji_cli.worker.channels import open_transport  # noqa: PLC0415
        from tianji_transports.core import EngineOptions  # noqa: PLC0415

        torch.set_num_threads(1)
        role.CHECK_EVERY_S = 0.0  # type: ignore[misc] - checks for the end in every turn.
        together = ['distribution.transport="inproc"', "distribution.actor.num=1"]
        if not load_config(options.config, options.set).learns_from_replay:
            together += ['distribution.mode="sync"']  # All rounds have equally many steps.
        endless = ("experiment.stop={ wall_s = 1e9 }", "experiment.checkpoint_every_s=1e9")
        job = load_config(options.config, [*together, *endless, *options.set])
        plan = make_plan(job)
        (process,) = plan.carrying("learner")
        builder = Builder(Job("cost", dump_config(job), plan, place, place), job, process, 0)
        self._run, self._goal = role.run_in_turns, 0
        self.production = ProductionFile(None, plan.num_actors)
        self.production.begin(0, 0)
        self._transport = open_transport(builder, EngineOptions())
        self.roles = build_roles(builder, self._transport, self.production)

    def sleep(self, timeout_s: float) -> None:
        self._transport.wait(timeout_s)

    def handle(self) -> bool:
        return self._version < self._goal

    @property
    def _version(self) -> int:
        said: Any = self.roles[-1].report()
        return int(said.version)

    def cpu_per_step(self) -> float:
        """Run until ``ROUNDS`` more versions are published; returns seconds of CPU time for each env step."""
        self._goal = self._version + ROUNDS
        steps, began_s = self.production.produced, time.thread_time()
        self._run(self.roles, self, self.sleep)
        return (time.thread_time() - began_s) / (self.production.produced - steps)


class Nowhere:
    """Drops the messages of a tracer."""

    def send(self, message: object) -> None:
        pass


def pairs_in_process(options: argparse.Namespace) -> Pairs:
    """Yield CPU time of an env step without and with a trace, in alternating order."""
    from tianji_cli.wire.messages import MOST_SPANS, Trace  # noqa: PLC0415
    from tianji_cli.worker.tracer import Tracer  # noqa: PLC0415

    sink: Any = Nowhere()
    tracer = Tracer(sink, 1, shares_clock=True)
    asked = Trace(trace=1, until_s=1e12, most_spans=MOST_SPANS)
    with tempfile.TemporaryDirectory() as place:
        turns = Turns(options, Path(place))
        turns.cpu_per_step()
        for number in range(options.pairs):
            found = {}
            for is_on in (True, False) if number % 2 else (False, True):
                tracer.begin(asked, turns.roles, turns, [])
                if not is_on:  # Both cases find the same state of the caches.
                    tracer.end()
                found[is_on] = turns.cpu_per_step()
                if is_on:
                    tracer.end()
            yield found[False], found[True]


def pairs_of_windows(options: argparse.Namespace) -> Pairs:
    """Yield env steps a second of a training without and with a trace, in alternating order."""
    from tianji_cli.files.rundir import RunDirectory  # noqa: PLC0415
    from tianji_cli.files.traces import asked_for  # noqa: PLC0415

    def rate() -> float:
        began_s, steps = time.monotonic(), production.produced
        time.sleep(WINDOW_S)
        return (production.produced - steps) / (time.monotonic() - began_s)

    def traced() -> float:
        with asked_for(run, WINDOW_S + 2 * HEARD_S) as place:
            while not place.is_taken:
                time.sleep(POLL_S)
            time.sleep(HEARD_S)
            found = rate()
            while place.read_result() is None:
                time.sleep(POLL_S)
            time.sleep(SENT_S)
        return found

    with tempfile.TemporaryDirectory() as out:
        seconds = 60.0 + options.pairs * (2 * WINDOW_S + 4.0)
        training = Training(options.tianji, options.config, options.set, seconds, Path(out))
        try:
            training.train_until(SETTLES_S)
            (path,) = Path(out).glob("*/*")
            run, production = RunDirectory(path), ProductionFile(path / "production.bin")
            for number in range(options.pairs):
                if number % 2:
                    yield rate(), traced()
                else:
                    within = traced()
                    yield rate(), within
        finally:
            training.kill()


def pairs_of_trees(options: argparse.Namespace) -> Pairs:
    """Yield CPU time of an env step in another tree and in this one."""
    trees = options.against.absolute(), Path(__file__).absolute().parents[1]
    cores = sorted(os.sched_getaffinity(0))[:2]
    for number in range(options.pairs // SEGMENTS + 1):
        children = [
            _begin(options, tree, core)
            for tree, core in zip(trees, cores[:: -1 if number % 2 else 1], strict=True)
        ]
        said = [json.loads(child.communicate()[0]) for child in children]
        yield from zip(*said, strict=True)


def _begin(options: argparse.Namespace, tree: Path, core: int) -> subprocess.Popen[str]:
    parts = ("src", "algos", "envs", "transports")
    path = os.pathsep.join(str(tree / part) for part in parts)
    words = [word for setting in options.set for word in ("--set", setting)]
    command = [
        "taskset",
        "-c",
        str(core),
        sys.executable,
        __file__,
        "one",
        "--config",
        options.config,
        *words,
    ]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)


def measure_once(options: argparse.Namespace) -> None:
    """Print CPU times of an env step in the imported tree, as a list in JSON."""
    with tempfile.TemporaryDirectory() as place:
        turns = Turns(options, Path(place))
        print(json.dumps([turns.cpu_per_step() for _ in range(SEGMENTS)][1:]))


def compare(what: str, pairs: Iterable[tuple[float, float]]) -> dict[str, object]:
    """Print and return by how much the second value of a pair exceeds the first, over all pairs."""
    found = list(pairs)
    more: Sequence[float] = [after / before - 1 for before, after in found]
    low, middle, high = quantiles(more, n=4, method="inclusive")
    error = 1.4826 * median(abs(one - middle) for one in more) * 1.2533 / len(more) ** 0.5
    before = median(pair[0] for pair in found)
    print(
        f"{what}: {middle:+.2%} +- {error:.2%} of {before:.4g}, "
        f"middle half {low:+.2%} to {high:+.2%}, {len(found)} pairs"
    )
    return {"what": what, "median": middle, "error": error, "low": low, "high": high, "pairs": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["cpu", "throughput", "off", "one"])
    parser.add_argument("--config", default="configs/ppo_cartpole.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--against", type=Path, metavar="TREE", help="another checkout, for off")
    parser.add_argument("--tianji", default=tianji_beside_python())
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    if options.what == "one":
        measure_once(options)
        return 0
    if options.what == "off" and options.against is None:
        parser.error("off compares with another checkout: --against TREE")
    environment = {"machine": cpu_model(), "busy before": f"{busy_share():.0%}", "set": " ".join(options.set)}
    for key, value in environment.items():
        print(f"# {key}: {value}", flush=True)
    kinds = {
        "cpu": ("s of CPU an env step, traced", pairs_in_process),
        "throughput": ("env steps a second, traced", pairs_of_windows),
        "off": ("s of CPU an env step, this tree", pairs_of_trees),
    }
    title, pairs = kinds[options.what]
    document = compare(title, pairs(options))
    if options.json:
        Path(options.json).write_text(json.dumps({"environment": environment} | document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
