"""Draws figure 9 of the paper: PPO on several Atari games, each trained for the same time.

Returns are those of whole games with the game's own score, averaged over the last 100 games of training.
Every config trains on every game with every seed, in turns, so that two configs can be compared.

    python benchmarks/atari.py [--games Pong Breakout ...] [--seeds N] [--minutes M] [--out DIR] ...
    python benchmarks/atari.py --config configs/ppo_pong_gpu.toml configs/impala_pong_gpu.toml --minutes 30
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from tianji_cli.errors import RunFailed
from tianji_cli.runs.comparison.curves import Curve, read_curve
from tianji_cli.runs.comparison.figures import draw_curve
from tianji_cli.runs.comparison.statistics import estimate
from tianji_cli.telemetry.figures import COLORS, write_figure
from tianji_cli.telemetry.metrics import read_metrics
from tianji_lab.environment import busy_share
from tianji_lab.training import read_summary, train_once

GAMES: Final = ("Pong", "Breakout", "BeamRider", "Qbert", "SpaceInvaders")
PANEL: Final = 1.7
"""Height of a game's panels, in inches."""


@dataclass(frozen=True)
class Played:
    """Result of one training.

    Attributes:
        system: stem of the config's name.
        game: name of the game.
        seed: seed of the experiment.
        train_s: seconds from the first environment step to the end.
        frames: number of the game's frames.
        episodes: number of games that ended.
        mean_100: mean return of the last 100 games.
        best_mean_100: highest value of this mean; None with fewer than 100 games.
        evaluation: mean return of the greedy games at the end; None if there were none.
        produced_per_s: environment steps a second.
        consumed_per_s: sample uses a second.
        curve: returns over time and frames.
    """

    system: str
    game: str
    seed: int
    train_s: float
    frames: int
    episodes: int
    mean_100: float
    best_mean_100: float | None
    evaluation: float | None
    produced_per_s: float
    consumed_per_s: float
    curve: Curve


def play(config: str, game: str, seed: int, options: argparse.Namespace, place: Path) -> Played:
    """Train a config on a game with one seed."""
    budget = f"env_steps={options.env_steps}" if options.env_steps else f"wall_s={options.minutes * 60!r}"
    settings = [
        f'environment.id="{game}"',
        f"experiment.seed={seed}",
        f"experiment.stop={{ {budget} }}",
        "experiment.thresholds=[]",
        f"experiment.eval_episodes={options.eval_episodes}",
        *options.set,
    ]
    system = Path(config).stem
    run = train_once(config, settings, name=f"{system}-{game}-{seed}", place=place)
    summary = read_summary(run)
    returns = summary["returns"]
    if returns["mean_100"] is None:
        raise RunFailed(f"{run.path} ended before the first game of {game}: --minutes should allow for more")
    curve = read_curve(read_metrics(run.metrics), summary)
    frames_per_step = summary["frames"] / summary["env_steps"]
    return Played(
        system=system,
        game=game,
        seed=seed,
        train_s=summary["train_s"],
        frames=summary["frames"],
        episodes=returns["episodes"],
        mean_100=returns["mean_100"],
        best_mean_100=returns["best_mean_100"],
        evaluation=(summary["evaluation"] or {}).get("mean"),
        produced_per_s=summary["produced_per_s"],
        consumed_per_s=summary["consumed_per_s"],
        curve=replace(curve, env_steps=tuple(steps * frames_per_step for steps in curve.env_steps)),
    )


Found = Mapping[tuple[str, str], Sequence[Played]]
"""Trainings by game and system."""


def measure(options: argparse.Namespace, place: Path) -> Found:
    """Train every system on every game with every seed, in turns."""
    systems = [Path(config).stem for config in options.config]
    found: dict[tuple[str, str], list[Played]] = {(g, s): [] for g in options.games for s in systems}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for game in options.games:
            for config in options.config:
                played = play(config, game, seed, options, place)
                found[game, played.system].append(played)
                spent = f"{played.train_s:.0f} s and {played.frames / 1e6:.2f} M frames"
                print(
                    f"# {game}, seed {seed}, {played.system}: {played.mean_100:.1f} after {spent}",
                    flush=True,
                )
    return found


