"""Trains teams and compares them: QMIX beside VDN, beside baselines, and on SMAX beside JaxMARL's own QMIX.

`tianji train` trains every system with every seed, in turns, and `tianji eval` plays each final policy
greedily. Baselines play the same environment behind the same wrapper (`tianji eval RUN --policy`). The share
of the gap is 0 for random actions and 1 for the heuristic.

    python benchmarks/multiagent.py two-step                          # 5 seeds, to the configs' own stop rule
    python benchmarks/multiagent.py spread --minutes 10 --out DIR     # QMIX, VDN, MAPPO, MADDPG
    python benchmarks/multiagent.py adversary --minutes 10 --out DIR
    python benchmarks/multiagent.py smax --minutes 30 --peer PEER.json ... --out DIR

PEER.json is the report of benchmarks/peers/jaxmarl_qmix.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from tianji_cli.errors import RunFailed
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.launch.children import python_command, run_child
from tianji_cli.runs.comparison.curves import Curve, read_curve
from tianji_cli.runs.comparison.figures import draw_curve
from tianji_cli.runs.comparison.statistics import estimate
from tianji_cli.telemetry.figures import BLACK, COLORS, GREY, write_figure
from tianji_cli.telemetry.metrics import read_metrics
from tianji_lab.environment import busy_share
from tianji_lab.training import END_S, read_summary, refuse_cut_off, train_once

HEIGHT: Final = 2.6
"""Height of the figure in inches."""
EVAL_SEED: Final = 10_000
"""Seed of the environments in which policies and baselines play."""
DASHES: Final = {"random": ":", "heuristic": "--"}
PEER_DASHES: Final = ("-", "--", ":", "-.")
Row = dict[str, Any]


@dataclass(frozen=True)
class System:
    """A config to train, with settings that override its own.

    Attributes:
        name: in tables and plots.
        config: path or name of the config.
        settings: ``SECTION.KEY=VALUE``.
    """

    name: str
    config: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """A comparison of systems.

    Attributes:
        systems: systems to train.
        seeds: default number of seeds.
        minutes: default length of each training; None for the config's own stop rule.
        baselines: policies that `tianji eval --policy` plays for comparison.
    """

    systems: tuple[System, ...]
    seeds: int
    minutes: float | None
    baselines: tuple[str, ...]


def shipped(*names: str) -> tuple[System, ...]:
    """Make systems of shipped configs without other settings."""
    return tuple(System(name, f"configs/{name}.toml") for name in names)


TWO_STEP: Final = "configs/qmix_two_step.toml"
EXPERIMENTS: Final = {
    "two-step": Experiment(
        (System("QMIX", TWO_STEP), System("VDN", TWO_STEP, ('model.mixer="vdn"',))), 5, None, ()
    ),
    "spread": Experiment(
        shipped("qmix_spread", "vdn_spread", "mappo_spread", "maddpg_spread"), 1, 10.0, tuple(DASHES)
    ),
    "adversary": Experiment(shipped("maddpg_adversary"), 1, 10.0, ("random",)),
    "smax": Experiment(shipped("qmix_3m"), 1, 30.0, ("random",)),
}


@dataclass(frozen=True)
class Trained:
    """Result of one training.

    Attributes:
        system: name of the system.
        seed: seed of the experiment.
        run: path of the run directory.
        evaluation: result of the greedy policy, as ``tianji eval --json`` writes it, without ``returns``.
        summary: the ``KEPT`` values of the run's summary.
        curve: mean return, or share won, of the last 100 episodes over time and steps.
    """

    system: str
    seed: int
    run: str
    evaluation: Row
    summary: Row
    curve: Curve


KEPT: Final = (
    "wall_s",
    "train_s",
    "env_steps",
    "updates",
    "produced_per_s",
    "consumed_per_s",
    "replay_ratio",
    "staleness",
    "returns",
)


def train(system: System, seed: int, options: argparse.Namespace, place: Path) -> Trained:
    """Train a system with one seed, and evaluate it."""
    settings = [*system.settings, f"experiment.seed={seed}", "experiment.eval_episodes=0"]
    if options.minutes is not None:
        settings.append(f"experiment.stop={{ wall_s = {60 * options.minutes!r} }}")
    run = train_once(
        system.config, [*settings, *options.set], name=f"{system.name.lower()}-{seed}", place=place
    )
    summary = read_summary(run)
    if summary["returns"]["mean_100"] is None:
        raise RunFailed(f"{run.path} ended before its first episode: --minutes should allow for more")
    return Trained(
        system=system.name,
        seed=seed,
        run=str(run.path),
        evaluation=play(run.path, options.episodes),
        summary={name: summary[name] for name in KEPT},
        curve=read_progress(run, summary),
    )


def read_progress(run: RunDirectory, summary: Row) -> Curve:
    """Read the share of episodes won from the reports, or the mean return if episodes cannot be won."""
    won = "win_rate" in summary["returns"]
    return read_curve(read_metrics(run.metrics), summary, "win_rate" if won else "mean_100")


def play(run: Path, episodes: int, *who: str) -> Row:
    """Play the environment of a training with one of its policies, or with a baseline."""
    asked = (*who, "--episodes", str(episodes), "--seed", str(EVAL_SEED), "--json", "-")
    ended, output = run_child(python_command("tianji_cli", "eval", str(run), *asked), patience_s=END_S)
    if ended.status != 0:
        raise RunFailed(f"{' '.join(who) or 'the trained policy'} did not play in {run}:\n{ended.last_words}")
    played: Row = json.loads(output)
    refuse_cut_off(played, str(run))
    del played["returns"]
    return played


@dataclass(frozen=True)
class Found:
    """Results of an experiment.

    Attributes:
        trainings: trainings of each system, by its name.
        baselines: results of baselines in each system's environment, by the system's name and policy.
        peers: reports of JaxMARL's own QMIX.
    """

    trainings: Mapping[str, Sequence[Trained]]
    baselines: Mapping[str, Mapping[str, Row]]
    peers: Sequence[Row]


def measure(systems: Sequence[System], options: argparse.Namespace, place: Path) -> Found:
    """Train every system with every seed, in turns, then play the baselines in each system's environment."""
    trainings: dict[str, list[Trained]] = {system.name: [] for system in systems}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for system in systems:
            trained = train(system, seed, options, place)
            trainings[system.name].append(trained)
            mean, spent = trained.evaluation["mean"], trained.summary["wall_s"]
            print(f"# {system.name}, seed {seed}: {mean:.2f} after {spent:.0f} s", flush=True)
    baselines = {
        name: {
            policy: play(Path(own[0].run), options.episodes, "--policy", policy)
            for policy in options.baselines
        }
        for name, own in trainings.items()
    }
    peers = [json.loads(report.read_text(encoding="utf-8")) for report in options.peer]
    return Found(trainings, baselines, peers)


