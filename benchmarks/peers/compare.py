"""Times tianji and its peers on CartPole-v1: seconds from the first environment step until the mean
return of the last 100 training episodes is 475; or on Pong, until it is 18.

All run in turn, seed by seed, on the same cores, each in its own Python environment:

    python benchmarks/peers/compare.py --tianji .venv/bin/tianji --sb3 ENV/bin/python --seeds 1 2 3
    python benchmarks/peers/compare.py --recipe ours --tianji .venv/bin/tianji --sb3 ENV/bin/python
    python benchmarks/peers/compare.py --algorithm dqn --tianji .venv/bin/tianji --rllib ENV/bin/python
    python benchmarks/peers/compare.py --algorithm pong --cores 16 --tianji TIANJI --envpool ENV/bin/python

With ``--recipe theirs``, the default, each peer trains as its own project recommends. With ``--recipe ours``
it trains with the hyperparameters and networks of tianji's config, as far as it can; the comparison prints
and records the remaining differences. ``--recipe ours`` needs a Python that has tianji.

A run that fails ends the comparison; a run that does not reach the return counts as infinitely long.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipe import Recipe, ReplayRecipe, recipe_of, replay_recipe_of

HERE = Path(__file__).resolve().parent
PEERS = {
    "sb3": ("sb3.py", "Stable-Baselines3"),
    "sbx": ("sbx_peer.py", "SBX"),
    "rllib": ("rllib.py", "RLlib"),
    "sample-factory": ("sample_factory_peer.py", "Sample Factory"),
    "cleanrl": ("cleanrl_peer.py", "CleanRL's ppo.py, which --cleanrl-script names"),
    "serial": ("serial.py", "the plain serial loop"),
    "envpool": ("envpool_ppo.py", "a plain loop over EnvPool"),
}
CONFIGS = {
    "ppo": "configs/ppo_cartpole.toml",
    "dqn": "configs/dqn_cartpole.toml",
    "pong": "configs/ppo_pong_gpu.toml",
}
THRESHOLDS = {"ppo": "475", "dqn": "475", "pong": "18"}
SETTINGS = {"dqn": ("experiment.evaluation=false", "experiment.stop={mean_return=475,env_steps=650_000}")}
"""Settings for runs of a config whose own stop rule ends before the threshold, up to which runs are timed."""
TAKE_PART = {
    "ppo": ("sb3", "sbx", "rllib", "sample-factory", "cleanrl", "serial"),
    "dqn": ("rllib",),
    "pong": ("envpool",),
}
RECIPE = "recipe.json"
HAS_ALGORITHM = ("rllib",)
"""Peers that take ``--algorithm``."""
TIMEOUT_S = 2400.0
MAX_OTHERS_BUSY = 0.2
"""Cores; above this, peers whose threads wait for one another can be many times slower."""


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        seconds: time to the threshold; None if the run did not reach it.
        produced_per_s: environment steps, mean over the training.
        consumed_per_s: samples used in updates, mean over the training; None if unknown.
        wall_s: time of the whole process.
        others_busy_cores: cores that other processes kept busy just before.
    """

    contender: str
    seed: int
    seconds: float | None
    env_steps: int
    produced_per_s: float
    consumed_per_s: float | None
    wall_s: float
    others_busy_cores: float
    evaluation: float | None
    details: dict[str, Any]


def _busy_s() -> float:
    """Processor time of the whole machine, summed over cores, without idling and waiting."""
    user, nice, system, _idle, _iowait, irq, softirq = (
        int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:8]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def others_busy_cores() -> float:
    """Measure how many cores other processes keep busy, for a second in which this benchmark runs nothing."""
    busy_s, started_s = _busy_s(), time.perf_counter()
    time.sleep(1.0)
    return (_busy_s() - busy_s) / (time.perf_counter() - started_s)


def execute(command: Sequence[str], log: Path) -> float:
    """Run a command to its end with its output in ``log``; returns its seconds, and exits if it fails."""
    started_s = time.perf_counter()
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            sys.exit(f"{' '.join(command)}\nwas not done after {TIMEOUT_S:.0f} s; its output: {log}")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        sys.exit(f"{' '.join(command)}\nended with status {code}:\n{tail}")
    return time.perf_counter() - started_s


