"""Measures learner updates a second while data flows, and in a bare loop on ready batches.

In a real run the learner receives, samples, updates and publishes while an actor steps environments on
another core. Before and after, on the learner's cores, ``bare_update.py`` only updates: with the other core
idle, and with a loop there that steps environments without a pause (a real actor waits now and then).

    python benchmarks/updates.py [--config PATH] [--seconds S] [--rounds R] [--set KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from training import Row, Training, tianji_beside_python

LEAST = 0.85
"""Least share of the bare loop's rate."""
STARTS_S = 4.0
"""Approximate seconds until a run trains."""
SETTLES_S = 2.0
"""Seconds of training, or of a process on the other core, before the measurement."""


class BareLoop:
    """Runs ``bare_update.py``.

    Args:
        options: options of the command line.
        cores: cores of the learner.
    """

    def __init__(self, options: argparse.Namespace, cores: Sequence[int]) -> None:
        self._config = ["--config", options.config]
        self._config += [word for override in options.set for word in ("--set", override)]
        self._seconds = options.bare_seconds
        self._cores = cores
        self._others = sorted(os.sched_getaffinity(0) - set(cores))

    def rate(self) -> float:
        """Measure the bare loop's updates a second."""
        process = self._start(self._cores, "--seconds", str(self._seconds))
        said, _ = process.communicate()
        if process.returncode != 0:
            raise SystemExit("the bare loop failed")
        return float(said)

    @contextmanager
    def busy_neighbour(self) -> Iterator[None]:
        """Step environments on another core during the body."""
        process = self._start(self._others[:1], "--busy")
        try:
            time.sleep(SETTLES_S)
            yield
        finally:
            process.kill()
            process.communicate()

    def _start(self, cores: Sequence[int], *more: str) -> subprocess.Popen[str]:
        script = str(Path(__file__).with_name("bare_update.py"))
        command = [sys.executable, script, *self._config, "--cores", *map(str, cores), *more]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(len(cores)))
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | threads)


def while_data_flows(options: argparse.Namespace) -> tuple[float, Row]:
    """Train for a while; returns updates a second once the run has settled, and the summary."""
    with tempfile.TemporaryDirectory() as directory:
        seconds = STARTS_S + SETTLES_S + options.seconds
        training = Training(options.tianji, options.config, options.set, seconds, Path(directory))
        try:
            rows = [row for row in training.end() if row["train_s"] >= SETTLES_S]
            summary = training.summary
        finally:
            training.kill()
    # Updates and time of a row are the learner's, of one moment. The last rows come after the learner's end.
    first, last = rows[0], next(row for row in reversed(rows) if row["updates"] < rows[-1]["updates"])
    return (last["updates"] - first["updates"]) / (last["train_s"] - first["train_s"]), summary


def measure(options: argparse.Namespace, cores: Sequence[int]) -> Row:
    """Measure once: bare loops, a run, bare loops."""
    loop = BareLoop(options, cores)
    idle, busy = [loop.rate()], []
    with loop.busy_neighbour():
        busy.append(loop.rate())
    flowing, summary = while_data_flows(options)
    with loop.busy_neighbour():
        busy.append(loop.rate())
    idle.append(loop.rate())
    shares = {role["role"]: role["busy"] for role in summary["roles"]}
    return {
        "flowing": flowing,
        "bare_idle": statistics.mean(idle),
        "bare_busy": statistics.mean(busy),
        "bare_idle_runs": idle,
        "bare_busy_runs": busy,
        "of_idle": flowing / statistics.mean(idle),
        "of_busy": flowing / statistics.mean(busy),
        "received_per_s": summary["received_per_s"],
        "busy": shares,
    }


def learner_cores(options: argparse.Namespace) -> list[int]:
    """Cores that the plan gives the learner, or all if it pins none; exits if it learns from rollouts."""
    from tianji_cli.config.loader import load_config  # noqa: PLC0415
    from tianji_cli.plan.plan import make_plan  # noqa: PLC0415 - --help does not need it

    job = load_config(options.config, options.set)
    if not job.learns_from_replay:
        sys.exit(f"{options.config} learns from rollouts; a config of DQN, R2D2, SAC or TD3 would be right")
    plan = make_plan(job)
    (learner,) = (process for process in plan.processes if "learner" in process.roles)
    return sorted(learner.cores or os.sched_getaffinity(0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="configs/dqn_cartpole.toml")
    parser.add_argument("--seconds", type=float, default=15.0, help="of training that count")
    parser.add_argument("--bare-seconds", type=float, default=4.0, help="of each bare loop; four in a round")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--tianji", default=tianji_beside_python())
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    cores = learner_cores(options)
    environment = {"machine": platform.platform(), "learner": f"cores {cores}", "load": os.getloadavg()[0]}
    for key, value in environment.items():
        print(f"# {key}: {value}")
    print("# updates/s")
    print(f"{'data flows':>10} {'bare':>8} {'share':>6} {'bare, other core busy':>22} {'share':>6}")
    rows = []
    for _ in range(options.rounds):
        rows.append(row := measure(options, cores))
        print(
            f"{row['flowing']:10.1f} {row['bare_idle']:8.1f} {row['of_idle']:6.2f} {row['bare_busy']:22.1f} "
            f"{row['of_busy']:6.2f}",
            flush=True,
        )
    share = statistics.median(row["of_idle"] for row in rows)
    print(
        f"# at least {LEAST:.0%} of the bare loop, the other core idle: {'yes' if share >= LEAST else 'NO'}"
    )
    if options.json:
        Path(options.json).write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")
    return 0 if share >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
