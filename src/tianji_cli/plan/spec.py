"""Specs that a worker process gets: of the job, once on each host, and of its own part in it.

The config travels as text, as the root has checked it: no worker reads a file that could have changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from tianji_cli.files.modules import KeptModule
from tianji_cli.files.saved import Progress
from tianji_cli.plan.plan import Plan
from tianji_cli.wire.address import LOOPBACK, RootAddress
from tianji_cli.wire.messages import first_mistake


@dataclass(frozen=True)
class JobSpec:
    """What all processes of a job on one host share.

    Where roles are built without a root, as for a first build, an evaluation or a measurement, only what has
    no default is given.

    Attributes:
        id: of the job; unique on the host.
        config: resolved, as TOML.
        plan: who carries what.
        directory: takes what processes need while they run: the run directory, or that of a host that joined.
        run: takes what lasts: the run directory, wherever it can be reached.
        progress: counters that this session goes on from, by group; empty in the first session.
        own_best: this session judges policies otherwise than those before, and begins a best of its own.
        init: tensors that a new run begins with: a checkpoint's directory or a file; None if there are none.
        members: hyperparameters of each group of a population; empty where there is none.
        root: how to reach the root; None if there is none.
        path: where Python finds modules, as the root found them.
        production: file of the actors' counters; None keeps them in each process.
        interface: address of this host that other hosts reach; loopback if there are none.
        modules: of the user's, by name: what they were when the session began. None where they are files of
            a host that joined, or all processes begin with the session.
        fresh: processes are started anew instead of forked with what they need imported.
    """

    id: str
    config: str
    plan: Plan
    directory: Path
    run: Path
    progress: tuple[Progress, ...] = ()
    own_best: bool = False
    init: Path | None = None
    members: tuple[dict[str, Any], ...] = ()
    root: RootAddress | None = None
    path: tuple[str, ...] = ()
    production: Path | None = None
    interface: str = LOOPBACK
    modules: Mapping[str, KeptModule] = field(default_factory=dict)
    fresh: bool = False

    @property
    def resumed(self) -> bool:
        """Training goes on from ``checkpoints/last``."""
        return bool(self.progress)

    @property
    def env_steps(self) -> int:
        """Env steps of all groups in earlier sessions."""
        return sum(progress.env_steps for progress in self.progress)

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are: the first group's, and below them those of the others."""
        return self.run / "checkpoints"

    def hyperparameters_of(self, group: int | None) -> dict[str, Any]:
        """Return the hyperparameters that a group trains with at first; empty without a population."""
        return dict(self.members[group]) if self.members and group is not None else {}

    def to_json(self) -> str:
        """Write it for another host."""
        return _JOB.dump_json(self).decode()

    @classmethod
    def from_json(cls, said: str) -> JobSpec:
        """Read what ``to_json`` wrote.

        Raises:
            ValueError: it is no job spec.
        """
        try:
            job = _JOB.validate_json(said)
        except ValidationError as cause:
            raise ValueError(first_mistake(cause)) from cause
        if job.root is None:
            raise ValueError("root: missing")
        return job

    def process(self, rank: int, incarnation: int = 0, env_steps: int = 0) -> ProcessSpec:
        """Describe a process on this host."""
        planned = self.plan.processes[rank]
        log = f"{'-'.join(dict.fromkeys(planned.roles))}-{rank}.log"
        return ProcessSpec(rank, incarnation, planned.title, self.directory / "logs" / log, env_steps)


_JOB: Final[TypeAdapter[JobSpec]] = TypeAdapter(JobSpec)


@dataclass(frozen=True)
class ProcessSpec:
    """One process of a job, and what is told of it when it ends.

    Attributes:
        rank: its number in the plan.
        incarnation: how often it was restarted.
        title: how it shows in ``ps`` and in messages.
        log: takes its output, on this host.
        env_steps: that the learner before this one had received when it was killed; 0: there was none.
    """

    rank: int
    incarnation: int
    title: str
    log: Path
    env_steps: int = 0