def rows_of(found: Found) -> list[Row]:
    """Make the table's rows: each system, after its environment's baselines if they are new."""
    rows: list[Row] = []
    shown: dict[str, Mapping[str, Row]] = {}
    for name, own in found.trainings.items():
        beside = found.baselines[name]
        if beside not in shown.values():
            place = f" ({name})" if shown else ""
            rows += [{"policy": policy + place, **figures(played)} for policy, played in beside.items()]
            shown[name] = beside
        rows.append(row_of(name, own, beside))
    return rows + [row_of_peer(report) for report in found.peers]


def name_of_peer(report: Row) -> str:
    """Name a training of JaxMARL's QMIX by its map and width."""
    return f"JaxMARL's QMIX, {report['map']}, width {report['settings']['HIDDEN_SIZE']}"


def row_of_peer(report: Row) -> Row:
    """Make the table's row of a peer's training."""
    return {
        "policy": name_of_peer(report),
        "seeds": 1,
        "mean": report["mean_return"],
        "win rate": report["win_rate"],
        "wall s": report["start_s"] + report["train_s"],
        "steps": report["env_steps"],
        "steps/s": report["produced_per_s"],
    }


def figures(played: Row) -> Row:
    """Take the mean return, win rate and agents' returns of an evaluation."""
    return {
        "mean": played["mean"],
        "win rate": played.get("win_rate"),
        **{f"of {agent}": value for agent, value in (played.get("agents") or {}).items()},
    }


def row_of(name: str, own: Sequence[Trained], beside: Mapping[str, Row]) -> Row:
    """Make the table's row of one system, over its seeds."""
    means = np.array([one.evaluation["mean"] for one in own])
    over_seeds = estimate(means)
    mean = float(over_seeds.value)
    gap = None
    if DASHES.keys() <= beside.keys():
        low, high = beside["random"]["mean"], beside["heuristic"]["mean"]
        gap = (mean - low) / (high - low)
    of_agents = [figures(one.evaluation) for one in own]
    parts = {
        key: None if (value is None) else float(np.mean([each[key] for each in of_agents]))
        for key, value in of_agents[0].items()
    }
    of_runs = {
        key: float(np.median([one.summary[source] for one in own]))
        for key, source in (
            ("wall s", "wall_s"),
            ("steps", "env_steps"),
            ("steps/s", "produced_per_s"),
            ("uses/s", "consumed_per_s"),
        )
    }
    several = {"low": float(over_seeds.low), "high": float(over_seeds.high)} if len(own) > 1 else {}
    least = {"least": float(means.min())} if len(own) > 1 else {}
    return {
        "policy": name,
        "seeds": len(own),
        **parts,
        "mean": mean,
        **several,
        **least,
        "gap": gap,
        **of_runs,
    }


