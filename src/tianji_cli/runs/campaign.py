"""A campaign: several trainings side by side, each on cores of its own, which can all be resumed.

Seeds and the trials of a sweep are campaigns. A training plans for the cores that its process may use. So
a training started on four of sixteen cores is pinned to these, and three others may train beside it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, Self

from tianji_cli.errors import ProcessExit, TianjiError, errors_as
from tianji_cli.files.regular import read_json
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.launch.children import Child, end_children, python_command, wait_for_exit
from tianji_cli.limits import pin
from tianji_cli.signals import INTERRUPTED
from tianji_cli.telemetry.run_state import read_state

END_S: Final = 60.0
"""Seconds that trainings may take to save and end."""
LOOK_S: Final = 1.0
"""Seconds between two looks at trainings that go on."""

Status = Literal["waiting", "running", "finished", "stopped", "failed"]


@dataclass(eq=False)
class Member:
    """One training of a campaign, and its state.

    Attributes:
        config: config that the training begins with.
        seed: its seed.
        settings: other ``SECTION.KEY=VALUE`` settings that it begins with.
        reason: reason why it stopped or failed, in words.
    """

    run: RunDirectory
    config: Path
    seed: int
    settings: Sequence[str] = ()
    status: Status = "waiting"
    reason: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the training neither waits nor runs."""
        return self.status not in {"waiting", "running"}

    @property
    def has_finished(self) -> bool:
        """Whether its summary says that it has come to its end, perhaps in an earlier campaign."""
        try:
            return bool(read_json(self.run.summary)["status"] == "finished")
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def command(self, new_settings: Sequence[str] = (), *, anew: bool = False) -> list[str] | None:
        """Return the command that goes on from the checkpoint, or begins if there is none.

        Args:
            new_settings: the user's, with which a finished training may have another goal.
            anew: begin again where a checkpoint could go on.

        Returns:
            None if the training is finished.

        Raises:
            TianjiError: the directory cannot be made, or not be cleared for a new beginning.
        """
        run = self.run
        if run.metrics.exists():
            if not new_settings and self.has_finished:
                return None
            if not anew and (run.checkpoints / "last").exists():
                return training_command(new_settings, "--resume", str(run.path.absolute()), "--quiet")
        if run.path.exists():
            run.begin_anew()
        else:
            with errors_as(TianjiError, f"cannot begin {run.path}", OSError):
                RunDirectory.make(run.path)
        own = (*new_settings, *self.settings, f"experiment.seed={self.seed}")
        return training_command(own, str(self.config), "--run", str(run.path), "--quiet")

    def note_exit(self, ended: ProcessExit) -> None:
        """Record how the training's process has ended."""
        if ended.status == 0:
            self.status = "finished"
        elif ended.status == INTERRUPTED:
            self.note_stopped()
        else:
            self.status, self.reason = "failed", why_failed(ended)

    def note_stopped(self) -> None:
        """Record the state of a stopped training: it may have been over, or not have begun."""
        if not self.run.metrics.exists():
            self.status = "waiting"
            return
        found = read_state(self.run)
        self.status, self.reason = "stopped", found.reason
        if found.status in {"finished", "failed"}:
            self.status = found.status


class Campaign:
    """Owns some cores, and the trainings that run on them; ends the trainings with its context.

    Args:
        cores: logical CPUs to be shared.
        each: number of cores for each training. One training runs even if there are fewer.

    Attributes:
        at_once: number of trainings that run at once.
    """

    def __init__(self, cores: Collection[int], each: int) -> None:
        all_cores = list(cores)
        self.at_once = max(1, len(all_cores) // each)
        bounds = [number * len(all_cores) // self.at_once for number in range(self.at_once + 1)]
        self._free = [all_cores[first:end] for first, end in pairwise(bounds)]
        self._running: dict[Member, tuple[Child, list[int]]] = {}

    @property
    def has_room(self) -> bool:
        """Whether another training may start."""
        return bool(self._free)

    @property
    def running(self) -> tuple[Member, ...]:
        """Trainings that run, in the order in which they were started."""
        return tuple(self._running)

    def start(self, member: Member, command: Sequence[str]) -> None:
        """Start a training on free cores.

        Raises:
            OSError: the command cannot be run.
        """
        cores = self._free[0]
        with _on(cores):
            child = Child(command)
        self._running[member] = child, self._free.pop(0)
        member.status = "running"

    def wait(self, timeout_s: float = LOOK_S) -> list[tuple[Member, ProcessExit]]:
        """Wait until a training ends, at most ``timeout_s``; returns the ended ones with their exits."""
        members = {child: member for member, (child, _) in self._running.items()}
        found = []
        for child in wait_for_exit(list(members), timeout_s):
            member, ended = members[child], child.wait()
            _, cores = self._running.pop(member)
            member.note_exit(ended)
            found.append((member, ended))
            end_children([child], 0.0)
            self._free.append(cores)
        return found

    def ask_to_end(self, member: Member) -> None:
        """Ask a training to save and end; ``wait`` returns it once it has ended."""
        self._running[member][0].terminate()

    def end(self) -> None:
        """Ask all trainings to save and end, and wait until they have."""
        running = dict(self._running)
        self._running.clear()
        children = [child for child, _ in running.values()]
        for child in children:
            child.terminate()
        end_children(children, END_S)
        for member in running:
            member.note_stopped()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end()


def training_command(settings: Sequence[str], *words: str) -> list[str]:
    """Return the command that runs `tianji train` with some words and ``--set`` settings."""
    options = [word for setting in settings for word in ("--set", setting)]
    return python_command("tianji_cli", "train", *words, *options)


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
