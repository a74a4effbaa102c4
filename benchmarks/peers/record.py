"""What all peers are timed by: training episodes in the order they ended, from any number of processes.

Times are ``time.monotonic()``, which the processes of one Linux host share.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

THRESHOLD = 475.0
WINDOW = 100


@dataclass(frozen=True, order=True)
class Episode:
    """A training episode; ``ended_s`` is monotonic time."""

    ended_s: float
    total: float
    steps: int


class Window:
    """The mean return of the last 100 training episodes, and when it first was at the threshold."""

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self._threshold = threshold
        self.episodes: list[Episode] = []
        self.reached_at: Episode | None = None

    def add(self, episode: Episode) -> bool:
        """Take the next episode in order; answer whether the threshold has been reached."""
        self.episodes.append(episode)
        if self.reached_at is None and self.mean() >= self._threshold:
            self.reached_at = episode
        return self.reached_at is not None

    def mean(self) -> float:
        """Mean of the last 100; minus infinity before there are so many."""
        if len(self.episodes) < WINDOW:
            return -float("inf")
        return sum(episode.total for episode in self.episodes[-WINDOW:]) / WINDOW


class EpisodeLog:
    """The episodes of one worker process, one line each, for its parent to read at any time."""

    def __init__(self, directory: str) -> None:
        self._file = (Path(directory) / f"{os.getpid()}-{id(self)}").open("w", buffering=1)

    def started(self) -> None:
        """Note that stepping is about to begin."""
        self._file.write(f"{time.monotonic()} start\n")

    def ended(self, total: float, steps: int) -> None:
        """Note an episode that just ended."""
        self._file.write(f"{time.monotonic()} {total} {steps}\n")


def read_logs(directory: str) -> tuple[float, Window]:
    """Merge the logs of all workers: time of the first step, episodes in the order they ended."""
    starts: list[float] = []
    episodes: list[Episode] = []
    for path in Path(directory).iterdir():
        for line in path.read_text().splitlines(keepends=True):
            words = line.split()
            if not line.endswith("\n"):  # being written
                continue
            if words[1] == "start":
                starts.append(float(words[0]))
            else:
                episodes.append(Episode(float(words[0]), float(words[1]), int(words[2])))
    window = Window()
    for episode in sorted(episodes):
        window.add(episode)
    return min(starts, default=float("inf")), window


def process_started_s() -> float:
    """Monotonic time at which this process was started, its imports not yet made."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s


def report(
    peer: str,
    seed: int,
    first_step_s: float,
    window: Window,
    env_steps: int,
    settings: Mapping[str, Any],
    packages: Iterable[str],
    used: int | None = None,
) -> dict[str, Any]:
    """Build what every peer prints; ``seconds`` is None if the threshold was not reached.

    ``used`` counts the uses of samples in updates; None if the peer does not know.
    """
    reached = window.reached_at
    train_s = time.monotonic() - first_step_s
    return {
        "peer": peer,
        "seed": seed,
        "seconds": None if reached is None else reached.ended_s - first_step_s,
        "start_s": first_step_s - process_started_s(),
        "train_s": train_s,
        "env_steps": env_steps,
        "produced_per_s": env_steps / train_s,
        "consumed_per_s": None if used is None else used / train_s,
        "episodes": len(window.episodes),
        "mean_100": window.mean() if len(window.episodes) >= WINDOW else None,
        "settings": dict(settings),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
    }


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Build the options that all peers take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", default="-", help="file for the result; - means standard output")
    return parser


def write(result: Mapping[str, Any], path: str) -> None:
    """Write the result where ``--json`` says."""
    text = json.dumps(result, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        Path(path).write_text(text)
