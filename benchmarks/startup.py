"""Times the command line: help, config errors, `tianji train` up to its first environment step.

python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIRST_STEP = re.compile(r"first environment step ([0-9.]+) s after the command began")


def seconds(command: list[str], expected_status: int) -> float:
    """Wall-clock time of one run of a command, which must exit with the expected status."""
    began = time.perf_counter()
    finished = subprocess.run(command, capture_output=True, check=False)
    took = time.perf_counter() - began
    if finished.returncode != expected_status:
        raise SystemExit(f"{command} exited with {finished.returncode}: {finished.stderr.decode()}")
    return took


def seconds_to_first_step(tianji: str, out: str) -> float:
    """Seconds from the command's start (without the interpreter's) to the first step, by the root's log."""
    command = [
        tianji,
        "train",
        "configs/ppo_cartpole.toml",
        "--quiet",
        "--out",
        out,
        "--json",
        f"{out}/summary.json",
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    newest = max(Path(out, "ppo_cartpole").iterdir(), key=lambda run: int(run.name))
    found = FIRST_STEP.search((newest / "logs" / "root-0.log").read_text())
    assert found is not None, f"{newest}/logs/root-0.log does not say when the first environment step was"
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--tianji", default=shutil.which("tianji", path=str(Path(sys.executable).parent)) or "tianji"
    )
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    train = [arguments.tianji, "train", "configs/ppo_cartpole.toml", "--dry-run", "--set"]
    with tempfile.TemporaryDirectory() as out:
        cases = {
            "tianji --help": (0.4, lambda: seconds([arguments.tianji, "--help"], 0)),
            "config error (unknown key)": (0.8, lambda: seconds([*train, "training.gama=0.9"], 2)),
            "config error (unknown environment id)": (
                0.8, lambda: seconds([*train, "environment.id='CartPol-v1'"], 2)),
            "tianji train to the first environment step": (
                5.0, lambda: seconds_to_first_step(arguments.tianji, out)),
        }  # fmt: skip
        print(f"# load {os.getloadavg()[0]:.1f}, {arguments.repeats} repeats, interleaved")
        taken: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(arguments.repeats):
            for name, (_target, measure) in cases.items():
                taken[name].append(measure())
    print(f"{'':<44} {'target s':>8} {'median':>7} {'min':>6} {'max':>6}")
    for name, values in taken.items():
        median = statistics.median(values)
        print(f"{name:<44} {cases[name][0]:>8.1f} {median:>7.2f} {min(values):>6.2f} {max(values):>6.2f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(taken, indent=1) + "\n")


if __name__ == "__main__":
    main()
