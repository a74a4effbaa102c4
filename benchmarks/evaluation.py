"""Measures the cost of evaluations while training: env steps a second with and without them, in turns.

Learner and actor share one core in all cases. There is no examiner (``without``), or an examiner that
evaluates without a pause, on a core of its own (``own``) or on the shared core (``shared``), with the lowest
priority.

    python benchmarks/evaluation.py [--config PATH] [--seconds 10] [--rounds 7] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles

from training import Training, tianji_beside_python

from tianji_cli.telemetry.machine import cpu_model
from tianji_lab.environment import busy_share

LEAST = 0.97
"""Least share of the throughput without evaluations if the examiner has a core of its own."""
STARTS_S, SETTLES_S = 5.0, 2.0
"""Approximate seconds from a run's start to the placement of its processes, and from there to the count."""
CASES = ("without", "own", "shared")
ENDLESSLY = "experiment.evaluation={ every_s = 0.001, episodes = 20 }"


def steps_per_s(case: str, options: argparse.Namespace, cores: list[int]) -> float:
    """Train once; returns env steps a second after the placement of the processes."""
    settings = [*options.set, "distribution.actor.num=1", "distribution.pin_cores=false"]
    settings += [] if case == "without" else [ENDLESSLY]
    with tempfile.TemporaryDirectory() as place:
        seconds = STARTS_S + SETTLES_S + options.seconds
        training = Training(options.tianji, options.config, settings, seconds, Path(place))
        try:
            training.train_until(0.1)
            for pid, title in training.pids().items():
                own = "examiner" in title and case == "own"
                os.sched_setaffinity(pid, {cores[1] if own else cores[0]})
            began_s = training.rows[-1]["train_s"] + SETTLES_S
            rows = [row for row in training.end() if row["train_s"] >= began_s]
        finally:
            training.kill()
    first, last = rows[0], next(row for row in reversed(rows) if row["updates"] < rows[-1]["updates"])
    return float((last["env_steps"] - first["env_steps"]) / (last["train_s"] - first["train_s"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="configs/ppo_lunarlander.toml")
    parser.add_argument("--seconds", type=float, default=10.0, help="of training that count")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--tianji", default=tianji_beside_python())
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error("it takes two cores")
    environment = {"machine": f"{cpu_model()}, cores {cores[:2]}", "busy before": f"{busy_share():.0%}"}
    for key, value in environment.items():
        print(f"# {key}: {value}")
    rates: dict[str, list[float]] = {case: [] for case in CASES}
    for number in range(options.rounds):
        for case in CASES if number % 2 == 0 else reversed(CASES):
            rates[case].append(steps_per_s(case, options, cores))
        print("# " + "  ".join(f"{case} {values[-1]:.0f}" for case, values in rates.items()), flush=True)
    print(f"{'':8} {'env steps/s':>12} {'of without':>11} {'middle half':>14}")
    shares = {}
    for case, values in rates.items():
        of = [own / bare for own, bare in zip(values, rates["without"], strict=True)]
        low, shares[case], high = quantiles(of, n=4, method="inclusive") if len(of) > 1 else of * 3
        print(f"{case:8} {median(values):12.0f} {shares[case]:11.1%} {low:6.1%} to {high:.1%}")
    verdict = "yes" if shares["own"] >= LEAST else "NO"
    print(f"# at least {LEAST:.0%} where the examiner has a core of its own: {verdict}")
    if options.json:
        document = {"environment": environment, "rates": rates, "shares": shares}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0 if shares["own"] >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
