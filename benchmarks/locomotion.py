"""Compares tianji and Stable-Baselines3 on MuJoCo tasks: returns after equal env steps, and time.

    python benchmarks/locomotion.py --config configs/ppo_hopper.toml --seeds 5 --out runs/locomotion
    python benchmarks/locomotion.py --config CONFIG --env-steps N --sb3 ENV/bin/python --out DIR --json PATH
    python benchmarks/locomotion.py --config CONFIG --recipe ours --sb3 ENV/bin/python --out DIR

For each seed tianji trains the config for --env-steps, and Stable-Baselines3 the same task with the same
algorithm: with its own settings (see ``peers/sb3_locomotion.py``), or with ``--recipe ours`` PPO with the
config's settings. Both last policies play greedy episodes. Results are interquartile means over seeds with
95 % bootstrap intervals. Each training stays in ``--out`` and is not repeated, so an interrupted benchmark
continues. Leave the machine alone meanwhile.

How near does production come to the limit of the cores? `tianji profile` measures the parts: seconds to step,
to choose an action and to learn, each for one env step. M cores that are never idle make
``M / (t_step + t_act + t_learn)`` env steps a second; the last lines have this bound, and the trainings'
share of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from peers.recipe import recipe_of

from tianji_cli.config.loader import load_config
from tianji_cli.launch.children import python_command
from tianji_cli.telemetry.machine import cpu_model
from tianji_lab.environment import busy_share
from tianji_lab.profile.parts import Measurements
from tianji_lab.ranges import Range
from tianji_lab.training import read_summary, train_once

PEER = Path(__file__).parent / "peers" / "sb3_locomotion.py"
ALGORITHMS = ("ppo", "sac")
"""Algorithms of the peer's script."""
COSTS = ("t_step", "t_act", "t_learn")
COLUMNS = {"return": "mean", "train s": "train_s", "wall s": "wall_s", "env steps": "env_steps"}

Run = dict[str, Any]


def train_tianji(options: argparse.Namespace, seed: int) -> Run:
    """Train the config with tianji."""
    settings = [
        *options.set,
        f"experiment.seed={seed}",
        f"experiment.stop={{ env_steps = {options.env_steps} }}",
        f"experiment.eval_episodes={options.episodes}",
        'experiment.eval_checkpoint="last"',
        "experiment.plots=false",
    ]
    run = train_once(options.config, settings, name=f"{Path(options.config).stem}-{seed}", place=options.out)
    summary = read_summary(run)
    found = {name: summary[name] for name in ("env_steps", "train_s")}
    return found | {"mean": summary["evaluation"]["mean"], "run": str(run.path)}


def train_peer(options: argparse.Namespace, seed: int) -> Run:
    """Train the same task with Stable-Baselines3."""
    goal = f"experiment.stop={{ env_steps = {options.env_steps} }}"
    job = load_config(options.config, options.set)
    told = {
        "--task": job.environment.id,
        "--algorithm": job.agent.type,
        "--env-steps": options.env_steps,
        "--episodes": options.episodes,
        "--seed": seed,
    }
    words = [str(word) for pair in told.items() for word in pair]
    with tempfile.TemporaryDirectory() as place:
        result = Path(place) / "result.json"  # MuJoCo may print on standard output.
        command = [options.sb3, str(PEER), *words, "--json", str(result)]
        if options.recipe == "ours":
            recipe = Path(place) / "recipe.json"
            recipe_of(options.config, [*options.set, goal]).write(recipe)
            command += ["--recipe", str(recipe)]
        threads = os.environ | {"OMP_NUM_THREADS": str(options.sb3_threads)}
        subprocess.run(command, check=True, env=threads)
        found: Run = json.loads(result.read_text())
    return found | {"mean": float(np.mean(found["returns"]))}


def once(options: argparse.Namespace, contender: str, seed: int) -> Run:
    """Train, unless a result with these options exists; exits if its options are others."""
    asked = {name: getattr(options, name) for name in ("config", "set", "env_steps", "episodes")}
    if contender == "sb3":
        asked |= {"sb3_threads": options.sb3_threads}
        asked |= {"recipe": "ours"} if options.recipe == "ours" else {}
    path: Path = options.out / f"{Path(options.config).stem}-{contender}-{seed}.json"
    if not path.exists():
        busy, began_s = busy_share(), time.monotonic()
        run = {"tianji": train_tianji, "sb3": train_peer}[contender](options, seed)
        run |= {"contender": contender, "seed": seed, "busy": busy, "wall_s": time.monotonic() - began_s}
        run |= {"asked": asked}
        path.with_suffix(".part").write_text(json.dumps(run, indent=1) + "\n")
        path.with_suffix(".part").rename(path)
    found: Run = json.loads(path.read_text())
    if found["asked"] != asked:
        sys.exit(f"{path} is of other options, {found['asked']}; another --out would be right")
    print(
        f"# seed {seed}: {contender} {found['mean']:.1f} after {found['env_steps']} env steps, "
        f"{found['train_s']:.1f} s ({found['busy']:.0%} of the cores busy before)",
        flush=True,
    )
    return found


