"""Runs tests and measurements for a machine with a GPU and 16 cores, in parts of at most nine minutes each.

    python benchmarks/gpu.py --out gpu                # all parts, one after another
    python benchmarks/gpu.py --out gpu --parts tests updates
    python benchmarks/gpu.py --list

A part is a command; its output goes to OUT/PART.log, and its report to a file in OUT. OUT/gpu.md is a table
of all parts so far, with results and targets; OUT/gpu.json has the same contents. The next part runs also
after a part that fails or takes too long; the exit status is the number of such parts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

LIMIT_S: Final = 540.0
ENDS_S: Final = 20.0
"""Seconds from SIGTERM to SIGKILL for a part that takes too long."""
ROOT: Final = Path(__file__).parents[1]
PONG: Final = str(ROOT / "configs" / "ppo_pong_gpu.toml")
REPLAYED: Final = str(ROOT / "configs" / "dqn_pong_gpu.toml")
UPDATES: Final = str(ROOT / "benchmarks" / "updates.py")
INFERENCE: Final = str(ROOT / "benchmarks" / "inference.py")
PPO_UPDATE: Final = str(ROOT / "benchmarks" / "ppo_update.py")


@dataclass(frozen=True)
class Part:
    """A command that tests or measures.

    Attributes:
        words: words of the command after the interpreter.
        what: quantity that it measures, and its target.
        report: JSON file with the results; None if the last line of the output has them.
        figures: sums up the report in a few words.
    """

    words: tuple[str, ...]
    what: str
    report: Path | None = None
    figures: Callable[[Any], str] = str


@dataclass(frozen=True)
class Outcome:
    """Result of a part.

    Attributes:
        status: exit status; None if the part took too long and was killed.
        came_to: summary of the report; without a report, the last line of the output.
    """

    part: str
    what: str
    seconds: float
    status: int | None
    came_to: str


def of_updates(report: Any) -> str:
    """Sum up the report of `updates.py`."""
    flowing, bare, share = (
        median(row[name] for row in report["rows"]) for name in ("flowing", "bare_idle", "of_idle")
    )
    return f"{flowing:.1f} a second, bare {bare:.1f}: {share:.0%}"


def of_ppo(report: Any) -> str:
    """Sum up the report of `ppo_update.py`."""
    return ", ".join(f"{name} {row['median']:.1f}" for name, row in report["rows"].items())


def of_pong(summary: Any) -> str:
    """Time at which a training reached 18, or its best mean return."""
    at, returns = summary["time_to"]["18"], summary["returns"]
    how_far = f"best mean return {returns['best_mean_100']} after {summary['train_s']:.0f} s: missed"
    return how_far if at is None else f"18 after {at:.1f} s"


def of_scaling(report: Any) -> str:
    """Env steps a second of each setting."""
    rows = ((row["setting"], row["produced_per_s"]["median"]) for row in report["rows"])
    return ", ".join(f"{setting} {steps:,.0f}" for setting, steps in rows)


def of_inference(report: Any) -> str:
    """Env steps a second of each case, apart and with a network in each actor."""
    rows = report["rows"]
    return ", ".join(f"{row['case']} {row['apart']:,.0f} to {row['local']:,.0f}" for row in rows)


def of_profile(report: Any) -> str:
    """Sum up the recommended split, and predicted and measured rates of the splits that were trained."""
    split = report["recommended"]
    chosen = f"{split['learners']} learners of {split['learner_cores']} cores, {split['actors']} actors"
    checks = ", ".join(f"{one['predicted']:,.0f}/{one['measured']:,.0f}" for one in report["verify"])
    return f"{chosen} of {split['num_envs']} environments; uses a second, predicted/measured: {checks}"


def parts(out: Path) -> dict[str, Part]:
    """Make all parts, with reports in ``out``."""
    tianji = ("-m", "tianji_cli")

    def scaling(figure: str, *more: str) -> Part:
        words = ("bench", "scaling", PONG, "--figure", figure, "--repeats", "1", "--seconds", "15", *more)
        command = (*tianji, *words, "--out", str(out / figure))
        report = out / figure / f"figure-{figure}.json"
        return Part(command, f"env steps a second, Figure {figure}", report, of_scaling)

    names = ("updates", "ppo", "pong", "inference", "profile")
    updates, ppo, pong, inference, profile = (out / f"{name}.json" for name in names)
    asking = ("--device", "cuda", "--actors", "12", "--wait-ms", "1", "--json", str(inference))
    run_of_pong = ("--out", str(out / "runs"), "--json", str(pong), "--quiet")
    # Training and evaluation together fit the limit. Ten games are enough: 18 is a mean over 100 games.
    limits = ("stop.wall_s=420", "eval_episodes=10", "eval_max_s=60", "plots=false")
    in_time = tuple(word for limit in limits for word in ("--set", f"experiment.{limit}"))
    return {
        "tests": Part(("-m", "pytest", "-m", "gpu", "-q", str(ROOT / "tests")), "pytest -m gpu"),
        "updates": Part(
            (UPDATES, "--config", REPLAYED, "--json", str(updates)),
            "DQN's updates a second in a training, at least 85 % of a bare loop's",
            updates,
            of_updates,
        ),
        "ppo": Part(
            (PPO_UPDATE, "--config", PONG, "--json", str(ppo)),
            "PPO's updates a second beside plain, compiled and captured loops",
            ppo,
            of_ppo,
        ),
        "pong": Part(
            (*tianji, "train", PONG, *run_of_pong, *in_time),
            "ppo_pong_gpu to a mean return of 18 in 100 s",
            pong,
            of_pong,
        ),
        "inference": Part(
            (INFERENCE, "--case", "pong", "10M", *asking),
            "env steps a second with inference apart, at least those of a network in each actor",
            inference,
            of_inference,
        ),
        "6a": scaling("6a", "--actors", "1", "--actors", "4", "--actors", "8", "--actors", "14"),
        "6b": scaling("6b", "--actors", "1", "--actors", "4", "--actors", "8", "--actors", "14"),
        "6c": scaling("6c", "--groups", "1", "--groups", "2"),
        "profile": Part(
            (*tianji, "profile", PONG, "--verify", "--json", str(profile)),
            "the best split of 16 cores, and what comes of it",
            profile,
            of_profile,
        ),
    }


def run(name: str, part: Part, out: Path) -> Outcome:
    """Run a part to its end, or to its limit."""
    log, began = out / f"{name}.log", time.monotonic()
    if part.report is not None:
        part.report.unlink(missing_ok=True)
    with log.open("w") as file:
        child = subprocess.Popen(
            [sys.executable, *part.words], stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(ENDS_S)
            with contextlib.suppress(ProcessLookupError):  # Remaining processes would keep the GPU busy.
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            status = None
    if status is not None and part.report is not None and part.report.exists():
        came_to = part.figures(json.loads(part.report.read_text()))
    else:
        came_to = next(reversed(log.read_text(errors="replace").strip().splitlines()), "")
    return Outcome(name, part.what, time.monotonic() - began, status, came_to)


def write(outcomes: Sequence[Outcome], out: Path) -> None:
    """Write the results of all parts, as JSON and as a table."""
    (out / "gpu.json").write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    rows = []
    for one in outcomes:
        status = "too long" if one.status is None else one.status
        came_to = one.came_to.replace("|", "/")[:240]
        rows.append(f"| {one.part} | {one.what} | {one.seconds:.0f} s | {status} | {came_to} |")
    head = ["| part | measures | took | exit status | came to |", "|---|---|---|---|---|"]
    (out / "gpu.md").write_text("\n".join([*head, *rows]) + "\n")


def earlier(out: Path) -> dict[str, Outcome]:
    """Read the results of earlier parts."""
    try:
        found = json.loads((out / "gpu.json").read_text())
    except FileNotFoundError:
        return {}
    return {one["part"]: Outcome(**one) for one in found}


def main() -> None:
    """Run the named parts, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu"))
    parser.add_argument("--parts", nargs="+", help="names, as --list has them (default: all)")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    known = parts(options.out.absolute())
    if options.list:
        print("\n".join(f"{name:8} {part.what}" for name, part in known.items()))
        return
    if unknown := set(options.parts or ()) - known.keys():
        parser.error(f"no part is called {', '.join(sorted(unknown))}; they are {', '.join(known)}")
    import torch  # noqa: PLC0415 - --list and --help do not need it

    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA device on this machine")
    options.out.mkdir(parents=True, exist_ok=True)
    outcomes = earlier(options.out)
    for name in options.parts or known:
        print(f"{name}: {known[name].what}", flush=True)
        outcomes[name] = run(name, known[name], options.out.absolute())
        print(f"    {outcomes[name].came_to}", flush=True)
        write(list(outcomes.values()), options.out)
    print((options.out / "gpu.md").read_text())
    sys.exit(sum(outcome.status != 0 for outcome in outcomes.values()))


if __name__ == "__main__":
    main()
