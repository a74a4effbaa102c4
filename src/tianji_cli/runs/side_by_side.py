"""Runs commands side by side, each on cores of its own.

A training plans for the cores that its process may use. So a training started on four of sixteen cores is
pinned to these, and three others may train beside it undisturbed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Final, Generic, Self, TypeVar

from tianji_cli.errors import ProcessExit
from tianji_cli.launch.children import Child, end_children, python_command, wait_for_exit
from tianji_cli.limits import pin

END_S: Final = 60.0
"""Seconds that commands may take to save and end."""

Key = TypeVar("Key")


class SideBySide(Generic[Key]):
    """Owns some cores, and the commands that run on them; ends the commands with its context.

    Args:
        cores: logical CPUs to be shared.
        each: number of cores for each command. One command runs even if there are fewer.

    Attributes:
        at_once: number of commands that run at once.
    """

    def __init__(self, cores: Collection[int], each: int) -> None:
        all_cores = sorted(cores)
        self.at_once = max(1, len(all_cores) // each)
        bounds = [number * len(all_cores) // self.at_once for number in range(self.at_once + 1)]
        self._free = [all_cores[first:end] for first, end in pairwise(bounds)]
        self._running: dict[Key, tuple[Child, list[int]]] = {}

    @property
    def has_room(self) -> bool:
        """Whether another command may start."""
        return bool(self._free)

    @property
    def running(self) -> tuple[Key, ...]:
        """Keys of the commands that run, in the order in which they were started."""
        return tuple(self._running)

    def start(self, key: Key, command: Sequence[str]) -> None:
        """Start a command on free cores.

        Raises:
            OSError: the command cannot be run.
        """
        cores = self._free[0]
        with _on(cores):
            child = Child(command)
        self._running[key] = child, self._free.pop(0)

    def wait(self, timeout_s: float) -> list[tuple[Key, ProcessExit]]:
        """Wait until a command ends, at most ``timeout_s``; returns the ended commands with their exits."""
        children = {child: key for key, (child, _) in self._running.items()}
        found = []
        for child in wait_for_exit(list(children), timeout_s):
            _, cores = self._running.pop(children[child])
            found.append((children[child], child.wait()))
            end_children([child], 0.0)
            self._free.append(cores)
        return found

    def ask_to_end(self, key: Key) -> None:
        """Ask a command to end, as a training does after saving; ``wait`` returns it once it has ended."""
        self._running[key][0].terminate()

    def end(self) -> None:
        """Ask all commands to end, as trainings do after saving, and wait until they have."""
        children = [child for child, _ in self._running.values()]
        self._running.clear()
        for child in children:
            child.terminate()
        end_children(children, END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end()


def training_command(overrides: Sequence[str], *words: str) -> list[str]:
    """Return the command that runs `tianji train` with some words and ``--set`` overrides."""
    settings = [word for override in overrides for word in ("--set", override)]
    return python_command("tianji_cli", "train", *words, *settings)


def why_failed(ended: ProcessExit) -> str:
    """Return the reason why a training failed: its last message, or the signal that killed it."""
    return str(ended) if ended.by_signal else ended.last_words.removeprefix("tianji: error: ")


@contextmanager
def _on(cores: Collection[int]) -> Iterator[None]:
    """Pin processes that start within the context to these cores."""
    before = os.sched_getaffinity(0)
    pin(cores)
    try:
        yield
    finally:
        pin(before)
