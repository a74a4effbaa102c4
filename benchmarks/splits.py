"""Is the split that won the race the best one? `tianji profile --verify` of many configs, beside its targets.

python benchmarks/splits.py --out profiles                         # about five minutes a config
python benchmarks/splits.py --out profiles --config ppo_hopper ppo_lunarlander

Each config's results stay in --out as JSON, and a config with results is not measured again, so an
interrupted benchmark continues. Leave the machine alone meanwhile. The default leaves out configs for a GPU,
Breakout (the same networks and emulator as Pong), and SMAX (each training compiles for half a minute).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training import tianji_beside_python

MUJOCO = Path(__file__).parent / "mujoco"
USUAL = [
    *("ppo_hopper", "ppo_halfcheetah", "ppo_lunarlander", "ppo_acrobot", "ppo_pendulum", "ppo_cartpole"),
    *("a2c_cartpole", "impala_cartpole", "ppo_cartpole_sync", "ppo_cartpole_groups", "ppo_cartpole_learners"),
    *("dqn_cartpole", "dqn_lunarlander", "dqn_cartpole_paper", "dqn_cartpole_apex"),
    *("mappo_spread", "qmix_spread", "maddpg_spread", "maddpg_adversary", "qmix_two_step"),
    *("ppo_pong", "impala_pong", "dqn_pong", "apex_pong"),
]
BEHIND = 0.05
"""Maximum share by which the first choice may be slower than the best split that was trained."""
OFF = 0.10
"""Maximum relative error of the first choice's predicted rate."""
CANDIDATES = 5
LIMIT_S = 3600.0

Row = dict[str, Any]


def profile(tianji: str, config: str, out: Path) -> None:
    """Profile and verify one config, unless it has results."""
    path = out / f"{config}.json"
    if path.exists():
        return
    own = MUJOCO / f"{config}.toml"
    place = own if own.exists() else Path("configs") / f"{config}.toml"
    began = time.monotonic()
    command = [tianji, "profile", str(place), "--verify", "--quiet", "--json", "-"]
    print(f"# {config}: {time.strftime('%H:%M:%S')}", flush=True)
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        print(f"# {config}: no figures within {LIMIT_S:g} s", flush=True)
        return
    except subprocess.CalledProcessError as failed:
        print(f"# {config}: {failed.stderr.strip()}", flush=True)
        return
    found = {"seconds": time.monotonic() - began, "load": os.getloadavg()[0], **json.loads(done.stdout)}
    path.with_suffix(".part").write_text(json.dumps(found, indent=1) + "\n")
    path.with_suffix(".part").rename(path)


def words(split: Row) -> str:
    """Name a split in a few characters, such as L1A2 x 16, with ~ before it if it is not pinned."""
    groups = f"{split['groups']} x " if split["groups"] > 1 else ""
    cores = f"({split['learner_cores']})" if split["learner_cores"] > 1 else ""
    pins = "" if split["pinned"] else "~"
    return f"{pins}{groups}L{split['learners']}{cores}A{split['actors']} x {split['num_envs']}"


def judged(config: str, found: Row) -> Row:
    """Compare one config's results with the targets."""
    checks = found["verify"]
    first, best = checks[0], max(checks, key=lambda check: check["measured"])
    as_it_is = next((check for check in checks if words(check) == words(found["as_it_is"])), None)
    off, behind = first["predicted"] / first["measured"] - 1, 1 - first["measured"] / best["measured"]
    missed = [
        *(["candidates"] if len(checks) < CANDIDATES or all(check["pinned"] for check in checks) else []),
        *(["choice"] if behind > BEHIND else []),
        *(["prediction"] if abs(off) > OFF else []),
    ]
    return {
        "config": config,
        "as it is": words(found["as_it_is"]),
        "first choice": words(first),
        "predicted": first["predicted"] / found["measurements"]["rho"],
        "measured": first["measured_steps_per_s"],
        "off": off,
        "behind": behind,
        "gain": None if as_it_is is None else first["measured"] / as_it_is["measured"] - 1,
        "of": len(checks),
        "shared": sum(not check["pinned"] for check in checks),
        "worst": max((check["predicted"] / check["measured"] - 1 for check in checks), key=abs),
        "apart": max(check["spread"] for check in checks),
        "seconds": found["seconds"],
        "missed": missed,
    }


def lines(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the table: env steps a second, and shares."""
    yield (
        f"{'config':<22} {'as it is':<14} {'first choice':<14} {'predicted':>9} {'measured':>9} {'off':>6} "
        f"{'behind best':>11} {'gain':>6} {'of (shared)':>11} {'worst off':>9} {'apart':>6} {'took':>6}  "
        "missed"
    )
    for row in rows:
        gain = "-" if row["gain"] is None else f"{row['gain']:+.0%}"
        yield (
            f"{row['config']:<22} {row['as it is']:<14} {row['first choice']:<14} {row['predicted']:>9.0f} "
            f"{row['measured']:>9.0f} {row['off']:>+6.0%} {row['behind']:>11.0%} {gain:>6} "
            f"{row['of']:>7} ({row['shared']}) {row['worst']:>+9.0%} {row['apart']:>6.0%} "
            f"{row['seconds']:>4.0f} s  {', '.join(row['missed'])}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", nargs="+", default=USUAL)
    parser.add_argument("--out", type=Path, required=True, help="where each config's findings stay")
    parser.add_argument("--tianji", default=tianji_beside_python())
    arguments = parser.parse_args()
    print(f"# {platform.platform()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for config in arguments.config:
        profile(arguments.tianji, config, arguments.out)
    places = {config: arguments.out / f"{config}.json" for config in arguments.config}
    rows = [
        judged(config, json.loads(place.read_text())) for config, place in places.items() if place.exists()
    ]
    print(f"# targets: first choice within {BEHIND:.0%} of the best, predicted within {OFF:.0%}, of at least")
    print(
        f"# {CANDIDATES} splits that were listed beforehand, shared ones (~) among them; env steps a second"
    )
    print("\n".join(lines(rows)))
    met = sum(not row["missed"] for row in rows)
    print(f"# {met} of {len(arguments.config)} meet all targets; {len(places) - len(rows)} have no figures")
    return 0 if met == len(arguments.config) else 1


if __name__ == "__main__":
    sys.exit(main())
