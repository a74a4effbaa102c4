"""Do the defaults learn? Trains `tianji train --env ID --agent NAME` without any other setting, and plays.

The agent of each environment was named before anything was measured. The last policy (or --checkpoint) plays
greedily in episodes whose seeds the training did not have. A training ends where the defaults end it, or
after --minutes.

    python benchmarks/defaults.py --json defaults.json           # all rows, three seeds, five minutes each
    python benchmarks/defaults.py --only CartPole-v1 --seeds 1 --minutes 0.3
    python benchmarks/defaults.py --sb3 ENV/bin/python           # Stable-Baselines3's defaults beside them
    python benchmarks/defaults.py --mujoco ppo --out runs/mujoco # eight tasks, 400,000 steps, five seeds
    python benchmarks/defaults.py --mujoco sac --out runs/mujoco # likewise, 100,000 steps

With --mujoco the peer's results are stored data: benchmarks/peers/sb3_mujoco.py fills
benchmarks/data/sb3_mujoco.jsonl, and tasks that are not there yet have no ratio. Some returns are negative,
so all are taken above those of random actions: a task's ratio is (ours - random) / (theirs - random), of
means over seeds, and the ratio of all tasks is the geometric mean of these, in which a ratio below 0.01
counts as 0.01. Intervals are bootstrap intervals of 95 %, which draw the seeds of both sides anew.

The table is Markdown. A row says if its package is missing or the training is refused. Each result stays in
--out and is not measured again, so an interrupted benchmark continues. The two sides take turns; the peer's
torch has one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np

HERE: Final = Path(__file__).resolve().parent
EVAL_SEED: Final = 1_000_003
"""Seed of the environments in which policies play; trainings have small seeds."""
EVAL_S: Final = 1200.0
"""Maximum seconds of an evaluation."""
ENV_STEPS: Final = 1_000_000
"""Environment steps of the peer's trainings, and of trainings by the defaults without images."""


@dataclass(frozen=True)
class Row:
    """An environment and the agent to train there, with its target.

    Attributes:
        target: least mean return; None to reach the median of the peer's.
        episodes: episodes of an evaluation; fewer where they are slow.
        package: package that the environment needs; empty if gymnasium is enough.
        module: module by which to find the package.
        env_steps: end of a training; None where the defaults end it.
    """

    env: str
    agent: str
    target: float | None
    episodes: int = 1000
    package: str = ""
    module: str = ""
    env_steps: int | None = None

    @property
    def name(self) -> str:
        """Id of the environment without the module that registers it."""
        return self.env.rpartition(":")[2]


ROWS: Final = (
    Row("CartPole-v1", "ppo", 475.0),
    Row("Acrobot-v1", "ppo", -100.0),
    Row("MountainCar-v0", "dqn", -130.0),
    Row("Pendulum-v1", "sac", -250.0),
    Row("LunarLander-v3", "ppo", 200.0, 100, "gymnasium[box2d]", "Box2D"),
    Row("BipedalWalker-v3", "ppo", 200.0, 100, "gymnasium[box2d]", "Box2D"),
    Row("FrozenLake-v1", "dqn", 0.68),
    Row("Taxi-v3", "dqn", 7.0),
    Row("MountainCarContinuous-v0", "sac", 90.0, 100),
    Row("minigrid:MiniGrid-Empty-8x8-v0", "ppo", 0.9, package="minigrid", module="minigrid"),
    Row("minigrid:MiniGrid-DoorKey-5x5-v0", "ppo", 0.9, package="minigrid", module="minigrid"),
    Row("MinAtar/Breakout-v1", "dqn", None, package="minatar", module="minatar"),
)

KEPT: Final = HERE / "data" / "sb3_mujoco.jsonl"
MUJOCO_STEPS: Final = {"ppo": 400_000, "sac": 100_000}
MUJOCO_EPISODES: Final = {
    **dict.fromkeys(("Hopper", "HalfCheetah", "Walker2d", "Ant", "Swimmer", "InvertedPendulum"), 50),
    "Reacher": 300,
    "Pusher": 100,
}
MUJOCO_ROWS: Final = tuple(
    Row(f"{task}-v5", agent, None, episodes, "gymnasium[mujoco]", "mujoco", steps)
    for agent, steps in MUJOCO_STEPS.items()
    for task, episodes in MUJOCO_EPISODES.items()
)
WORST_RATIO: Final = 0.01
DRAWS: Final = 10_000