def markdown(rows: Sequence[Row]) -> str:
    """Make a table with a line for each row, without columns that are empty."""
    columns = [key for key in dict.fromkeys(key for row in rows for key in row) if any_of(rows, key)]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row.get(key), key) for key in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def any_of(rows: Sequence[Row], key: str) -> bool:
    """Whether any row has a value for the key."""
    return any(row.get(key) is not None for row in rows)


def cell(value: float | str | None, key: str) -> str:
    """Format a value: shares in percent, large numbers without fractions."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if key in {"win rate", "gap"}:
        return f"{value:.0%}"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.2f}"


def draw(found: Found, figure: Figure) -> None:
    """Draw every system over time and over steps, with baselines and peers."""
    panels = figure.subplots(1, 2, sharey=True)
    won = any("win_rate" in one.evaluation for own in found.trainings.values() for one in own)
    for axes, over in zip(panels, ("train_s", "env_steps"), strict=True):
        for (name, own), color in zip(found.trainings.items(), COLORS, strict=False):
            curves = [one.curve for one in own]
            end = max(getattr(curve, over)[-1] for curve in curves)
            draw_curve(axes, curves, over=over, end=end, color=color, label=name)
        for policy, played in next(iter(found.baselines.values())).items():
            level = played["win_rate" if won else "mean"]
            axes.axhline(level, color=GREY, linestyle=DASHES[policy], linewidth=0.9, label=policy)
        for report, dashes in zip(found.peers, PEER_DASHES, strict=False):
            of_peer, label = report["curve"], name_of_peer(report)
            axes.plot(
                of_peer[over], of_peer["win_rate"], color=BLACK, linestyle=dashes, linewidth=0.9, label=label
            )
        axes.xaxis.set_major_formatter(EngFormatter())
    panels[0].set_xlabel("Time (s)")
    panels[1].set_xlabel("Environment steps")
    panels[0].set_ylabel("Share of episodes won" if won else "Mean return of 100 episodes")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=1 if found.peers else 3)


def write(found: Found, rows: Sequence[Row], options: argparse.Namespace, machine: Row) -> None:
    """Write the results as JSON, as a table and as a plot."""
    options.out.mkdir(parents=True, exist_ok=True)
    stem = f"teams-{options.experiment}"
    write_figure(partial(draw, found), HEIGHT, options.out / f"{stem}.png")
    (options.out / f"{stem}.md").write_text(markdown(rows), encoding="utf-8")
    document = machine | {
        "experiment": options.experiment,
        "minutes": options.minutes,
        "rows": rows,
        "baselines": found.baselines,
        "peers": found.peers,
        "trainings": [asdict(one) for own in found.trainings.values() for one in own],
    }
    (options.out / f"{stem}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--config", nargs="+", help="in place of the experiment's own; by path or name")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="of each training")
    parser.add_argument("--episodes", type=int, default=500, help="of each evaluation")
    parser.add_argument("--baselines", nargs="*", choices=DASHES)
    parser.add_argument("--peer", type=Path, nargs="*", default=[], help="reports of peers/jaxmarl_qmix.py")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all trainings")
    parser.add_argument("--out", type=Path, help="write teams-EXPERIMENT.json, .md and .png there")
    parser.add_argument("--runs", type=Path, help="keep the run directories there")
    options = parser.parse_args()
    experiment = EXPERIMENTS[options.experiment]
    for name in ("seeds", "minutes", "baselines"):
        if getattr(options, name) is None:
            setattr(options, name, getattr(experiment, name))
    systems = experiment.systems
    if options.config:
        systems = tuple(System(Path(config).stem, config) for config in options.config)
    cores = len(os.sched_getaffinity(0))
    machine = {"platform": platform.platform(), "cores": cores, "busy": busy_share()}
    print(f"# {machine['platform']}, {cores} cores, {machine['busy']:.0%} of them busy before")
    with tempfile.TemporaryDirectory() as place:
        try:
            found = measure(systems, options, options.runs or Path(place))
        except RunFailed as failed:
            sys.exit(str(failed))
    rows = rows_of(found)
    print(markdown(rows), end="")
    if options.out is not None:
        write(found, rows, options, machine)


if __name__ == "__main__":
    main()
