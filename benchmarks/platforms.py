"""Do a CPU alone, a GPU alone, and both together learn the same? (Figure 11)

One config trains with several seeds on each platform that this machine has: "cpu" computes everything on CPU
cores, "mixed" has its learners on a GPU and its actors on CPU cores, "gpu" has both on the GPU. The measure
is the interquartile mean of the return over seeds, on a grid of env steps, with its 95 % bootstrap interval:
the intervals of two platforms should overlap at every point. The script names the platforms that are missing.

    python benchmarks/platforms.py [--config ppo_cartpole] [--seeds 5] [--env-steps 200000] [--out DIR] ...
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from tianji_cli.errors import RunFailed
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.runs.comparison.curves import Curve, stretch, values_on
from tianji_cli.runs.comparison.figures import draw_curve
from tianji_cli.runs.comparison.statistics import Estimate, estimate
from tianji_cli.telemetry.figures import COLORS, write_figure
from tianji_lab.environment import busy_share, in_short
from tianji_lab.training import Entry, Training, read_training, train_in_turns

PLATFORMS: Final = {"cpu": ("cpu", "cpu"), "mixed": ("cuda", "cpu"), "gpu": ("cuda", "cuda")}
"""Devices of learners and actors, by platform."""
LEAST_SEEDS: Final = 3
"""Least number of seeds: with fewer, an interval is that of one or two values."""
Array = npt.NDArray[np.float64]
KeyT = TypeVar("KeyT")


def missing() -> dict[str, str]:
    """Name the platforms that this machine lacks, with reasons."""
    import torch  # noqa: PLC0415 - the import takes seconds

    if torch.cuda.is_available():
        return {}
    build = f"torch {torch.__version__} is built without CUDA"
    why = build if torch.version.cuda is None else "torch finds no CUDA device"
    return {name: why for name, devices in PLATFORMS.items() if "cuda" in devices}


def entry(name: str, options: argparse.Namespace) -> Entry:
    """Settings of the trainings on one platform."""
    of_learner, of_actor = PLATFORMS[name]
    settings = (
        f'distribution.device="{of_learner}"',
        f'distribution.actor.device="{of_actor}"',
        f"experiment.stop={{ env_steps = {options.env_steps} }}",
        "experiment.eval_episodes=0",
        *options.set,
    )
    return Entry(f"platform-{name}", options.config, settings)


def read(run: RunDirectory, seed: int) -> Training:
    """Read a training in which an episode has ended."""
    training = read_training(run, seed)
    if training.curve is None:
        raise RunFailed(f"no episode ended in {training.env_steps} env steps: --env-steps should be more")
    return training


def bands_of(curves: Mapping[KeyT, Sequence[Curve]], points: int) -> tuple[Array, dict[KeyT, Estimate]]:
    """Estimate interquartile means over seeds, on a grid of env steps at which every curve has a return."""
    every = [curve for of in curves.values() for curve in of]
    grid = np.linspace(*stretch(every, "env_steps", [False] * len(every)), points)
    return grid, {
        name: estimate(np.stack([values_on(grid, curve, "env_steps", held=False) for curve in of]))
        for name, of in curves.items()
    }


def cell(of: Estimate, i: int) -> str:
    """Write the mean at a point of the grid, and its interval."""
    return f"{of.value[i]:.1f} [{of.low[i]:.1f}, {of.high[i]:.1f}]"


def as_lists(of: Estimate) -> dict[str, list[float]]:
    """Write the means and their intervals for JSON."""
    return {"iqm": of.value.tolist(), "low": of.low.tolist(), "high": of.high.tolist()}


def overlaps(one: Estimate, other: Estimate) -> npt.NDArray[np.bool_]:
    """Whether two intervals overlap, at each point."""
    return np.asarray((one.low <= other.high) & (other.low <= one.high))


def draw(curves: Mapping[str, Sequence[Curve]], path: Path) -> None:
    """Draw each platform's curve and its intervals into a PNG file."""

    def into(figure: Figure) -> None:
        axes = figure.add_subplot()
        end = max(curve.env_steps[-1] for of in curves.values() for curve in of)
        for (name, of), color in zip(curves.items(), COLORS, strict=False):
            draw_curve(axes, of, over="env_steps", end=end, color=color, label=name)
        axes.set_xlabel("Environment steps")
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.set_ylabel("Mean return")
        axes.legend()

    write_figure(into, 3.0, path)