@dataclass
class Outcome:
    """Results of a row.

    Attributes:
        env: id of the trained environment: the newest version if the row's is not installed.
        runs: a dict for each training, with ``seed``, ``mean``, ``episodes``, ``env_steps``, ``train_s``,
            ``updates`` and ``reason``.
        peer: trainings of Stable-Baselines3, without ``updates`` and ``reason``.
        missing: reason why there are no trainings; empty if there are.
    """

    row: Row
    env: str
    runs: list[dict[str, Any]] = field(default_factory=list)
    peer: list[dict[str, Any]] = field(default_factory=list)
    missing: str = ""

    @property
    def reached(self) -> int | None:
        """Number of seeds that reached the target; None without a target or a peer."""
        target = self.row.target
        if target is None:
            target = statistics.median(run["mean"] for run in self.peer) if self.peer else None
        return None if target is None else sum(run["mean"] >= target for run in self.runs)


def installed(env: str) -> str:
    """Return the newest version of an id if gymnasium does not have this version; otherwise the id itself."""
    stem, _, version = env.rpartition("-v")
    pattern = re.compile(rf"{re.escape(stem)}-v(\d+)")
    versions = [int(found[1]) for known in gymnasium.registry if (found := pattern.fullmatch(known))]
    return f"{stem}-v{max(versions)}" if versions and int(version) not in versions else env


