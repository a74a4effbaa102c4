"""Does a range of actors come to the best fixed number, and what does the search cost a job that has it?

    python benchmarks/adapt.py --out adapt                                # 70 minutes on an idle machine
    python benchmarks/adapt.py --out adapt --case waiting cartpole

Each case trains with each fixed number of actors, in turns, and then with a range: once from the worst
number, once from the best. It reports the rate of the last ``LATE_S`` seconds from the worst, and of the
whole training from the best, both as a share of the best fixed number's. In the case `slower` each step takes
four times as long after half of the time, and the fixed numbers are those of the slower environment. A case's
results stay in --out as JSON, and are not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from training import Row, Training, tianji_beside_python

MUJOCO: Final = Path(__file__).parent / "mujoco"
FIXED_S: Final = 15.0
REPEATS: Final = 2
MOVING_S: Final = 90.0
LATE_S: Final = 30.0
STEP_MS: Final = 1.0
SLOWER: Final = 4.0
WAITS: Final = (f"environment.step_ms={STEP_MS}", "environment.num_envs=2", "distribution.pin_cores=false")

CASES: Final[dict[str, tuple[str, tuple[str, ...], int]]] = {
    "waiting": ("configs/ppo_cartpole.toml", (*WAITS, "distribution.actor.send_size=16"), 8),
    "waiting dqn": ("configs/dqn_cartpole.toml", WAITS, 8),
    "waiting impala": ("configs/impala_cartpole.toml", WAITS, 8),
    "slower": ("configs/ppo_cartpole.toml", (*WAITS, "distribution.actor.send_size=16"), 8),
    "cartpole": ("configs/ppo_cartpole.toml", (), 4),
    "impala": ("configs/impala_cartpole.toml", (), 4),
    "dqn": ("configs/dqn_cartpole.toml", (), 4),
    "acrobot": ("configs/ppo_acrobot.toml", (), 4),
    "pendulum": ("configs/ppo_pendulum.toml", (), 4),
    "hopper": (str(MUJOCO / "ppo_hopper.toml"), (), 4),
}
"""Config, settings and most actors, by name."""


def rate(rows: Sequence[Row], since_s: float) -> float:
    """Env steps a second that were learnt from, after the first ``since_s`` seconds."""
    late = [row for row in rows if row["wall_s"] >= since_s]
    return float(late[-1]["env_steps"] - late[0]["env_steps"]) / float(late[-1]["wall_s"] - late[0]["wall_s"])


def train(tianji: str, case: str, num: str, seconds: float, *, slow_at_s: float | None = None) -> list[Row]:
    """Train a case with a number of actors, as TOML; return the rows of its metrics."""
    config, settings, _ = CASES[case]
    more = [f"distribution.actor.num={num}"]
    if slow_at_s is not None:
        options = f"slower_after_s = {slow_at_s}, slower_by = {SLOWER}, wait_s = {STEP_MS / 1e3}"
        more += [
            'environment.type="slowed_gym:SlowedGym"',
            f"environment.options={{ {options} }}",
            "environment.step_ms=0",
            f'experiment.extensions=["{Path(__file__).parent}"]',
        ]
    with tempfile.TemporaryDirectory() as out:
        training = Training(tianji, config, [*settings, *more], seconds, Path(out))
        try:
            return training.end()
        finally:
            training.kill()


def measure(tianji: str, case: str) -> Row:
    """Measure one case."""
    most, slower = CASES[case][2], case == "slower"
    fixed: dict[int, list[float]] = {number: [] for number in range(1, most + 1)}
    for _ in range(REPEATS):
        for number, rates in fixed.items():
            rows = train(tianji, case, str(number), FIXED_S, slow_at_s=0.0 if slower else None)
            rates.append(rate(rows, FIXED_S / 3))
    medians = {number: statistics.median(rates) for number, rates in fixed.items()}
    best, worst = max(medians, key=medians.__getitem__), min(medians, key=medians.__getitem__)
    moved: dict[str, Any] = {}
    for name, first in (("from_worst", worst), ("from_best", best)):
        num = f"{{ min = 1, max = {most}, first = {first} }}"
        slow_at_s = MOVING_S / 2 if slower else None
        rows = train(tianji, case, num, MOVING_S * (2 if slower else 1), slow_at_s=slow_at_s)
        until_s = rows[-1]["wall_s"]
        late = rate(rows, until_s - LATE_S)
        moved[name] = {
            "late": late / medians[best],
            "whole": rate(rows, rows[0]["wall_s"]) / medians[best],
            "split": rows[-1]["split"],
        }
    return {"case": case, "fixed": medians, "best": best, "worst": worst, **moved}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--out", type=Path, required=True, help="where each case's figures stay")
    parser.add_argument("--tianji", default=tianji_beside_python())
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(f"# {platform.platform()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    print(
        f"{'case':<16} {'best':>4} {'worst':>5} {'of best':>8} {'from worst':>10} {'from best':>9}  ended at"
    )
    for case in arguments.case:
        path = arguments.out / f"{case.replace(' ', '_')}.json"
        if not path.exists():
            path.write_text(json.dumps(measure(arguments.tianji, case), indent=1) + "\n")
        found = json.loads(path.read_text())
        fixed = {int(number): per_s for number, per_s in found["fixed"].items()}
        share = "late" if case == "slower" else "whole"  # It was faster before it became slower.
        ended = [found[name]["split"]["actors"] for name in ("from_worst", "from_best")]
        print(
            f"{case:<16} {found['best']:>4} {found['worst']:>5} "
            f"{fixed[found['worst']] / fixed[found['best']]:>8.2f} {found['from_worst']['late']:>10.2f} "
            f"{found['from_best'][share]:>9.2f}  {ended[0]} and {ended[1]} actors",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
