"""What there is to measure on a machine with a GPU and 16 cores, in parts of at most nine minutes each.

    python benchmarks/gpu.py --out gpu                # all parts, one after another
    python benchmarks/gpu.py --out gpu --parts tests updates
    python benchmarks/gpu.py --list

A part is a command; what it prints goes to OUT/PART.log, and its figures beside that. OUT/gpu.md is a table
of all parts that were run so far, OUT/gpu.json the same. A part that fails or takes too long does not keep
the next from being run, and the exit status says how many did.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

LIMIT_S: Final = 540.0
ROOT: Final = Path(__file__).parents[1]
PONG: Final = str(ROOT / "configs" / "ppo_pong_gpu.toml")
REPLAYED: Final = str(ROOT / "configs" / "dqn_pong_gpu.toml")
UPDATES: Final = str(ROOT / "benchmarks" / "updates.py")
PPO_UPDATE: Final = str(ROOT / "benchmarks" / "ppo_update.py")


@dataclass(frozen=True)
class Part:
    """A command that is run by itself.

    Attributes:
        words: its words after the interpreter.
        what: that it measures.
    """

    words: tuple[str, ...]
    what: str


@dataclass(frozen=True)
class Outcome:
    """How a part went.

    Attributes:
        status: exit status; None: it took too long and was killed.
        last: what it printed last.
    """

    part: str
    what: str
    seconds: float
    status: int | None
    last: str


def parts(out: Path) -> dict[str, Part]:
    """Name all parts; their figures go to ``out``."""
    tianji = ("-m", "tianji_cli")

    def scaling(figure: str, *more: str) -> Part:
        words = ("bench", "scaling", PONG, "--figure", figure, "--repeats", "1", "--seconds", "15", *more)
        return Part((*tianji, *words, "--out", str(out / figure)), f"throughput, Figure {figure}")

    run_of_pong = ("--out", str(out / "runs"), "--json", str(out / "pong.json"), "--quiet")
    limit = ("--set", "experiment.stop.wall_s=480")
    return {
        "tests": Part(("-m", "pytest", "-m", "gpu", "-q", str(ROOT / "tests")), "pytest -m gpu"),
        "updates": Part((UPDATES, "--config", REPLAYED), "DQN's updates a second, in a training and bare"),
        "ppo": Part(
            (PPO_UPDATE, "--config", PONG, "--json", str(out / "ppo.json")),
            "PPO's updates a second beside plain, compiled and captured loops",
        ),
        "pong": Part(
            (*tianji, "train", PONG, *run_of_pong, *limit),
            "ppo_pong_gpu to a mean return of 18, target 100 s",
        ),
        "6a": scaling("6a", "--actors", "1", "--actors", "4", "--actors", "8", "--actors", "14"),
        "6b": scaling("6b", "--actors", "1", "--actors", "4", "--actors", "8", "--actors", "14"),
        "6c": scaling("6c", "--groups", "1", "--groups", "2"),
        "profile": Part(
            (*tianji, "profile", PONG, "--verify", "--json", str(out / "profile.json")),
            "the best split of 16 cores, and what comes of it",
        ),
    }


def run(name: str, part: Part, out: Path) -> Outcome:
    """Run a part to its end, or to its limit."""
    log, began = out / f"{name}.log", time.monotonic()
    with log.open("w") as file:
        child = subprocess.Popen(
            [sys.executable, *part.words], stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 15)
            child.wait()
            status = None
    lines = log.read_text(errors="replace").strip().splitlines()
    return Outcome(name, part.what, time.monotonic() - began, status, lines[-1] if lines else "")


def write(outcomes: Sequence[Outcome], out: Path) -> None:
    """Write what is known of all parts, as JSON and as a table."""
    (out / "gpu.json").write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    rows = []
    for one in outcomes:
        status = "too long" if one.status is None else one.status
        last = one.last.replace("|", "/")[:120]
        rows.append(f"| {one.part} | {one.what} | {one.seconds:.0f} s | {status} | {last} |")
    head = ["| part | measures | took | exit status | last line |", "|---|---|---|---|---|"]
    (out / "gpu.md").write_text("\n".join([*head, *rows]) + "\n")


def earlier(out: Path) -> dict[str, Outcome]:
    """Read what parts came to that were run before."""
    try:
        found = json.loads((out / "gpu.json").read_text())
    except FileNotFoundError:
        return {}
    return {one["part"]: Outcome(**one) for one in found}


def main() -> None:
    """Run what was asked for."""
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
    import torch  # noqa: PLC0415 - --list and --help do without

    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA device on this machine")
    options.out.mkdir(parents=True, exist_ok=True)
    outcomes = earlier(options.out)
    for name in options.parts or known:
        print(f"{name}: {known[name].what}", flush=True)
        outcomes[name] = run(name, known[name], options.out.absolute())
        print(f"    {outcomes[name].last}", flush=True)
        write(list(outcomes.values()), options.out)
    print((options.out / "gpu.md").read_text())
    sys.exit(sum(outcome.status != 0 for outcome in outcomes.values()))


if __name__ == "__main__":
    main()