def execute(command: Sequence[str], log: Path) -> str:
    """Run a command with its output in ``log``; returns the last line if the command failed, or ""."""
    with log.open("w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    lines = log.read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "no words") if done.returncode else ""


class Bench:
    """Trains and evaluates the rows, one command after another."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self._options = options
        self._directory = directory

    def run(self, row: Row) -> Outcome:
        """Train a row with all seeds, with tianji and the peer in turns."""
        outcome = Outcome(row, installed(row.env))
        if row.module and find_spec(row.module) is None:
            outcome.missing = f"missing: pip install {row.package}"
            return outcome
        log = self._directory / f"{row.agent}-{row.name.replace('/', '-')}.log"
        refused = execute([*self._train(outcome), "--dry-run"], log)
        if refused:
            outcome.missing = f"refused: {refused}"
            return outcome
        for seed in range(1, self._options.seeds + 1):
            outcome.runs.append(self._one(outcome, seed, log))
            self._progress("tianji", outcome, outcome.runs[-1])
            if self._options.sb3 and not row.env_steps:
                outcome.peer.append(self._of_peer(outcome, seed, log))
                self._progress("sb3", outcome, outcome.peer[-1])
        return outcome

    def _train(self, outcome: Outcome) -> list[str]:
        return [self._options.tianji, "train", "--env", outcome.env, "--agent", outcome.row.agent]

    def _one(self, outcome: Outcome, seed: int, log: Path) -> dict[str, Any]:
        length = outcome.row.env_steps or f"{self._options.minutes:g}min"
        runs = self._directory / f"{log.stem}-{seed}-{length}"
        training, playing = Path(f"{runs}.train.json"), Path(f"{runs}.{self._options.checkpoint}.json")
        command = [*self._train(outcome), "--quiet", "--out", str(runs), "--json", str(training)]
        steps = outcome.row.env_steps
        for setting in (
            f"experiment.seed={seed}",
            f"experiment.stop.env_steps={steps}"
            if steps
            else f"experiment.stop.wall_s={60 * self._options.minutes:g}",
            "experiment.name=run",
            "experiment.eval_episodes=0",
            "experiment.plots=false",
        ):
            command += ["--set", setting]
        self._succeed(command, log, training)
        command = [self._options.tianji, "eval", str(runs / "run" / "1"), "--json", str(playing)]
        command += ["--checkpoint", self._options.checkpoint, "--episodes", str(outcome.row.episodes)]
        self._succeed([*command, "--seed", str(EVAL_SEED), "--max-s", str(EVAL_S)], log, playing)
        summary, evaluation = json.loads(training.read_text()), json.loads(playing.read_text())
        if evaluation["cut_off"]:
            sys.exit(f"{outcome.env}, seed {seed}: the evaluation was cut off after {evaluation['cut_off']}")
        run = {key: summary[key] for key in ("env_steps", "train_s", "updates", "reason")}
        return {"seed": seed, "mean": evaluation["mean"], "episodes": evaluation["episodes"], **run}

    def _of_peer(self, outcome: Outcome, seed: int, log: Path) -> dict[str, Any]:
        report = self._directory / f"{log.stem}-{seed}-{self._options.minutes:g}min.sb3.json"
        command = ["env", "OMP_NUM_THREADS=1", self._options.sb3, str(HERE / "peers" / "sb3_defaults.py")]
        command += ["--json", str(report)]
        command += ["--env", outcome.env, "--agent", outcome.row.agent, "--seed", str(seed)]
        command += ["--minutes", str(self._options.minutes), "--env-steps", str(ENV_STEPS)]
        command += ["--episodes", str(outcome.row.episodes), "--eval-seed", str(EVAL_SEED)]
        self._succeed(command, log, report)
        return {"seed": seed, **json.loads(report.read_text())}

    @staticmethod
    def _succeed(command: Sequence[str], log: Path, report: Path) -> None:
        """Run a command that writes a report, unless the report exists; exits if the command fails."""
        failed = "" if report.exists() else execute(command, log)
        if failed:
            sys.exit(f"{' '.join(command)}\nfailed: {failed}\nits output: {log}")

    @staticmethod
    def _progress(who: str, outcome: Outcome, run: dict[str, Any]) -> None:
        steps, seconds = run["env_steps"], run["train_s"]
        sys.stderr.write(
            f"{outcome.row.name} {outcome.row.agent}, seed {run['seed']}: {who} {run['mean']:.4g} "
            f"after {steps:,} env steps in {seconds:.0f} s\n"
        )


def kept_returns(path: Path = KEPT) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    """Read the peer's stored trainings by environment, agent and env steps; "random" is an agent, too."""
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        run = json.loads(line)
        found.setdefault((run["env"], run["agent"], run["env_steps"]), []).append(run)
    return found


@dataclass(frozen=True)
class Scores:
    """A task's returns above those of random actions, one for each seed."""

    task: str
    ours: np.ndarray
    theirs: np.ndarray

    def ratio(self, generator: np.random.Generator | None = None, draws: int = 1) -> np.ndarray:
        """Ratio of means over seeds, at least ``WORST_RATIO``; a generator draws the seeds anew each time.

        Returns:
            Ratios, ``[draws]``.
        """
        means = []
        for scores in (self.ours, self.theirs):
            drawn = np.tile(scores, (draws, 1)) if generator is None else generator.choice(
                scores, (draws, len(scores))
            )  # fmt: skip
            means.append(drawn.mean(axis=1))
        return np.asarray(np.maximum(means[0] / means[1], WORST_RATIO))


def compare(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Write the ratios to the stored data as Markdown, of each task and of all tasks of an agent."""
    kept = kept_returns()
    for agent in MUJOCO_STEPS:
        scores = []
        yield f"\n| {agent} | tianji: each seed | Stable-Baselines3: each seed | random | ratio | 95 % |"
        yield "|---|---|---|---|---|---|"
        for outcome in outcomes:
            row = outcome.row
            if row.agent != agent or not outcome.runs:
                continue
            theirs = kept.get((row.env, agent, row.env_steps or 0), [])
            base = kept[row.env, "random", 0][0]["mean"]
            cells = [row.env, _means(outcome.runs), _means(theirs) or "not there yet", f"{base:.4g}", "", ""]
            if theirs:
                both = ([run["mean"] - base for run in runs] for runs in (outcome.runs, theirs))
                scores.append(Scores(row.env, *map(np.asarray, both)))
                cells[4:] = [f"{scores[-1].ratio()[0]:.2f}", _interval(scores[-1:])]
            yield f"| {' | '.join(cells)} |"
        if scores:
            total = np.exp(np.mean([np.log(one.ratio()[0]) for one in scores]))
            yield f"\n{agent}, {len(scores)} tasks: ratio {total:.3f}, 95 % of it {_interval(scores)}"


def _interval(scores: Sequence[Scores]) -> str:
    generator = np.random.default_rng(0)
    drawn = np.exp(np.mean([np.log(one.ratio(generator, DRAWS)) for one in scores], axis=0))
    low, high = np.percentile(drawn, [2.5, 97.5])
    return f"{low:.2f} to {high:.2f}"


def table(outcomes: Sequence[Outcome], *, with_peer: bool) -> Iterator[str]:
    """Write the rows as Markdown."""
    heads = ["environment", "agent", "target", "tianji: each seed", "reached", "env steps", "train s"]
    heads += ["Stable-Baselines3: each seed", "its env steps", "its train s"] if with_peer else []
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for outcome in outcomes:
        row = outcome.row
        target = "above its peer" if row.target is None else f"{row.target:g}"
        cells = [outcome.env.rpartition(":")[2], row.agent, target]
        if outcome.missing:
            cells += [outcome.missing.replace("|", "/")]
        else:
            reached = "-" if outcome.reached is None else f"{outcome.reached} of {len(outcome.runs)}"
            cells += [_means(outcome.runs), reached, _steps(outcome.runs), _train_s(outcome.runs)]
            if with_peer:
                cells += [_means(outcome.peer), _steps(outcome.peer), _train_s(outcome.peer)]
        cells += [""] * (len(heads) - len(cells))
        yield f"| {' | '.join(cells)} |"


def _means(runs: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{run['mean']:.4g}" for run in runs)


def _steps(runs: Sequence[dict[str, Any]]) -> str:
    return f"{statistics.median(run['env_steps'] for run in runs):,.0f}"


def _train_s(runs: Sequence[dict[str, Any]]) -> str:
    return f"{statistics.median(run['train_s'] for run in runs):.0f}"


def main() -> int:
    names = sorted({row.name for row in (*ROWS, *MUJOCO_ROWS)})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="ID", help=", ".join(names)
    )
    parser.add_argument("--mujoco", nargs="*", choices=MUJOCO_STEPS, metavar="AGENT", help="ppo, sac or both")
    parser.add_argument("--seeds", type=int, help="how many, from 1 on (default: 3; with --mujoco 5)")
    parser.add_argument("--minutes", type=float, default=5.0, help="longest of a training")
    parser.add_argument("--checkpoint", default="last", choices=("last", "best"), help="which one plays")
    parser.add_argument("--sb3", metavar="PYTHON", help="an interpreter that has Stable-Baselines3")
    parser.add_argument(
        "--tianji", default=shutil.which("tianji", path=str(Path(sys.executable).parent)) or "tianji"
    )
    parser.add_argument("--out", type=Path, help="keeps runs and logs here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also writes all runs to this file")
    options = parser.parse_args()
    mujoco = options.mujoco is not None
    options.seeds = options.seeds or (5 if mujoco else 3)
    rows = [row for row in MUJOCO_ROWS if row.agent in (options.mujoco or MUJOCO_STEPS)] if mujoco else ROWS
    directory = (options.out or Path(tempfile.mkdtemp(prefix="tianji-defaults-"))).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    machine = {
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d"),
        "minutes": options.minutes,
        "checkpoint": options.checkpoint,
    }
    bench = Bench(options, directory)
    outcomes = [bench.run(row) for row in rows if row.name in options.only]
    print(", ".join(f"{key} {value}" for key, value in machine.items()) + "\n")
    print("\n".join(compare(outcomes) if mujoco else table(outcomes, with_peer=bool(options.sb3))))
    if options.json:
        written = [asdict(outcome) | {"reached": outcome.reached} for outcome in outcomes]
        options.json.write_text(json.dumps({"machine": machine, "rows": written}, indent=1) + "\n")
    complete = (outcome.missing or outcome.reached in {None, len(outcome.runs)} for outcome in outcomes)
    return 0 if all(complete) else 1


if __name__ == "__main__":
    sys.exit(main())
