"""What does a rollout buffer in a process of its own gain or cost? `colocate = true` and `false`, in turns.

python benchmarks/buffer_apart.py --out apart         # eight pairs of 10 s each, a quarter of an hour
python benchmarks/buffer_apart.py --out apart --pairs 2 --config ppo_cartpole --transports shm

Each pair trains once with each value, the first one changing from pair to pair; all processes share two cores
(--cores). The result is the median over the pairs of the quotients false / true, with the extremes; a
quotient above 1 is a gain. Leave the machine alone meanwhile: beside other programs, the job with more
processes gets the larger share of the cores. A rollout of ppo_cartpole is one fragment,
so that one more on its way is a version more; --set distribution.actor.send_size=16 makes four of it.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

from training import Training, tianji_beside_python

SETTINGS = ["distribution.pin_cores=false", "experiment.plots=false"]


def train(
    config: str, transport: str, colocate: str, more: list[str], seconds: float, out: Path
) -> dict[str, Any]:
    """Train for some seconds, and return the run's summary."""
    settings = [f"distribution.transport={transport}", f"distribution.buffer.colocate={colocate}"]
    training = Training(tianji_beside_python(), config, [*SETTINGS, *settings, *more], seconds, out)
    training.end()
    return training.summary


def main() -> None:
    """Train the pairs, and print a line for each config and engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", nargs="+", default=["ppo_cartpole", "ppo_pendulum"])
    parser.add_argument("--transports", nargs="+", default=["shm", "zmq"])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--set", nargs="+", default=[], help="further settings, such as SECTION.KEY=VALUE")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: asked.cores]
    os.sched_setaffinity(0, cores)
    print(f"# {len(cores)} cores; median (least to most) of {asked.pairs} quotients, false / true")
    print("config          engine  uses/s true  uses/s false  quotient             lag true  lag false")
    for config in asked.config:
        for transport in asked.transports:
            runs: dict[str, list[dict[str, Any]]] = {"true": [], "false": []}
            for pair in range(asked.pairs):
                for colocate in ("true", "false") if pair % 2 else ("false", "true"):
                    out = asked.out / f"{config}-{transport}-{pair}-{colocate}"
                    runs[colocate].append(train(config, transport, colocate, asked.set, asked.seconds, out))
            rates = {name: [run["consumed_per_s"] for run in of_it] for name, of_it in runs.items()}
            lags = {name: [run["staleness"]["mean"] for run in of_it] for name, of_it in runs.items()}
            quotients = [apart / beside for apart, beside in zip(rates["false"], rates["true"], strict=True)]
            shown = f"{statistics.median(quotients):.3f} ({min(quotients):.3f} to {max(quotients):.3f})"
            medians = [statistics.median(values) for values in (rates["true"], rates["false"])]
            of_lags = [statistics.median(values) for values in (lags["true"], lags["false"])]
            print(f"{config:15} {transport:6} {medians[0]:12,.0f} {medians[1]:13,.0f}  {shown}", end="  ")
            print(f"{of_lags[0]:9.2f} {of_lags[1]:10.2f}", flush=True)


if __name__ == "__main__":
    main()
