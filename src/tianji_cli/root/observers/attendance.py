"""Tells the processes of a group which of its actors are there: hosts come and go, and actors are parked."""

from __future__ import annotations

from itertools import chain

from tianji_cli.plan.graph import INFERENCE
from tianji_cli.root.observers.observer import Observer
from tianji_cli.root.running_job import RunningJob
from tianji_cli.telemetry.snapshot import Snapshot
from tianji_cli.wire.messages import Attending, Register, ToRoot


class Attendance(Observer):
    """Tells actors, and inference apart, which actors of their group are there.

    They begin with all actors that the plan has. DQN's explore the less, the later they come, so the few of a
    job that begins with one host of many would be those that explore most. Inference forgets those that are
    gone, which would keep it at an old version.
    """

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        carriers = (*job.plan.carrying("actor"), *job.plan.carrying(INFERENCE))
        self._group_of = {process.rank: process.group for process in carriers}
        self._away: set[int] = set()

    def on_begin(self) -> None:
        """Tell the processes of the hosts that training begins with."""
        self._note_changes()

    def on_message(self, message: ToRoot) -> None:
        """Tell a process that has just begun, unless all are there."""
        if not isinstance(message, Register) or not self._away:
            return
        if message.rank in self._group_of and message.rank not in self._away:
            self._job.control.send(message.rank, self._attending(self._group_of[message.rank]))

    def on_tick(self, snapshot: Snapshot) -> None:  # noqa: ARG002 - it looks at seats alone
        """Tell all processes of the groups whose seats have changed."""
        self._note_changes()

    def _note_changes(self) -> None:
        away = self._job.vacant | self._job.parked
        if changed := self._away ^ away:
            self._away = away
            groups = {self._group_of[rank] for rank in changed & self._group_of.keys()}
            messages = {group: self._attending(group) for group in groups}
            for rank, group in self._group_of.items():
                if group in messages and rank not in self._away:
                    self._job.control.send(rank, messages[group])

    def _attending(self, group: int | None) -> Attending:
        """Name the actors of a group that are there."""
        carriers = self._job.plan.carrying("actor", group)
        there = (process.actors for process in carriers if process.rank not in self._away)
        return Attending(actors=list(chain.from_iterable(there)))
