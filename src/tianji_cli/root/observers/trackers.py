"""Processes of a run's experiment trackers: they start with the run, and get some time at its end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tianji_cli.errors import one_line
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.launch.children import Child, end_children, python_command, wait_for_exit
from tianji_cli.root.observers.observer import Observer
from tianji_cli.signals import StopSignals

PATIENCE_S: Final = 60.0
"""Seconds that a tracker has to send the rest once all files are written."""
HURRY_S: Final = 1.0
"""Seconds that a tracker has once the user has asked twice for the end."""
LOOK_S: Final = 0.2


class TrackerProcesses(Observer):
    """Runs each tracker in a process of its own, which follows the run's files beyond the end of the job.

    Args:
        names: names of the trackers.
        run: the run.
        position: start of this session's metrics in their file, in bytes.
        event: receives a message about a tracker that fails.
    """

    def __init__(
        self, names: Sequence[str], run: RunDirectory, position: int, event: Callable[[str], None]
    ) -> None:
        self._event = event
        self._words = {name: (name, str(run.path), str(position)) for name in names}
        self._children: Mapping[str, Child] = {}

    def on_begin(self) -> None:
        """Start the trackers of a resumed run, which has the config of this session only now."""
        if not self._children:
            self.begin()

    def begin(self) -> None:
        """Start the trackers, once the run has the config of this session."""
        self._children = {
            name: Child(python_command("tianji_cli.telemetry.tracking", *words), stdin=subprocess.PIPE)
            for name, words in self._words.items()
        }

    def finish(self, signals: StopSignals) -> None:
        """Let the trackers finish once all files are written; report failed and late ones."""
        for child in self._children.values():
            assert child.process.stdin is not None
            child.process.stdin.close()
        began = time.monotonic()
        waiting = dict(self._children)
        while waiting and time.monotonic() - began < (PATIENCE_S if signals.count < 2 else HURRY_S):
            ended = wait_for_exit(list(waiting.values()), LOOK_S)
            waiting = {name: child for name, child in waiting.items() if child not in ended}
        for name, child in self._children.items():
            if name in waiting:
                self._event(f"tracker {name!r} did not finish in time and was killed")
            elif (ended_so := child.wait()).status != 0:
                reason = str(ended_so) if ended_so.by_signal else ended_so.last_words.rpartition("\n")[2]
                self._event(f"tracker {name!r} failed, and the run went on without it: {one_line(reason)}")

    def close(self) -> None:
        """Kill the remaining trackers."""
        children, self._children = list(self._children.values()), {}
        end_children(children, 0.0)
