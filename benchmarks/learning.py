"""Does it learn? Trains shipped configs over seeds and compares the evaluation with its target.

python benchmarks/learning.py                                    # all, three seeds each
python benchmarks/learning.py --config impala_cartpole --seeds 1000-1029
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TARGETS = {
    "a2c_cartpole": 475.0,
    "impala_cartpole": 475.0,
    "ppo_cartpole": 475.0,
    "ppo_cartpole_groups": 475.0,
    "ppo_cartpole_learners": 475.0,
    "ppo_lunarlander": 200.0,
    "ppo_acrobot": -90.0,
    "ppo_pendulum": -250.0,
    "dqn_cartpole": 475.0,
    "dqn_lunarlander": 200.0,
}
"""Least mean return of 100 greedy episodes after training, by config."""


def seeds(text: str) -> list[int]:
    """Parse seeds from ``7`` or ``1000-1029``, both ends included."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def train(tianji: str, config: str, overrides: Sequence[str], seed: int, out: Path) -> dict[str, Any]:
    """Train once; returns the run's summary."""
    summary = out / f"{config}-{seed}.json"
    settings = [word for setting in (*overrides, f"experiment.seed={seed}") for word in ("--set", setting)]
    command = [tianji, "train", f"configs/{config}.toml", *settings]
    subprocess.run([*command, "--quiet", "--out", str(out), "--json", str(summary)],
                   check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    result: dict[str, Any] = json.loads(summary.read_text())
    if result["evaluation"]["left_out"]:
        sys.exit(f"{config}, seed {seed}: the evaluation was cut off after {result['evaluation']['cut_off']}")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", nargs="+", choices=sorted(TARGETS), default=list(TARGETS))
    parser.add_argument("--seeds", type=seeds, nargs="+", default=[[1, 2, 3]], metavar="N or N-M")
    parser.add_argument(
        "--tianji", default=shutil.which("tianji", path=str(Path(sys.executable).parent)) or "tianji"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    print(f"# {platform.platform()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    if arguments.set:
        print(f"# with {', '.join(arguments.set)}")
    print(
        f"{'config':<21} {'seed':>4} {'evaluation':>10} {'target':>7} {'env steps':>9} {'train s':>8} "
        f"{'wall s':>7}  time to"
    )
    rows, missed = [], 0
    with tempfile.TemporaryDirectory() as directory:
        for config in arguments.config:
            for seed in itertools.chain(*arguments.seeds):
                run = train(arguments.tianji, config, arguments.set, seed, Path(directory))
                mean, target = run["evaluation"]["mean"], TARGETS[config]
                missed += mean < target
                times = ", ".join(
                    f"{k}: {v:.2f} s" if v else f"{k}: never" for k, v in run["time_to"].items()
                )
                print(
                    f"{config:<21} {seed:>4} {mean:>10.1f} {target:>7.0f} {run['env_steps']:>9} "
                    f"{run['train_s']:>8.2f} {run['wall_s']:>7.2f}  {times}{'  MISSED' * (mean < target)}",
                    flush=True,
                )
                rows.append({"config": config, "seed": seed, "target": target, "summary": run})
            of_config = [row["summary"] for row in rows if row["config"] == config]
            train_s = [run["train_s"] for run in of_config]
            means = [run["evaluation"]["mean"] for run in of_config]
            reached = sum(mean >= TARGETS[config] for mean in means)
            print(
                f"# {config}: {reached} of {len(means)} reach {TARGETS[config]:.0f}; "
                f"evaluation median {statistics.median(means):.1f}, min {min(means):.1f}; "
                f"train_s median {statistics.median(train_s):.2f} ({min(train_s):.2f} to {max(train_s):.2f})"
            )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"set": arguments.set, "rows": rows}, indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
