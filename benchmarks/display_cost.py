"""Measures the cost of the live display: env steps a second on a terminal with it, and with `--quiet`.

    python benchmarks/display_cost.py [--config PATH] [--set KEY=VALUE] [--pairs 8] [--seconds 6]
                                      [--json PATH]

Both run in turns on a pseudo-terminal of 100 columns whose output is read. The result is the median over
pairs of the ratio within a pair, with its standard error. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trace_cost import compare
from training import tianji_beside_python

from tianji_lab.environment import busy_share, cpu_model

ROWS, COLUMNS = 40, 100
READ_BYTES: Final = 1 << 16


def rate(options: argparse.Namespace, *, quiet: bool) -> float:
    """Train once on a terminal; returns env steps a second."""
    settings = [f"experiment.stop={{ wall_s = {options.seconds:g} }}", "experiment.eval_episodes=0"]
    settings += ["experiment.plots=false", *options.set]
    words = [word for setting in settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory() as out:
        command = [options.tianji, "train", options.config, *words, "--out", out, *["--quiet"][: int(quiet)]]
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        of_it = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        environment = os.environ | {"TERM": "xterm-256color"}
        with subprocess.Popen(command, env=environment, **of_it) as process:
            os.close(theirs)
            shown = read_to_the_end(ours)
        if process.returncode:
            sys.exit(f"{' '.join(command)}: exit status {process.returncode}\n{shown[-2000:].decode()}")
        (summary,) = Path(out).glob("*/*/summary.json")
        found = json.loads(summary.read_text())
    return float(found["produced"] / found["train_s"])


def read_to_the_end(terminal: int) -> bytes:
    """Read a terminal's output until the last program has closed it."""
    shown = bytearray()
    try:
        while piece := os.read(terminal, READ_BYTES):
            shown += piece
    except OSError:  # Linux raises this at the end, in place of an empty read.
        pass
    os.close(terminal)
    return bytes(shown)


def pairs_of_trainings(options: argparse.Namespace) -> Iterator[tuple[float, float]]:
    """Yield env steps a second without and with the display; the order of the two trainings alternates."""
    for number in range(options.pairs):
        first = rate(options, quiet=number % 2 == 0)
        second = rate(options, quiet=number % 2 == 1)
        yield (first, second) if number % 2 == 0 else (second, first)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="configs/ppo_cartpole.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--pairs", type=int, default=8, help="two at least")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each training")
    parser.add_argument("--tianji", default=tianji_beside_python())
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    environment = {"machine": cpu_model(), "busy before": f"{busy_share():.0%}", "config": options.config}
    for key, value in environment.items():
        print(f"# {key}: {value}", flush=True)
    document = compare("env steps a second, with the display", pairs_of_trainings(options))
    if options.json:
        Path(options.json).write_text(json.dumps({"environment": environment} | document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