def row_of(trainings: Sequence[Played]) -> dict[str, Any]:
    """Make the table's row of one game and system, over seeds."""
    last = estimate(np.array([one.mean_100 for one in trainings]))
    best = [one.best_mean_100 for one in trainings if one.best_mean_100 is not None]
    evaluations = [one.evaluation for one in trainings if one.evaluation is not None]
    return {
        "game": trainings[0].game,
        "system": trainings[0].system,
        "seeds": len(trainings),
        "mean_100": float(last.value),
        "low": float(last.low),
        "high": float(last.high),
        "best_mean_100": float(np.median(best)) if best else None,
        "evaluation": float(np.median(evaluations)) if evaluations else None,
        "train_s": float(np.median([one.train_s for one in trainings])),
        "frames": float(np.median([one.frames for one in trainings])),
        "produced_per_s": float(np.median([one.produced_per_s for one in trainings])),
        "consumed_per_s": float(np.median([one.consumed_per_s for one in trainings])),
    }


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each game and system."""
    print(
        f"{'game':<14} {'config':<20} {'mean of the last 100':>26} {'best':>8} {'greedy':>8} "
        f"{'s':>6} {'M frames':>9} {'steps/s':>8} {'uses/s':>8}"
    )
    for row in rows:
        interval = f"{row['mean_100']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"
        best, greedy = (
            "-" if row[name] is None else f"{row[name]:.1f}" for name in ("best_mean_100", "evaluation")
        )
        print(
            f"{row['game']:<14} {row['system']:<20} {interval:>26} {best:>8} {greedy:>8} "
            f"{row['train_s']:>6.0f} {row['frames'] / 1e6:>9.2f} {row['produced_per_s']:>8.0f} "
            f"{row['consumed_per_s']:>8.0f}"
        )


def draw(found: Found, figure: Figure) -> None:
    """Draw the returns of each game over time and over frames."""
    games = list(dict.fromkeys(game for game, _ in found))
    systems = list(dict.fromkeys(system for _, system in found))
    panels = figure.subplots(len(games), 2, squeeze=False, sharey="row")
    for game, row in zip(games, panels, strict=True):
        for axes, over in zip(row, ("train_s", "env_steps"), strict=True):
            ends = [getattr(one.curve, over)[-1] for s in systems for one in found[game, s]]
            for system, color in zip(systems, COLORS, strict=False):
                curves = [one.curve for one in found[game, system]]
                draw_curve(axes, curves, over=over, end=max(ends), color=color, label=system)
            axes.xaxis.set_major_formatter(EngFormatter())
        row[0].set_ylabel(game)
    panels[-1, 0].set_xlabel("Time (s)")
    panels[-1, 1].set_xlabel("Frames")
    panels[0, 0].legend()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", nargs="+", default=["configs/ppo_pong.toml"])
    parser.add_argument("--games", nargs="+", default=list(GAMES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0, help="of each training")
    parser.add_argument("--env-steps", type=int, help="of each training, in place of minutes")
    parser.add_argument("--eval-episodes", type=int, default=0, help="greedy games at the end of each")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all trainings")
    parser.add_argument("--out", type=Path, help="write figure-9.png and figure-9.json there")
    parser.add_argument("--runs", type=Path, help="keep the run directories there")
    options = parser.parse_args()
    busy = busy_share()
    budget = f"{options.env_steps} steps" if options.env_steps else f"{options.minutes:g} minutes"
    cores = len(os.sched_getaffinity(0))
    print(f"# {platform.platform()}, {cores} cores, {busy:.0%} of them busy before; {budget} each")
    with tempfile.TemporaryDirectory() as place:
        try:
            found = measure(options, options.runs or Path(place))
        except RunFailed as failed:
            sys.exit(str(failed))
    rows = [row_of(trainings) for trainings in found.values()]
    print_table(rows)
    if options.out is None:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    write_figure(partial(draw, found), PANEL * len(options.games), options.out / "figure-9.png")
    document = {
        "platform": platform.platform(),
        "cores": cores,
        "busy": busy,
        "budget": budget,
        "rows": rows,
        "trainings": [asdict(one) for trainings in found.values() for one in trainings],
    }
    (options.out / "figure-9.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