def measure_bound(options: argparse.Namespace) -> dict[str, float]:
    """Compute the env steps a second of cores that are never idle, from the costs of the parts alone."""
    path: Path = options.out / f"{Path(options.config).stem}-profile.json"
    if not path.exists():
        settings = [word for setting in options.set for word in ("--set", setting)]
        command = ["profile", options.config, *settings, "--quiet", "--json", str(path.with_suffix(".part"))]
        subprocess.run(python_command("tianji_cli", *command), check=True)
        path.with_suffix(".part").rename(path)
    measured = Measurements.model_validate_json(json.dumps(json.loads(path.read_text())["measurements"]))
    part = measured.parts[0]
    costs = {
        "t_step": part.step_s / part.samples,
        "t_act": part.act_s / part.samples,
        "t_learn": measured.rho * part.update_s / part.uses_per_update,
    }
    return costs | {"bound": measured.cores / sum(costs.values())}


def interval(values: Sequence[float]) -> dict[str, float]:
    """Estimate the interquartile mean over seeds, and its interval."""
    of = Range.estimated(values)
    return {"iqm": of.middle, "low": of.low, "high": of.high}


def summarise(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, float]]]:
    """Make the table's rows by contender; ``sb3 over tianji`` has the ratios of the same seeds' times."""
    by_contender: dict[str, list[Run]] = {}
    for run in runs:
        by_contender.setdefault(run["contender"], []).append(run)
    rows = {
        contender: {name: interval([run[key] for run in own]) for name, key in COLUMNS.items()}
        for contender, own in by_contender.items()
    }
    if len(by_contender) > 1:
        pairs = list(zip(by_contender["sb3"], by_contender["tianji"], strict=True))
        rows["sb3 over tianji"] = {
            name: interval([theirs[COLUMNS[name]] / ours[COLUMNS[name]] for theirs, ours in pairs])
            for name in ("train s", "wall s")
        }
    return rows


def print_table(rows: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    print(f"{'':16}" + "".join(f"{name:>28}" for name in COLUMNS))
    for contender, row in rows.items():
        cells = [
            f"{row[name]['iqm']:.4g} [{row[name]['low']:.4g}, {row[name]['high']:.4g}]"
            if name in row
            else "-"
            for name in COLUMNS
        ]
        print(f"{contender:16}" + "".join(f"{cell:>28}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="configs/ppo_hopper.toml")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--env-steps", type=int, default=1_000_000)
    parser.add_argument("--episodes", type=int, default=100, help="of each evaluation")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of tianji's trainings, and of our recipe",
    )
    parser.add_argument(
        "--sb3", metavar="PYTHON", help="has Stable-Baselines3 and gymnasium[mujoco]; left out: not run"
    )
    parser.add_argument(
        "--recipe", choices=("ours", "theirs"), default="theirs", help="how Stable-Baselines3 trains PPO"
    )
    parser.add_argument("--sb3-threads", type=int, default=1, metavar="N", help="of its torch")
    parser.add_argument("--out", type=Path, required=True, help="where each training stays")
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    algorithm = load_config(options.config, options.set).agent.type
    if options.sb3 and algorithm not in ALGORITHMS:
        parser.error(f"--sb3 takes part with agent.type {' or '.join(ALGORITHMS)}, not {algorithm}")
    if options.recipe == "ours" and algorithm != "ppo":
        parser.error(f"--recipe ours is for PPO, not {algorithm}")
    environment = {
        "machine": f"{cpu_model()}, {len(os.sched_getaffinity(0))} cores",
        "system": platform.platform(),
        "trained": f"{options.config}, {options.env_steps} env steps, {options.seeds} seeds",
    }
    for key, value in environment.items():
        print(f"# {key}: {value}")
    options.out.mkdir(parents=True, exist_ok=True)
    contenders = ["tianji", "sb3"] if options.sb3 else ["tianji"]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    runs = [once(options, contender, seed) for seed in seeds for contender in contenders]
    rows = summarise(runs)
    print("# interquartile means over seeds [95 % intervals]")
    print_table(rows)
    bound = measure_bound(options)
    made = interval([run["env_steps"] / run["train_s"] for run in runs if run["contender"] == "tianji"])
    print("# alone, us a step: " + ", ".join(f"{name} {1e6 * bound[name]:.1f}" for name in COSTS))
    most = bound["bound"]
    print(f"# production {made['iqm']:.0f} env steps/s, {made['iqm'] / most:.0%} of {most:.0f}")
    if options.json:
        document = {
            "environment": environment,
            "rows": rows,
            "runs": runs,
            "bound": bound,
            "production": made,
        }
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
