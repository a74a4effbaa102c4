"""A job as its processes know it: each node gets it once; ``Begin`` then names the rank that a process takes.

It holds the config as text, as the root has checked it: no worker reads a file that could have changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from tianji_cli.files.modules import KeptModule
from tianji_cli.files.saved import Progress, checkpoints_of
from tianji_cli.plan.plan import Plan
from tianji_cli.wire.address import LOOPBACK, RootAddress
from tianji_cli.wire.messages import first_mistake


@dataclass(frozen=True)
class Job:
    """All that the processes of a job on one host share.

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
        production: file of the counters of actors and roles; None keeps them in each process.
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

    def states(self, rank: int, role: str) -> Path:
        """Return the directory of what a user role of a rank's process saves, on this host."""
        process = self.plan.processes[rank]
        place = role if process.number is None else f"{role}-{process.number}"
        return checkpoints_of(self.checkpoints, process.group or 0) / "roles" / place

    def hyperparameters_of(self, group: int | None) -> dict[str, Any]:
        """Return a group's first hyperparameters; empty without a population."""
        return dict(self.members[group]) if self.members and group is not None else {}

    def to_json(self) -> str:
        """Serialise the job for a node."""
        return _JOB.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Read a job that ``to_json`` wrote.

        Raises:
            ValueError: the text is no job.
        """
        try:
            return _JOB.validate_json(text)
        except ValidationError as cause:
            raise ValueError(first_mistake(cause)) from cause

    def title(self, rank: int) -> str:
        """Return the title of a rank's process in ``ps`` and in messages."""
        return self.plan.processes[rank].title

    def log(self, rank: int) -> Path:
        """Return the file of the output of a rank's process, on this host."""
        roles = "-".join(dict.fromkeys(self.plan.processes[rank].roles))
        return self.directory / "logs" / f"{roles}-{rank}.log"


_JOB: Final[TypeAdapter[Job]] = TypeAdapter(Job)