def run_tianji(tianji: str, algorithm: str, directory: Path, seed: int) -> Run:
    config, threshold = CONFIGS[algorithm], THRESHOLDS[algorithm]
    result = directory / f"tianji-{seed}.json"
    command = [tianji, "train", config, "--set", f"experiment.seed={seed}", "--json", str(result), "--quiet"]
    command += [word for setting in SETTINGS.get(algorithm, ()) for word in ("--set", setting)]
    busy = others_busy_cores()
    wall_s = execute([*command, "--out", str(directory / "runs")], directory / f"tianji-{seed}.log")
    summary = json.loads(result.read_text())
    evaluation = summary.get("evaluation") or {}
    if evaluation.get("left_out"):
        sys.exit(f"{config}, seed {seed}: the evaluation was cut off after {evaluation['cut_off']}")
    return Run(
        "tianji",
        seed,
        summary["time_to"][threshold],
        summary["env_steps"],
        summary["produced_per_s"],
        summary["consumed_per_s"],
        wall_s,
        busy,
        evaluation.get("mean"),
        summary,
    )


def run_peer(peer: str, python: str, more: Sequence[str], directory: Path, seed: int) -> Run:
    result = directory / f"{peer}-{seed}.json"
    command = [python, str(HERE / PEERS[peer][0]), "--seed", str(seed), "--json", str(result), *more]
    busy = others_busy_cores()
    wall_s = execute(command, directory / f"{peer}-{seed}.log")
    report = json.loads(result.read_text())
    rates = report["produced_per_s"], report["consumed_per_s"]
    return Run(peer, seed, report["seconds"], report["env_steps"], *rates, wall_s, busy, None, report)


def _seconds(run: Run) -> float:
    return math.inf if run.seconds is None else run.seconds


def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Make a table row for each contender; ``ratio`` is its median time over tianji's."""
    by_contender: dict[str, list[Run]] = {}
    for run in runs:
        by_contender.setdefault(run.contender, []).append(run)
    medians = {name: statistics.median(map(_seconds, own)) for name, own in by_contender.items()}
    ours = medians.get("tianji", math.nan)
    rows = []
    for name, own in by_contender.items():
        times = sorted(map(_seconds, own))
        evaluations = [run.evaluation for run in own if run.evaluation is not None]
        row = {
            "contender": name,
            "runs": len(own),
            "reached": sum(run.seconds is not None for run in own),
            "median_s": medians[name],
            "min_s": times[0],
            "max_s": times[-1],
            "ratio": medians[name] / ours,
            "env_steps": statistics.median(run.env_steps for run in own),
            "produced_per_s": statistics.median(run.produced_per_s for run in own),
            "consumed_per_s": _median_of_known(run.consumed_per_s for run in own),
            "compile_s": _median_of_known(run.details.get("compile_s") for run in own),
            "wall_s": statistics.median(run.wall_s for run in own),
            "worst_evaluation": min(evaluations, default=None),
        }
        rows.append(
            {
                key: None if isinstance(value, float) and not math.isfinite(value) else value
                for key, value in row.items()
            }
        )
    return rows


def _median_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def print_progress(run: Run) -> None:
    seconds = "not reached" if run.seconds is None else f"{run.seconds:.2f} s"
    busy = run.others_busy_cores
    note = f"  (others kept {busy:.1f} cores busy: not comparable)" if busy > MAX_OTHERS_BUSY else ""
    print(f"# seed {run.seed}: {run.contender} {seconds}{note}", flush=True)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    columns = {
        "contender": 16,
        "reached": 9,
        "median_s": 10,
        "min_s": 9,
        "max_s": 9,
        "ratio": 8,
        "env_steps": 11,
        "produced_per_s": 15,
        "consumed_per_s": 15,
        "compile_s": 11,
        "wall_s": 9,
        "worst_evaluation": 17,
    }
    print("".join(f"{name:>{width}}" for name, width in columns.items()))
    for row in rows:
        cells = row | {"reached": f"{row['reached']}/{row['runs']}"}
        print("".join(f"{_cell(cells[name]):>{width}}" for name, width in columns.items()))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.{0 if abs(value) >= 1000 else 2}f}" if isinstance(value, float) else str(value)


