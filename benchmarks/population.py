"""Compares a population with members that keep their hyperparameters, at equal env steps.

    python benchmarks/population.py toy --out DIR [--seeds 1,2,3,4,5] [--json PATH]
    python benchmarks/population.py lunarlander --out DIR [--seeds 1,2,3,4,5] [--env-steps 400_000]

``toy``: figure 2 of Jaderberg et al. (2017), which is `docs/examples/coefficients.toml`. Measures the best
mean return of the population, and of each of its two members alone with its first coefficients. The maximum
is 1.2.

``lunarlander``: `configs/ppo_lunarlander_population.toml` with four bad learning rates at the start. Each of
the four members also trains alone, with a quarter of the env steps, so that both sides have equally many. The
best of the four counts. There are two measures: the best mean return of 100 training episodes, and the mean
return of 100 greedy episodes with the best policy by the first measure, which is noisy while a policy has
learnt little.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.config.population import config_with
from tianji_cli.config.schema import JobConfig
from tianji_cli.launch.children import python_command
from tianji_cli.root.observers.population import first_members
from tianji_lab.environment import busy_share, cpu_model

TOY = "docs/examples/coefficients.toml"
LUNARLANDER = "configs/ppo_lunarlander_population.toml"
MEASURES = ("best_mean_100", "evaluation")
RATES = """\
"training.learning_rate" = { low = 1e-6, high = 1e-1, log = true, factors = [0.5, 2.0], \
initial = [1e-6, 1e-5, 3e-2, 1e-1] }, \
"training.entropy_coef" = { low = 1e-3, high = 1e-1, log = true, initial = [0.01, 0.01, 0.01, 0.01] }\
"""
"""Bounds of the perturbed hyperparameters; a member alone learns little with any of the initial rates."""


def population_config(path: str, seed: int, *settings: str) -> JobConfig:
    return load_config(path, [f"experiment.seed={seed}", "experiment.track=[]", *settings])


def alone(config: JobConfig, member: int) -> JobConfig:
    """Make the config of a member alone: its first hyperparameters, its share of the env steps."""
    own = config_with(config, first_members(config)[member])
    stop, groups = own.experiment.stop, own.distribution.groups
    assert stop.env_steps is not None
    stop = stop.model_copy(update={"env_steps": stop.env_steps // groups})
    return own.model_copy(
        update={
            "population": None,
            "experiment": own.experiment.model_copy(update={"stop": stop}),
            "distribution": own.distribution.model_copy(update={"groups": 1}),
        }
    )


def trained(config: JobConfig, out: Path) -> dict[str, Any]:
    """Train, unless a summary exists; returns the summary."""
    out.mkdir(parents=True, exist_ok=True)
    file, summary = out / "config.toml", out / "summary.json"
    if not summary.exists():
        file.write_text(dump_config(config))
        command = python_command("tianji_cli", "train", str(file), "--quiet", "--out", str(out))
        ended = subprocess.run([*command, "--json", str(summary)], stdin=subprocess.DEVNULL, check=False)
        if ended.returncode:  # The gradient of a member alone may become infinite; it has learnt nothing.
            document = {"status": "failed", "env_steps": 0, "returns": {"best_mean_100": None}}
            summary.write_text(json.dumps(document | {"evaluation": None}))
    found: dict[str, Any] = json.loads(summary.read_text())
    return found


def result(summary: dict[str, Any]) -> dict[str, Any]:
    evaluation = summary["evaluation"] or {}
    return {
        "best_mean_100": summary["returns"]["best_mean_100"],
        "evaluation": evaluation.get("mean"),
        "env_steps": summary["env_steps"],
        "status": summary["status"],
    }


def compared(config: JobConfig, out: Path) -> dict[str, Any]:
    """Train a population, and each of its members alone; returns the results."""
    together = trained(config, out / "population")
    members = [
        result(trained(alone(config, one), out / f"member-{one}"))
        for one in range(config.distribution.groups)
    ]
    row = {
        "seed": config.experiment.seed,
        "population": result(together),
        "rounds": together["population"]["rounds"],
        "fixed": members,
        "hyperparameters": [
            {"group": one["group"], "score": one["score"], **one["hyperparameters"]}
            for one in together["population"]["members"]
        ],
    }
    for measure in MEASURES:
        of_members = ", ".join(f"{member[measure]:.4g}" for member in members if member[measure] is not None)
        if (reached := row["population"][measure]) is not None:
            print(f"seed {row['seed']}, {measure}: population {reached:.4g}; fixed {of_members}", flush=True)
    return row


def is_better(row: dict[str, Any], measure: str) -> bool:
    """Whether a population has reached more than each of its members alone."""
    fixed = [member[measure] for member in row["fixed"] if member[measure] is not None]
    reached = row["population"][measure]
    return reached is not None and all(reached > one for one in fixed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("toy", "lunarlander"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--env-steps", type=int, default=400_000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    document: dict[str, Any] = {"machine": cpu_model(), "cores": len(os.sched_getaffinity(0))}
    document |= {"busy_before": busy_share(), "what": asked.what, "seeds": []}
    for seed in map(int, asked.seeds.split(",")):
        if asked.what == "toy":
            few = "experiment.stop={env_steps=12_000}", "experiment.eval_episodes=0"
            config = population_config(TOY, seed, *few)
        else:
            stop = f"experiment.stop={{env_steps={asked.env_steps}}}"
            config = population_config(LUNARLANDER, seed, stop, f"population.perturb={{{RATES}}}")
        document["seeds"].append(compared(config, asked.out / f"seed-{seed}"))
    rows = document["seeds"]
    measures = MEASURES if asked.what == "lunarlander" else MEASURES[:1]
    document["better"] = {one: sum(is_better(row, one) for row in rows) for one in measures}
    for measure, better in document["better"].items():
        print(f"by {measure} the population is better with {better} of {len(rows)} seeds")
    if asked.json:
        asked.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
