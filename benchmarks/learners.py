"""Do two learners learn what one would? The learning curves of both at equal total batch, actors in step.

Each seed trains with one learner, and with two that divide every rollout and minibatch, with
``mode = "sync"``. Environments are slowed down to --steps-per-s steps a second, because a learner reports by
the clock: a faster training would end before its curve has enough points. The measure is the interquartile
mean of the return over seeds, on a grid of env steps, with its 95 % bootstrap interval: the mean of two
learners should lie inside the interval of one at every point.

    python benchmarks/learners.py [--seeds 10] [--first-seed 1] [--env-steps 200000] [--steps-per-s 25000] ...
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from platforms import Array, as_lists, bands_of, cell

from tianji_cli.config.loader import load_config
from tianji_cli.quantities import several
from tianji_cli.runs.comparison.curves import Curve
from tianji_cli.runs.comparison.statistics import Estimate
from tianji_lab.environment import busy_share, in_short
from tianji_lab.training import Entry, read_training, train_in_turns

HERE = Path(__file__).resolve().parent
LEAST_SEEDS = 5
"""Least number of seeds: with fewer, the interquartile mean leaves out hardly any value."""


def entry(learners: int, options: argparse.Namespace, num_envs: int) -> Entry:
    """Settings of the trainings with one number of learners."""
    settings = (
        'environment.type="slowed_gym:SlowedGym"',
        f'experiment.extensions=["{HERE}"]',
        f"environment.options={{ step_s = {num_envs / options.steps_per_s!r} }}",
        'distribution.mode="sync"',
        "distribution.pin_cores=false",
        f"distribution.learner.num={learners}",
        f"experiment.stop={{ env_steps = {options.env_steps} }}",
        "experiment.eval_episodes=0",
        *options.set,
    )
    return Entry(f"learners-{learners}", options.config, settings)


def draw(grid: Array, bands: dict[int, Estimate], path: Path) -> None:
    """Draw both curves and their intervals into a PNG file."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - the import takes a second
    from matplotlib.ticker import EngFormatter  # noqa: PLC0415

    from tianji_cli.runs.comparison.figures import draw_band  # noqa: PLC0415
    from tianji_cli.telemetry.figures import COLORS, HEIGHT, write_figure  # noqa: PLC0415

    def into(figure: Figure) -> None:
        axes = figure.add_subplot()
        for (learners, of), color in zip(bands.items(), COLORS, strict=False):
            draw_band(axes, grid, of, color, label=several(learners, "learner"))
        axes.set_xlabel("Environment steps")
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.set_ylabel("Mean return")
        axes.legend()

    write_figure(into, HEIGHT, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="configs/ppo_cartpole_learners.toml")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--env-steps", type=int, default=200_000)
    parser.add_argument("--steps-per-s", type=float, default=25_000.0, help="of the slowed environments")
    parser.add_argument("--points", type=int, default=20, help="of the grid")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all trainings")
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--png", metavar="PATH")
    options = parser.parse_args()
    if options.seeds < LEAST_SEEDS:
        parser.error(f"--seeds {options.seeds} has no interval to lie in: at least {LEAST_SEEDS} are needed")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    busy = busy_share()
    print(
        f"# {in_short(busy)}; "
        f"{options.config}, seeds {seeds[0]} to {seeds[-1]}, {options.env_steps} env steps"
    )
    num_envs = load_config(options.config, options.set).environment.num_envs
    table = {learners: entry(learners, options, num_envs) for learners in (1, 2)}
    curves: dict[int, list[Curve]] = {}
    for learners, of in train_in_turns(table, seeds, None, read=read_training).items():
        curves[learners] = [curve for one in of.trainings if (curve := one.curve) is not None]
        if len(curves[learners]) < len(of.trainings):
            raise SystemExit(f"a training with {learners} learners ended before an episode did: no figures")
    grid, bands = bands_of(curves, options.points)
    inside = report(grid, bands)
    reports = [round(sum(len(c.env_steps) for c in of) / len(of)) for of in curves.values()]
    print(f"# points of a curve, on average: {reports[0]} with one learner, {reports[1]} with two")
    print(f"# points where the mean of two learners lies in the interval of one: {sum(inside)}/{len(grid)}")
    print(f"# at every point: {'yes' if all(inside) else 'NO'}")
    if options.png:
        draw(grid, bands, Path(options.png))
    if options.json:
        Path(options.json).write_text(json.dumps(document(options, busy, grid, bands), indent=1) + "\n")
    return 0 if all(inside) else 1


def report(grid: Array, bands: dict[int, Estimate]) -> list[bool]:
    """Print a row for each point; returns where the mean of two learners lies in the interval of one."""
    one, two = bands[1], bands[2]
    inside = [bool(low <= iqm <= high) for iqm, low, high in zip(two.value, one.low, one.high, strict=True)]
    print(f"{'env steps':>10} {'one learner':>26} {'two learners':>26}")
    for i, is_inside in enumerate(inside):
        cells = f"{cell(one, i):>26} {cell(two, i):>26}"
        print(f"{grid[i]:>10.0f} {cells}{'' if is_inside else '  OUTSIDE'}")
    return inside


def document(
    options: argparse.Namespace, busy: float, grid: Array, bands: dict[int, Estimate]
) -> dict[str, Any]:
    """Make the contents of the JSON file."""
    return {
        "config": options.config,
        "seeds": [options.first_seed, options.first_seed + options.seeds - 1],
        "busy": busy,
        "env_steps": grid.tolist(),
        "learners": {learners: as_lists(of) for learners, of in bands.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