def _environment(cores: Sequence[int]) -> dict[str, Any]:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": list(cores),
        "system": platform.platform(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _recipe_of(config: str, algorithm: str) -> Recipe | ReplayRecipe:
    if algorithm == "dqn":
        return replay_recipe_of(config)
    recipe = recipe_of(config)
    if recipe.normalize_observations or recipe.normalize_rewards:
        sys.exit(f"{config}: --recipe ours takes a config that normalises nothing: not every peer can")
    return recipe


def _contenders(options: argparse.Namespace, directory: Path) -> list[Callable[[int], Run]]:
    contenders: list[Callable[[int], Run]] = []
    algorithm = options.algorithm
    config = options.config or CONFIGS[algorithm]
    if options.recipe == "ours":
        _recipe_of(config, algorithm).write(directory / RECIPE)
    if options.tianji:
        contenders.append(functools.partial(run_tianji, options.tianji, algorithm, directory))
    for peer in TAKE_PART[algorithm]:
        python = getattr(options, peer.replace("-", "_"))
        if python:
            more = ["--algorithm", algorithm] if peer in HAS_ALGORITHM else []
            if peer == "cleanrl":
                more += ["--script", str(options.cleanrl_script)]
            if options.recipe == "ours":
                more += ["--recipe", str(directory / RECIPE)]
            contenders.append(functools.partial(run_peer, peer, python, more, directory))
    return contenders


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tianji", metavar="COMMAND", help="the tianji command; left out: not run")
    parser.add_argument("--algorithm", choices=CONFIGS, default="ppo")
    parser.add_argument("--recipe", choices=("ours", "theirs"), default="theirs", help="how peers train")
    parser.add_argument("--config", help="what tianji trains (default: that algorithm's)")
    for peer, (script, title) in PEERS.items():
        parser.add_argument(f"--{peer}", metavar="PYTHON", help=f"runs {title} ({script}); left out: not run")
    parser.add_argument(
        "--cleanrl-script", type=Path, metavar="PATH", help="cleanrl/ppo.py of a checkout of CleanRL"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--cores", type=int, default=2, help="cores that every contender may use")
    parser.add_argument("--out", type=Path, help="keeps logs and results here (default: a temporary folder)")
    parser.add_argument("--json", metavar="PATH", help="also writes all runs and the table to this file")
    options = parser.parse_args()
    if options.cleanrl and (options.cleanrl_script is None or not options.cleanrl_script.is_file()):
        parser.error(
            "--cleanrl goes with --cleanrl-script: cleanrl/ppo.py of its repository, which is run as it is"
        )
    if options.recipe == "ours" and options.algorithm == "pong":
        parser.error("--recipe ours is for --algorithm ppo and dqn, not pong")
    for peer in PEERS:
        if not getattr(options, peer.replace("-", "_")):
            continue
        if peer not in TAKE_PART[options.algorithm]:
            own = [algorithm for algorithm, peers in TAKE_PART.items() if peer in peers]
            parser.error(
                f"--{peer} takes no part in --algorithm {options.algorithm}; it does in {' and '.join(own)}"
            )
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    os.sched_setaffinity(0, cores)
    directory = options.out or Path(tempfile.mkdtemp(prefix="tianji-peers-"))
    directory.mkdir(parents=True, exist_ok=True)
    contenders = _contenders(options, directory)
    if not contenders:
        parser.error("nothing to run: give --tianji, or the Python of a peer")
    environment = _environment(cores)
    print("".join(f"# {key}: {value}\n" for key, value in environment.items()), end="")
    runs: list[Run] = []
    for seed in options.seeds:
        for contender in contenders:
            runs.append(contender(seed))
            print_progress(runs[-1])
    rows = summarise(runs)
    print_table(rows)
    differs = {run.contender: run.details.get("differs", []) for run in runs}
    for contender, words in differs.items():
        for word in words:
            print(f"# {contender} is not by the recipe: {word}")
    if options.json:
        document = {"environment": environment, "recipe": options.recipe, "differs": differs, "rows": rows}
        document["runs"] = [asdict(run) for run in runs]
        Path(options.json).write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
