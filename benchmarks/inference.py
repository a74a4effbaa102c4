"""Does inference apart pay? Env steps a second with the network in each actor, and in a process of its own.

    python benchmarks/inference.py              # CartPole, Pong, a network of 10 M parameters; four minutes
    python benchmarks/inference.py --case pong --device cuda --actors 12 --json inference.json

Both settings have the same actors, environments and update rule. Apart, two actors share a process, so with
two actors both settings have three processes. Trainings take turns, and figures are medians. Leave the
machine alone meanwhile: the load at the start is in the first line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from training import Training, tianji_beside_python

CASES = {
    "cartpole": ("ppo_cartpole", ("environment.num_envs=32",)),
    "pong": ("ppo_pong", ("environment.num_envs=16", "distribution.actor.send_size=32")),
    # A learner that hardly learns: with this network it would hold all actors back otherwise.
    "10M": (
        "dqn_cartpole",
        (
            "model.hidden=[3160, 3160]",
            "training.replay_ratio=0.02",
            "training.publish_every=8",
            "distribution.balance_tolerance=100_000",
        ),
    ),
}
Row = dict[str, Any]


def settings(actors: int, device: str, wait_ms: float, cores: int) -> dict[str, tuple[str, ...]]:
    """Overrides of both settings, by name."""
    common = (
        f"distribution.actor.num={actors}",
        f"distribution.pin_cores={'true' if cores > 2 else 'false'}",
    )
    table = f"{{ device = '{device}', max_wait_ms = {wait_ms} }}"
    return {
        "local": (*common, f"distribution.actor.device={device}"),
        "apart": (*common, f"distribution.inference={table}"),
    }


def measure(config: str, overrides: tuple[str, ...], seconds: float) -> Row:
    """Train for some seconds; return rates and, with inference apart, requests in a pass."""
    with tempfile.TemporaryDirectory() as place:
        training = Training(tianji_beside_python(), config, overrides, seconds, Path(place))
        try:
            training.end()
        finally:
            training.kill()
        summary = training.summary
    apart = [one for name, one in summary["extra"].items() if name.startswith("inference-")]
    requests, passes = (sum(one[key] for one in apart) for key in ("requests", "passes"))
    return {
        "steps_per_s": summary["produced_per_s"],
        "staleness": summary["staleness"]["mean"] or 0.0,  # None if nothing was learnt from.
        "requests_per_pass": requests / passes if passes else None,
    }


def main() -> None:
    """Measure the cases in turns, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="cpu", help="of the actors' networks, or of the one apart")
    parser.add_argument("--wait-ms", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    load, chip = os.getloadavg()[0], platform.processor() or platform.machine()
    print(
        f"# {asked.cores} cores ({chip}), {asked.actors} actors, {asked.device}, load {load:.1f}", flush=True
    )
    columns = f"{'local':>10} {'apart':>10} {'apart/local':>11} {'requests a pass':>15} {'versions old':>14}"
    print(f"{'case':<10} {columns}")
    rows: list[Row] = []
    both = settings(asked.actors, asked.device, asked.wait_ms, asked.cores)
    for case in asked.case:
        config, own = CASES[case]
        found: dict[str, list[Row]] = {name: [] for name in both}
        for number in range(asked.repeats):
            for name in list(both)[:: -1 if number % 2 else 1]:
                seed = f"experiment.seed={number + 1}"
                found[name].append(measure(config, (*own, *both[name], seed), asked.seconds))
        local, apart = (median(row["steps_per_s"] for row in found[name]) for name in both)
        old = [median(row["staleness"] for row in found[name]) for name in both]
        together = median(row["requests_per_pass"] for row in found["apart"])
        print(
            f"{case:<10} {local:>10,.0f} {apart:>10,.0f} {apart / local:>11.2f} {together:>15.2f} "
            f"{old[0]:>6.1f}, {old[1]:>6.1f}",
            flush=True,
        )
        rows.append(
            {"case": case, "local": local, "apart": apart, "ratio": apart / local, "trainings": found}
        )
    if asked.json is not None:
        head = {"cores": asked.cores, "actors": asked.actors, "device": asked.device, "load": load}
        asked.json.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
