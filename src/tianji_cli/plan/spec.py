"""The specs of a worker process: the job's, once on each host, and the process's own.

The spec holds the config as text, as the root has checked it: no worker reads a file that could have changed
since.
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
    """Spec that all processes of a job on one host share.

    Builds without a root, such as a first build, an evaluation or a measurement, only set the attributes
    without a default.

    Attributes:
        id: id of the job; unique on the host.
        config: resolved config, as TOML.
        plan: plan of the job's processes.
        directory: directory for files of running processes: the run directory, or that of a host that joined.
        run: directory for lasting files: the run directory if the host can reach it.
        progress: counters that this session continues, by group; empty in the first session.
        own_best: this session judges policies differently from those before, and begins a new best policy.
        init: tensors that a new run begins with: a checkpoint's directory or a file; None without any.
        members: hyperparameters of each group of a population; empty without one.
        root: address of the root; None without a root.
        path: search path for Python modules, as in the root.
        production: file of the actors' counters; None keeps them in each process.
        interface: address of this host for other hosts; loopback if there are none.
        modules: the user's modules by name, as they were when the session began; empty if they are files of a
            host that joined, or if all processes begin with the session.
        fresh: start new processes instead of forking one with the imports.
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
        """Whether training goes on from ``checkpoints/last``."""
        return bool(self.progress)

    @property
    def env_steps(self) -> int:
        """Env steps of all groups in earlier sessions."""
        return sum(progress.env_steps for progress in self.progress)

    @property
    def checkpoints(self) -> Path:
        """Directory of the first group's checkpoints, with those of the others below."""
        return self.run / "checkpoints"

    def hyperparameters_of(self, group: int | None) -> dict[str, Any]:
        """Return a group's first hyperparameters; empty without a population."""
        return dict(self.members[group]) if self.members and group is not None else {}

    def to_json(self) -> str:
        """Serialise the spec for a node."""
        return _JOB.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Read a spec that ``to_json`` wrote.

        Raises:
            ValueError: the text is no job spec.
        """
        try:
            return _JOB.validate_json(text)
        except ValidationError as cause:
            raise ValueError(first_mistake(cause)) from cause

    def process(self, rank: int, incarnation: int = 0, env_steps: int = 0) -> ProcessSpec:
        """Return the spec of a process on this host."""
        planned = self.plan.processes[rank]
        log = f"{'-'.join(dict.fromkeys(planned.roles))}-{rank}.log"
        return ProcessSpec(rank, incarnation, planned.title, self.directory / "logs" / log, env_steps)


_JOB: Final[TypeAdapter[JobSpec]] = TypeAdapter(JobSpec)


@dataclass(frozen=True)
class ProcessSpec:
    """Spec of one process of a job, with its title and log for messages.

    Attributes:
        rank: number of the process in the plan.
        incarnation: number of restarts.
        title: title of the process in ``ps`` and in messages.
        log: file of the process's output, on this host.
        env_steps: env steps of the learner before this one when it was killed; 0 if there was none.
    """

    rank: int
    incarnation: int
    title: str
    log: Path
    env_steps: int = 0
