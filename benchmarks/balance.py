"""Is the replay ratio held? Trains with an actor 1, 4 and 0.25 times as fast as the learner, and suspends it.

A first run, with the environment as it is, measures how many environment steps a second the learner asks for
(the actor must be the faster one there). The others slow the environment down: an actor that is k times as
fast as the learner makes k times as many steps a second when nothing holds it back. In one more run, 1 to 1,
the process of buffer and learner is stopped for 5 s (SIGSTOP) and then continues.

The measure is consumed / received over every window of 10 s after the warm-up, and its greatest distance from
the config's ratio. The last two columns are the shares of time in which each side worked.

    python benchmarks/balance.py [--cases 1 4 0.25 suspended] [--seconds 30] [--set KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from training import Row, Training, tianji_beside_python

from tianji_cli.config.loader import load_config

HERE = Path(__file__).resolve().parent
WINDOW_S = 10.0
MOST = 0.03
"""Maximum relative distance of any window's ratio from the target."""
SUSPENDED_S = 5.0


def windows(rows: Sequence[Row]) -> list[float]:
    """Consumed / received over every window of 10 s that begins and ends with a row."""
    ratios = []
    last = 0
    for first in rows:
        while last < len(rows) and rows[last]["wall_s"] - first["wall_s"] < WINDOW_S:
            last += 1
        if last == len(rows):
            break
        received = rows[last]["env_steps"] - first["env_steps"]
        ratios.append((rows[last]["consumed"] - first["consumed"]) / received if received else 0.0)
    return ratios


def rate(rows: Sequence[Row], key: str) -> float:
    """Mean growth of a value a second over the rows."""
    return float((rows[-1][key] - rows[0][key]) / (rows[-1]["wall_s"] - rows[0]["wall_s"]))


def busy(rows: Sequence[Row], *roles: str) -> float:
    """Median share of time in which the roles of one process worked, summed over these roles."""
    shares = []
    for row in rows:
        shown = [value for name, value in row["busy"].items() if name.partition("-")[0] in roles]
        if shown and None not in shown:
            shares.append(sum(shown))
    return float(statistics.median(shares))


def describe(case: str, rows: Sequence[Row]) -> Row:
    """Make a row of the table; exits if the run is shorter than a window."""
    ratios, target = windows(rows), rows[-1]["replay_ratio.target"]
    if not ratios:
        raise SystemExit(f"{case}: too short for a window of {WINDOW_S:g} s; --seconds would help")
    return {
        "case": case,
        "target": target,
        "windows": len(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "worst": max(abs(ratio / target - 1) for ratio in ratios),
        "received_per_s": rate(rows, "env_steps"),
        "consumed_per_s": rate(rows, "consumed"),
        "busy_learner": busy(rows, "buffer", "learner"),
        "busy_actor": busy(rows, "actor"),
    }


def train(options: argparse.Namespace, case: str, *slowing: str) -> list[Row]:
    """Train once, and suspend the learner in the case "suspended"; returns the run's rows."""
    with tempfile.TemporaryDirectory() as directory:
        training = Training(
            options.tianji, options.config, [*options.set, *slowing], options.seconds, Path(directory)
        )
        try:
            if case == "suspended":
                training.suspend_learner(after_s=options.seconds / 4, for_s=SUSPENDED_S)
            return training.end()
        finally:
            training.kill()


def slowing(speed: float, asked_per_s: float, num_envs: int) -> list[str]:
    """Settings of an actor that makes ``speed`` times the asked steps a second."""
    return [
        'environment.type="slowed_gym:SlowedGym"',
        f'experiment.extensions=["{HERE}"]',
        f"environment.options={{ step_s = {num_envs / (speed * asked_per_s)!r} }}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="configs/dqn_cartpole.toml")
    parser.add_argument("--cases", nargs="+", default=["1", "4", "0.25", "suspended"])
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run, its start included")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all runs")
    parser.add_argument("--tianji", default=tianji_beside_python())
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    environment = {"machine": platform.platform(), "cores": len(os.sched_getaffinity(0))}
    environment["load"] = round(os.getloadavg()[0], 1)
    for key, value in environment.items():
        print(f"# {key}: {value}")
    num_envs = load_config(options.config, options.set).environment.num_envs
    print(f"{'actor':>10} {'target':>7} {'lowest':>8} {'highest':>8} {'worst':>7} {'windows':>8} "
          f"{'received/s':>11} {'consumed/s':>11} {'learner':>8} {'actor':>6}")  # fmt: skip
    rows = [describe("as it is", train(options, "as it is"))]
    show(rows[0])
    asked_per_s = rows[0]["received_per_s"]
    for case in options.cases:
        speed = 1.0 if case == "suspended" else float(case)
        rows.append(describe(case, train(options, case, *slowing(speed, asked_per_s, num_envs))))
        show(rows[-1])
    worst = max(row["worst"] for row in rows)
    print(f"# within {MOST:.0%} of the target over any {WINDOW_S:g} s: {'yes' if worst <= MOST else 'NO'}")
    if options.json:
        Path(options.json).write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")
    return 0 if worst <= MOST else 1


def show(row: Row) -> None:
    """Print a row of the table."""
    print(
        f"{row['case']:>10} {row['target']:7.2f} {row['lowest']:8.3f} {row['highest']:8.3f} "
        f"{row['worst']:7.2%} {row['windows']:8} {row['received_per_s']:11.0f} "
        f"{row['consumed_per_s']:11.0f} {row['busy_learner']:8.2f} {row['busy_actor']:6.2f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
