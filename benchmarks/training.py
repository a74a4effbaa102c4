"""Runs a `tianji train` for a benchmark, which can watch and disturb it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

POLL_S = 0.05
PATIENCE_S = 60.0

Row = dict[str, Any]


def tianji_beside_python() -> str:
    """Find the command that was installed with this interpreter, or else "tianji" on PATH."""
    return shutil.which("tianji", path=str(Path(sys.executable).parent)) or "tianji"


class Training:
    """A `tianji train` in its own session of processes.

    Args:
        tianji: path of the command.
        config: path or name of the config.
        options: further settings, each as for ``--set``.
        seconds: wall time at which the training ends.
        out: directory for the run directory.
    """

    def __init__(self, tianji: str, config: str, options: Sequence[str], seconds: float, out: Path) -> None:
        stop = f"experiment.stop={{ wall_s = {seconds:g} }}"
        command = [tianji, "train", config, "--quiet", "--out", str(out)]
        for option in (stop, "experiment.evaluation=false", "experiment.eval_episodes=0", *options):
            command += ["--set", option]
        self._out = out
        self._process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)

    @property
    def summary(self) -> Row:
        """Summary of the run, after its end."""
        (summary,) = self._out.glob("*/*/summary.json")
        found: Row = json.loads(summary.read_text())
        return found

    @property
    def rows(self) -> list[Row]:
        """Complete rows of the run's metrics so far."""
        for metrics in self._out.glob("*/*/metrics.jsonl"):
            return [json.loads(line) for line in metrics.read_bytes().split(b"\n")[:-1]]
        return []

    def pids(self) -> dict[int, str]:
        """Find the training's processes by their titles, which begin with "tianji: "."""
        found = {}
        for place in Path("/proc").iterdir():
            if not place.name.isdecimal():
                continue
            try:
                session = int((place / "stat").read_text().rpartition(")")[2].split()[3])
                title = (place / "cmdline").read_bytes().decode().rstrip("\0")
            except OSError:
                continue
            if session == self._process.pid and title.startswith("tianji: "):
                found[int(place.name)] = title.removeprefix("tianji: ")
        return found

    def learner(self) -> int:
        """Find the process of the learner."""
        for pid, title in self.pids().items():
            if "learner" in title:
                return pid
        raise SystemExit("no learner")

    def train_until(self, seconds: float) -> None:
        """Wait until the run has trained for ``seconds``; exits if it ends, or does not get there in time."""
        deadline = time.monotonic() + PATIENCE_S
        while not (rows := self.rows) or rows[-1]["train_s"] < seconds:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit("it does not train")
            time.sleep(POLL_S)

    def suspend_learner(self, after_s: float, for_s: float) -> None:
        """Wait until the run has trained for ``after_s``, and suspend the learner's process for ``for_s``."""
        self.train_until(after_s)
        learner = self.learner()
        os.kill(learner, signal.SIGSTOP)
        time.sleep(for_s)
        os.kill(learner, signal.SIGCONT)

    def end(self) -> list[Row]:
        """Wait for the training's end; returns the rows since the first update."""
        if self._process.wait() != 0:
            raise SystemExit(f"training failed: {self._process.returncode}")
        return [row for row in self.rows if row.get("updates", 0) > 0]

    def kill(self) -> None:
        """End the training, unless it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()
