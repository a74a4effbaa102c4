"""Figures 4(a) and 4(b) of the paper from one program: TianJi's replay beside Ape-X's.

Ape-X draws from a prioritised replay in a process of its own. As the paper has it, the next batch waits for
the last one's priorities; with asynchronous updates it does not. All explore alike, so that their training
returns can be compared, and train for the same time.

    python benchmarks/apex.py [--seeds N] [--seconds S] [--out DIR] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from tianji_cli.bench.statistics import estimate
from tianji_cli.bench.training import Training, read_training, train_once

ALIKE: Final = ('agent.epsilon_schedule="linear"', "experiment.eval_episodes=0")
SYSTEMS: Final = {
    "TianJi": ("configs/dqn_cartpole.toml", ()),
    "Ape-X, asynchronous": (
        "configs/dqn_cartpole_apex.toml",
        ('distribution.buffer.priority_updates="async"',),
    ),
    "Ape-X": ("configs/dqn_cartpole_apex.toml", ()),
}
THRESHOLD: Final = 475.0
RATES: Final = ("produced_per_s", "consumed_per_s")


def measure(seeds: int, seconds: float, place: Path) -> dict[str, list[Training]]:
    """Train every system with every seed, in turns."""
    found: dict[str, list[Training]] = {name: [] for name in SYSTEMS}
    for seed in range(1, seeds + 1):
        for number, (name, (config, overrides)) in enumerate(SYSTEMS.items()):
            stop = f"experiment.stop={{wall_s={seconds}}}"
            settings = [*ALIKE, *overrides, stop, f"experiment.seed={seed}"]
            run = train_once(config, settings, name=f"apex-{number}-{seed}", place=place)
            training = read_training(run, seed, THRESHOLD)
            found[name].append(training)
            reached = f"{training.time_to_s:5.1f} s" if training.reached else "  never"
            print(
                f"{name:<20} seed {seed}: {THRESHOLD:g} after {reached}, "
                + ", ".join(f"{rate[:8]} {getattr(training, rate) / 1e3:6.1f} K/s" for rate in RATES),
                flush=True,
            )
    return found


def draw(found: dict[str, list[Training]], seconds: float, path: Path) -> None:
    """Returns over time (4a), and throughputs (4b)."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    returns, rates = figure.subplots(1, 2, width_ratios=(2, 1))
    x = np.linspace(0, seconds, 200)
    for number, (name, trainings) in enumerate(found.items()):
        curves = np.stack([np.interp(x, t.curve.train_s, t.curve.mean_100, left=0.0) for t in trainings])
        band = estimate(curves, resamples=2000)
        returns.plot(x, band.iqm, color=f"C{number}", label=name)
        returns.fill_between(x, band.low, band.high, color=f"C{number}", alpha=0.2, linewidth=0)
        middle = [np.median([getattr(t, rate) for t in trainings]) / 1e3 for rate in RATES]
        rates.bar(np.arange(len(RATES)) + 0.28 * (number - 1), middle, 0.26, color=f"C{number}")
    returns.set_xlabel("Time since the first environment step (s)")
    returns.set_ylabel("Mean return of 100 episodes")
    returns.legend(frameon=False)
    rates.set_xticks(range(len(RATES)), [rate.removesuffix("_per_s") for rate in RATES])
    rates.set_ylabel("Thousand samples a second")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each training")
    parser.add_argument("--out", type=Path, help="write figure-4.png there")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(f"# {platform.platform()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as place:
        found = measure(arguments.seeds, arguments.seconds, Path(place))
    for name, trainings in found.items():
        middle = ", ".join(
            f"{rate.removesuffix('_per_s')} {np.median([getattr(t, rate) for t in trainings]) / 1e3:.1f} K/s"
            for rate in RATES
        )
        best = np.median([t.best_mean_100 for t in trainings])
        reached = sum(t.reached for t in trainings)
        print(
            f"# {name}: {middle}; best mean {best:.0f}; {reached} of {len(trainings)} reached {THRESHOLD:g}"
        )
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        draw(found, arguments.seconds, arguments.out / "figure-4.png")
    if arguments.json is not None:
        rows = {name: [asdict(training) for training in trainings] for name, trainings in found.items()}
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
