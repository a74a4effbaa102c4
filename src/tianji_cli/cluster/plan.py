"""The plan of a job: which process carries which roles, on which host and cores. Pure data, no processes.

Rank 0 is the root. Then come the learner with its buffer and the actors of each group, and last the
evaluator, which starts when training is over. With ``transport = "inproc"`` all roles of a group share
one process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tianji_cli.config.schema import JobConfig

ROOT_RANK: Final = 0


@dataclass(frozen=True)
class PlannedProcess:
    """One process of a job.

    Attributes:
        rank: its number in the job.
        roles: roles that take turns in it, in their order.
        group: the group they belong to; None for the root and the evaluator.
        host: where it runs.
        cores: logical CPUs it is pinned to; empty leaves it to the scheduler.
        threads: compute threads it may use.
        device: where its roles compute, in torch's words.
        actors: numbers of the actors among its roles; an actor's number is unique in the job.
    """

    rank: int
    roles: tuple[str, ...]
    group: int | None
    host: str
    cores: tuple[int, ...]
    threads: int
    device: str = "cpu"
    actors: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """How the process shows in ``ps`` and in messages: ``actor 3 (group 0)``."""
        number = f" {self.actors[0]}" if self.roles == ("actor",) else ""
        group = "" if self.group is None else f" (group {self.group})"
        names = list(dict.fromkeys(self.roles))
        return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) + number + group


@dataclass(frozen=True)
class Plan:
    """All processes of a job, by rank."""

    processes: tuple[PlannedProcess, ...]
    transport: str

    def carrying(self, role: str) -> tuple[PlannedProcess, ...]:
        """Processes that carry a role, by rank."""
        return tuple(process for process in self.processes if role in process.roles)

    @property
    def trainers(self) -> tuple[PlannedProcess, ...]:
        """Processes that take part in training: all but the root and the evaluator."""
        return tuple(process for process in self.processes if process.group is not None)

    @property
    def num_actors(self) -> int:
        """Actors in the job."""
        return sum(len(process.actors) for process in self.processes)


def make_plan(config: JobConfig, available: Sequence[int] | None = None) -> Plan:
    """Place every role of a job on this host.

    Args:
        config: the job.
        available: logical CPUs to pin to; those this process may use by default.
    """
    cores = sorted(os.sched_getaffinity(0)) if available is None else list(available)
    distribution = config.distribution
    transport = distribution.transport.local
    shared = transport == "inproc"
    learner_cores, actor_cores = distribution.learner.cores, distribution.actor.cores
    placement = _Placement(cores if distribution.pin_cores else [], learner_cores * distribution.groups)
    host = socket.gethostname()
    processes = [PlannedProcess(ROOT_RANK, ("root",), None, host, (), 1)]
    actor = 0
    for group in range(distribution.groups):
        numbers = tuple(range(actor, actor + distribution.actor.num))
        actor += len(numbers)
        learner_pins = placement.learner(learner_cores)
        roles: tuple[str, ...] = ("buffer", "learner")
        device = distribution.device
        if shared:
            roles = ("actor",) * len(numbers) + roles  # Roles stop in this order, senders first.
            processes.append(
                PlannedProcess(
                    len(processes), roles, group, host, learner_pins, learner_cores, device, numbers
                )
            )
            continue
        processes.append(
            PlannedProcess(len(processes), roles, group, host, learner_pins, learner_cores, device)
        )
        for number in numbers:
            pins = placement.actor(actor_cores)
            processes.append(
                PlannedProcess(len(processes), ("actor",), group, host, pins, actor_cores, actors=(number,))
            )
    if config.experiment.eval_episodes:
        processes.append(PlannedProcess(len(processes), ("evaluator",), None, host, (), 1))
    return Plan(tuple(processes), transport)


class _Placement:
    """Hands out cores: learners get theirs first, actors share what is left."""

    def __init__(self, cores: Sequence[int], for_learners: int) -> None:
        enough = len(cores) > for_learners
        self._learners = list(cores[:for_learners]) if enough else []
        self._actors = list(cores[for_learners:]) if enough else []
        self._next_actor = 0

    def learner(self, number: int) -> tuple[int, ...]:
        """Take the next cores for a learner."""
        taken, self._learners = self._learners[:number], self._learners[number:]
        return tuple(taken)

    def actor(self, number: int) -> tuple[int, ...]:
        """Take cores for an actor, going round when there are fewer than actors want."""
        if not self._actors:
            return ()
        if number >= len(self._actors):
            return tuple(self._actors)
        pins = {self._actors[(self._next_actor + i) % len(self._actors)] for i in range(number)}
        self._next_actor += number
        return tuple(sorted(pins))
