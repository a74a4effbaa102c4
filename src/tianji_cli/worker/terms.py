"""What a group's supply is built from: its processes, and what they agree on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tianji_cli.config.schema import JobConfig
from tianji_cli.plan.plan import Plan, PlannedProcess
from tianji_cli.wire.fragment import FragmentLayout


@dataclass(frozen=True)
class GroupProcesses:
    """The processes of one group.

    Attributes:
        buffer: carries the buffer.
        learner: carries the learner; the same process if they are colocated.
        followers: carry the other learners.
        carriers: carry actors.
    """

    buffer: PlannedProcess
    learner: PlannedProcess
    followers: Sequence[PlannedProcess]
    carriers: Sequence[PlannedProcess]

    @classmethod
    def of(cls, plan: Plan, group: int | None) -> GroupProcesses:
        """Find the processes of a group."""
        of_group = [process for process in plan.processes if process.group == group]
        carrying = {
            role: [process for process in of_group if role in process.roles]
            for role in ("buffer", "learner", "follower", "actor")
        }
        (buffer,), (learner,) = carrying["buffer"], carrying["learner"]
        return cls(buffer, learner, carrying["follower"], carrying["actor"])

    @property
    def actors(self) -> int:
        """Actors of the group."""
        return sum(len(process.actors) for process in self.carriers)


@dataclass(frozen=True)
class Terms:
    """What a supply is built from.

    Attributes:
        config: of the job.
        job: the job's number, for headers.
        layout: of fragments.
        agent_fields: names of the agent's fields of a fragment.
        processes: the processes of the group.
        seed: gives a seed for a purpose.
        directory: of the run.
        checkpoints: of the group.
        resumed: training goes on from a checkpoint.
        env_steps: received in earlier sessions.
    """

    config: JobConfig
    job: int
    layout: FragmentLayout
    agent_fields: tuple[str, ...]
    processes: GroupProcesses
    seed: Callable[[str], int]
    directory: Path
    checkpoints: Path
    resumed: bool
    env_steps: int
