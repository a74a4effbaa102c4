"""One `tianji train` that a benchmark starts, watches and disturbs."""

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
    """The command that was installed with this interpreter, or whatever is called that."""
    return shutil.which("tianji", path=str(Path(sys.executable).parent)) or "tianji"


class Training:
    """One `tianji train`, in a session of its own.

    Args:
        tianji: the command.
        config: what it trains.
        options: more ``--set``.
        seconds: of wall time.
        out: where its run directory goes.
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
        """What it leaves when it is over."""
        (summary,) = self._out.glob("*/*/summary.json")
        found: Row = json.loads(summary.read_text())
        return found

    @property
    def rows(self) -> list[Row]:
        """Whole rows of its metrics so far."""
        for metrics in self._out.glob("*/*/metrics.jsonl"):
            return [json.loads(line) for line in metrics.read_bytes().split(b"\n")[:-1]]
        return []

    def pids(self) -> dict[int, str]:
        """Find its processes that carry roles, with their titles."""
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
        """Find the process of its learner."""
        for pid, title in self.pids().items():
            if "learner" in title:
                return pid
        raise SystemExit("no learner")

    def train_until(self, seconds: float) -> None:
        """Wait until it has trained so long."""
        deadline = time.monotonic() + PATIENCE_S
        while not (rows := self.rows) or rows[-1]["train_s"] < seconds:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit("it does not train")
            time.sleep(POLL_S)

    def suspend_learner(self, after_s: float, for_s: float) -> None:
        """Wait until it has trained so long, and stop the process of its learner for a while."""
        self.train_until(after_s)
        learner = self.learner()
        os.kill(learner, signal.SIGSTOP)
        time.sleep(for_s)
        os.kill(learner, signal.SIGCONT)

    def end(self) -> list[Row]:
        """Wait until it is over; its rows since the first update."""
        if self._process.wait() != 0:
            raise SystemExit(f"training failed: {self._process.returncode}")
        return [row for row in self.rows if row.get("updates", 0) > 0]

    def kill(self) -> None:
        """End it if it has not ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()
