"""Tests the results of `tianji sweep`: settings that learn CartPole, and the minimum of a function.

    python benchmarks/sweep.py cartpole --out DIR [--json PATH]
    python benchmarks/sweep.py hartmann --out DIR [--studies 10] [--trials 60] [--checked 8] [--json PATH]
    python benchmarks/sweep.py kills --out DIR [--kills 45] [--trials 60] [--json PATH]

``cartpole``: takes `configs/ppo_cartpole.toml` with four keys that make it learn nothing, and searches these
keys in wide ranges, the learning rate from 1e-6 to 1e-1, one trial on each core: 40 trials. Then it trains
the best trial's config with five new seeds; a seed is solved if its last 100 episodes have a mean of 475.

``hartmann``: runs studies of 60 trials with TPE and with random search, and counts how often TPE ends with
the better best value. Draws, journal and everything else of the search are those of the command, but no
process trains: a training takes seconds of a core, the function microseconds. A check shows that the search
is the same: the command runs ``--checked`` trials of random search in which the function is an environment of
one step, and each trial must draw the same point and have the same value.

``kills``: three commands share a sweep of 60 trials; one of them is killed (SIGKILL) after a second or a few,
and started again, 45 times. In the end each trial has to be over, and to have ended once in the journal.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hartmann import minus_hartmann6

from tianji_cli.config.source import read
from tianji_cli.launch.children import python_command
from tianji_cli.runs.sweep.space import plan_sweep
from tianji_cli.runs.sweep.study import SweepStudy
from tianji_cli.telemetry.machine import cpu_model
from tianji_lab.environment import busy_share

NEW_SEEDS = (101, 102, 103, 104, 105)
SOLVED = 475.0
NAMES = "abcdef"
PROCESSES = 3
CREATE_TRIAL, SET_STATE = 4, 6
"""Codes of operations in Optuna's journal."""
OVER = (1, 2, 3)
"""Codes of the states of trials that are complete, pruned or failed."""

CARTPOLE = """\
extends = "configs/ppo_cartpole.toml"

[experiment]
name = "sweep_cartpole"
stop = { env_steps = 150_000, wall_s = 30 }
eval_episodes = 0
track = []

[training]                         # so it learns nothing
learning_rate = 1e-6
gamma = 0.5
gae_lambda = 0.1
epochs = 1

[distribution]
transport = "inproc"               # a trial on each core

[sweep]
metric = "mean_100"
trials = 40

[sweep.parameters]
training.learning_rate = { low = 1e-6, high = 1e-1, log = true }
training.gamma = { low = 0.5, high = 0.999 }
training.gae_lambda = { low = 0.1, high = 1.0 }
training.epochs = { low = 1, high = 8 }
"""

HARTMANN = """\
[experiment]
name = "sweep_hartmann"
stop = { env_steps = 128 }
eval_episodes = 0
plots = false
track = []

[environment]
type = "hartmann:make"
num_envs = 4

[agent]
type = "ppo"

[model]
hidden = [4]

[training]
rollout_steps = 64
minibatch_size = 64
epochs = 1

[distribution]
transport = "inproc"
actor = { send_size = 16 }

[sweep]
metric = "mean_100"

[sweep.parameters]
"""


def cartpole(out: Path) -> dict[str, Any]:
    out.mkdir(parents=True)
    config = out / "bad.toml"
    config.write_text(CARTPOLE)
    began = time.monotonic()
    tianji("sweep", str(config), "--out", str(out / "sweep"))
    took = time.monotonic() - began
    summary = json.loads((out / "sweep/summary.json").read_text())
    seeds = ",".join(map(str, NEW_SEEDS))
    solved = "experiment.stop={mean_return=475.0,env_steps=1_000_000,wall_s=120}"
    best = str(out / "sweep/best.toml")
    tianji("train", best, "--seeds", seeds, "--out", str(out / "new"), "--set", solved)
    runs = json.loads((out / "new/sweep_cartpole/seeds-1/summary.json").read_text())["seeds"]
    return {
        "sweep_s": took,
        "trials": summary["trials"],
        "best": summary["best"],
        "solved": sum(run["best_mean_100"] is not None and run["best_mean_100"] >= SOLVED for run in runs),
        "new_seeds": [
            {key: run[key] for key in ("seed", "best_mean_100", "env_steps", "train_s")} for run in runs
        ],
    }


def tianji(*words: str) -> None:
    subprocess.run(python_command("tianji_cli", *words), check=True, stdin=subprocess.DEVNULL)


