"""Draws figures 4(a) and 4(b) of the paper: TianJi's replay beside Ape-X's.

Ape-X draws from a prioritised replay in another process. In the paper, the next batch waits for the last
batch's priorities; with asynchronous updates it does not wait. All systems explore alike, so that their
training returns can be compared, and train for the same time.

    python benchmarks/apex.py [--game cartpole|pong|pong_gpu] [--seeds N] [--seconds S] [--out DIR] ...
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from tianji_cli.errors import RunFailed
from tianji_cli.runs.comparison.figures import draw_curve
from tianji_lab.training import Entry, Training, read_learned, train_in_turns

ALIKE: Final = (
    'agent.epsilon_schedule="linear"',
    "training.n_step=3",
    "experiment.evaluation=false",
    "experiment.eval_episodes=0",
)


@dataclass(frozen=True)
class Game:
    """A game on which the systems are compared.

    Attributes:
        balanced: config of TianJi's replay, in the learner's process.
        apex: config of Ape-X's replay.
        threshold: mean return; the time to reach it is reported.
        seconds: length of each training.
        figure: file name of the figure.
    """

    balanced: str
    apex: str
    threshold: float
    seconds: float
    figure: str

    @property
    def systems(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Config and further settings of each system, by its name."""
        return {
            "TianJi": (self.balanced, ()),
            "Ape-X, asynchronous": (self.apex, ('distribution.buffer.priority_updates="async"',)),
            "Ape-X": (self.apex, ()),
        }


GAMES: Final = {
    "cartpole": Game(
        "configs/dqn_cartpole.toml", "configs/dqn_cartpole_apex.toml", 475.0, 15.0, "figure-4.png"
    ),
    "pong": Game("configs/dqn_pong.toml", "configs/apex_pong.toml", 0.0, 1200.0, "figure-4-pong.png"),
    "pong_gpu": Game(
        "configs/dqn_pong_gpu.toml", "configs/apex_pong_gpu.toml", 18.0, 900.0, "figure-4-pong-gpu.png"
    ),
}
RATES: Final = ("produced_per_s", "consumed_per_s")


def measure(game: Game, seeds: int, seconds: float) -> dict[str, list[Training]]:
    """Train every system with every seed, in turns."""
    stop = f"experiment.stop={{wall_s={seconds}}}"
    table = {
        name: Entry(f"apex-{number}", config, (*ALIKE, *overrides, stop))
        for number, (name, (config, overrides)) in enumerate(game.systems.items())
    }
    read = partial(read_learned, threshold=game.threshold)
    found = train_in_turns(table, range(1, seeds + 1), None, read=read, quiet=False)
    return {name: outcome.trainings for name, outcome in found.items()}


def draw(found: dict[str, list[Training]], seconds: float, path: Path) -> None:
    """Draw returns over time (4a), and throughputs (4b)."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    returns, rates = figure.subplots(1, 2, width_ratios=(2, 1))
    for number, (name, trainings) in enumerate(found.items()):
        curves = [training.curve for training in trainings if training.curve is not None]
        draw_curve(returns, curves, over="train_s", end=seconds, color=f"C{number}", label=name)
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
    parser.add_argument("--game", choices=GAMES, default="cartpole")
    parser.add_argument("--seconds", type=float, help="of each training")
    parser.add_argument("--out", type=Path, help="write the figure there")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    game = GAMES[arguments.game]
    seconds = arguments.seconds or game.seconds
    print(f"# {platform.platform()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    try:
        found = measure(game, arguments.seeds, seconds)
    except RunFailed as failed:
        sys.exit(str(failed))
    for name, trainings in found.items():
        middle = ", ".join(
            f"{rate.removesuffix('_per_s')} {np.median([getattr(t, rate) for t in trainings]) / 1e3:.1f} K/s"
            for rate in RATES
        )
        best = np.median([t.best_mean_100 for t in trainings])
        reached = f"{sum(t.reached for t in trainings)} of {len(trainings)} reached {game.threshold:g}"
        print(f"# {name}: {middle}; best mean {best:.0f}; {reached}")
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        draw(found, seconds, arguments.out / game.figure)
    if arguments.json is not None:
        rows = {name: [asdict(training) for training in trainings] for name, trainings in found.items()}
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
