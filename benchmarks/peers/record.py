"""Records the training episodes by which all peers are timed, in the order of their ends.

The episodes may come from several processes. Times are ``time.monotonic()``, which the processes of one
Linux host share.
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
    """A training episode; ``total`` is its return, and ``ended_s`` is monotonic time."""

    ended_s: float
    total: float
    steps: int


class Window:
    """Mean return of the last 100 training episodes, and the episode with which it reached the threshold."""

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self._threshold = threshold
        self.episodes: list[Episode] = []
        self.reached_at: Episode | None = None

    def add(self, episode: Episode) -> bool:
        """Add the next episode; returns whether the threshold has been reached."""
        self.episodes.append(episode)
        if self.reached_at is None and self.mean() >= self._threshold:
            self.reached_at = episode
        return self.reached_at is not None

    def mean(self) -> float:
        """Mean return of the last 100 episodes; minus infinity if there are fewer."""
        if len(self.episodes) < WINDOW:
            return -float("inf")
        return sum(episode.total for episode in self.episodes[-WINDOW:]) / WINDOW


class EpisodeLog:
    """Writes an environment's episodes to a file, a line each; other processes read it at any time."""

    def __init__(self, directory: str) -> None:
        self._file = (Path(directory) / f"{os.getpid()}-{id(self)}").open("w", buffering=1)

    def started(self) -> None:
        """Note the time before the first step."""
        self._file.write(f"{time.monotonic()} start\n")

    def ended(self, total: float, steps: int) -> None:
        """Note an episode that just ended."""
        self._file.write(f"{time.monotonic()} {total} {steps}\n")


def read_logs(directory: str) -> tuple[float, Window]:
    """Merge all logs; returns the time of the first step, and the episodes in the order of their ends."""
    starts: list[float] = []
    episodes: list[Episode] = []
    for path in Path(directory).iterdir():
        for line in path.read_text().splitlines(keepends=True):
            words = line.split()
            if not line.endswith("\n"):  # The line is not complete yet.
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
    """Monotonic time of this process's start, before its imports."""
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
    """Build the report of a peer; ``seconds`` is None if it did not reach the threshold.

    Args:
        used: uses of samples in updates; None if unknown.
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
    """Build a parser with the options of all peers."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", default="-", help="file for the result; - means standard output")
    return parser


def write(result: Mapping[str, Any], path: str) -> None:
    """Write the result to the path of ``--json``."""
    text = json.dumps(result, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        Path(path).write_text(text)