def report(grid: Array, bands: Mapping[str, Estimate], steps_per_s: Mapping[str, Sequence[float]]) -> bool:
    """Print a row for each point; returns whether the intervals of all platforms overlap everywhere."""
    print(f"{'env steps':>10}" + "".join(f"{name:>26}" for name in bands))
    for i, steps in enumerate(grid):
        cells = [cell(of, i) for of in bands.values()]
        print(f"{steps:>10.0f}" + "".join(f"{cell:>26}" for cell in cells))
    for name, values in steps_per_s.items():
        print(f"# {name}: {np.median(values):,.0f} env steps/s (median over seeds)")
    alike = True
    for one, other in itertools.combinations(bands, 2):
        points = overlaps(bands[one], bands[other])
        alike &= bool(points.all())
        print(f"# {one} and {other}: intervals overlap at {points.sum()} of {len(points)} points")
    return alike


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="ppo_cartpole")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--env-steps", type=int, default=200_000)
    parser.add_argument("--points", type=int, default=10, help="of the grid")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all trainings")
    parser.add_argument("--out", type=Path, help="write figure-11.png and figure-11.json there")
    options = parser.parse_args()
    if options.seeds < LEAST_SEEDS:
        parser.error(f"--seeds {options.seeds} gives no interval: at least {LEAST_SEEDS} are needed")
    seeds, busy, lacking = (
        range(options.first_seed, options.first_seed + options.seeds),
        busy_share(),
        missing(),
    )
    print(
        f"# {in_short(busy)}; "
        f"{options.config}, seeds {seeds[0]} to {seeds[-1]}, {options.env_steps} env steps"
    )
    for name, why in lacking.items():
        print(f"# not here: {name} ({why})")
    names = [name for name in PLATFORMS if name not in lacking]
    try:
        found = train_in_turns({name: entry(name, options) for name in names}, seeds, None, read=read)
    except RunFailed as failed:
        sys.exit(str(failed))
    trainings = {name: of.trainings for name, of in found.items()}
    curves = {name: [one.curve for one in of if one.curve] for name, of in trainings.items()}
    steps_per_s = {name: [one.produced_per_s for one in of] for name, of in trainings.items()}
    grid, bands = bands_of(curves, options.points)
    alike = report(grid, bands, steps_per_s)
    if lacking:
        print(f"# compared with nothing: {', '.join(curves)} alone is here")
    else:
        print(f"# at every point: {'yes' if alike else 'NO'}")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        draw(curves, options.out / "figure-11.png")
        written = document(options, busy, lacking, grid, bands, steps_per_s)
        (options.out / "figure-11.json").write_text(json.dumps(written, indent=1) + "\n")
    return 0 if alike else 1


def document(
    options: argparse.Namespace,
    busy: float,
    lacking: Mapping[str, str],
    grid: Array,
    bands: Mapping[str, Estimate],
    steps_per_s: Mapping[str, Sequence[float]],
) -> dict[str, Any]:
    """Make the contents of the JSON file."""
    return {
        "config": options.config,
        "seeds": [options.first_seed, options.first_seed + options.seeds - 1],
        "busy": busy,
        "missing": dict(lacking),
        "env_steps": grid.tolist(),
        "platforms": {
            name: {
                **as_lists(of),
                "steps_per_s": list(steps_per_s[name]),
            }
            for name, of in bands.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