def hartmann(out: Path, studies: int, trials: int, checked: int) -> dict[str, Any]:
    out.mkdir(parents=True)
    config = out / "hartmann.toml"
    here = json.dumps(str(Path(__file__).parent.absolute()))
    config.write_text(
        HARTMANN.replace("[environment]", f"extensions = [{here}]\n\n[environment]")
        + "".join(f"environment.options.{name} = {{ low = 0.0, high = 1.0 }}\n" for name in NAMES)
    )
    rows = []
    for seed in range(studies):
        best = {}
        for sampler in ("tpe", "random"):
            values = searched(config, sampler, seed, trials)
            best[sampler] = max(value for _, value in values)
        rows.append({"study": seed, **best})
        print(f"study {seed}: TPE {best['tpe']:.3f}, random {best['random']:.3f}", flush=True)
    return {
        "studies": rows,
        "tpe_better": sum(row["tpe"] > row["random"] for row in rows),
        "median": {name: float(np.median([row[name] for row in rows])) for name in ("tpe", "random")},
        "checked": check(out, config, checked) if checked else None,
    }


def searched(config: Path, sampler: str, seed: int, trials: int) -> list[tuple[list[float], float]]:
    """Run a study without trainings; returns points and values."""
    settings = [f"sweep.sampler={sampler}", f"sweep.seed={seed}", f"sweep.trials={trials}"]
    plan = plan_sweep(read(str(config), settings), None)
    found = []
    with tempfile.TemporaryDirectory() as place:
        study = SweepStudy(Path(place) / "journal.log", plan.sweep, plan.space)
        study.ask_for(plan.trials)
        while (trial := study.take("benchmark", lambda _: False)) is not None:
            values = study.values(trial)
            point = [values[f"environment.options.{name}"] for name in NAMES]
            study.finish(trial, minus_hartmann6(point))
            found.append((point, minus_hartmann6(point)))
    return found


def check(out: Path, config: Path, trials: int) -> dict[str, Any]:
    """Run a study with trainings by the command, and compare its trials with those without trainings."""
    settings = ("--set", "sweep.sampler=random", "--trials", str(trials))
    tianji("sweep", str(config), *settings, "--out", str(out / "trained"))
    with (out / "trained/trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row, (point, value) in zip(rows, searched(config, "random", 0, trials), strict=True):
        assert [float(row[f"environment.options.{name}"]) for name in NAMES] == point, row
        assert abs(float(row["value"]) - value) < 1e-5, row
    return {"trials": len(rows), "same": True}


def kills(out: Path, trials: int, number: int) -> dict[str, Any]:
    """Kill the processes of a sweep; returns counts of the trials that were lost or ended twice."""
    config = out.parent / f"{out.name}.toml"
    config.write_text(CARTPOLE.replace("env_steps = 150_000", "env_steps = 20_480"))
    command = python_command("tianji_cli", "sweep", str(config), "--out", str(out), "--trials", str(trials))
    drawn = random.Random(0)
    began = time.monotonic()

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, "--quiet"], stdin=subprocess.DEVNULL)

    commands = [start() for _ in range(PROCESSES)]
    killed = 0
    while killed < number and any(one.poll() is None for one in commands):
        time.sleep(drawn.uniform(1.0, 4.0))
        place = drawn.randrange(PROCESSES)
        if commands[place].poll() is None:
            commands[place].kill()
            commands[place].wait()
            killed += 1
            commands[place] = start()
    for one in commands:
        one.wait()
    asked_for, ends = 0, Counter[int]()
    for line in (out / "journal.log").read_text().splitlines():
        row = json.loads(line)
        asked_for += row["op_code"] == CREATE_TRIAL
        if row["op_code"] == SET_STATE and row["state"] in OVER:
            ends[row["trial_id"]] += 1
    summary = json.loads((out / "summary.json").read_text())
    return {
        "kills": killed,
        "seconds": time.monotonic() - began,
        "trials": asked_for,
        "lost": asked_for - len(ends),
        "ended_twice": sum(times > 1 for times in ends.values()),
        "failed": summary["failed"],
        "over_by_the_summary": summary["trials"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("cartpole", "hartmann", "kills"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--studies", type=int, default=10)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--checked", type=int, default=8)
    parser.add_argument("--kills", type=int, default=45)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    busy = busy_share()
    document = {"machine": cpu_model(), "cores": len(os.sched_getaffinity(0)), "busy_before": busy}
    if asked.what == "cartpole":
        document |= cartpole(asked.out)
    elif asked.what == "kills":
        document |= kills(asked.out, asked.trials, asked.kills)
    else:
        document |= hartmann(asked.out, asked.studies, asked.trials, asked.checked)
    text = json.dumps(document, indent=2)
    print(text)
    if asked.json is not None:
        asked.json.write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
