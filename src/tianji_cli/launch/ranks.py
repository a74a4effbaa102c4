"""Rank of this process among those that an MPI launcher has started, as the environment has it.

Imports next to nothing: `tianji train` asks before it imports anything else.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Final

LEFT_OVER: Final = "left over from an MPI launcher that cannot be reached, and ignored"


@dataclass(frozen=True)
class Launch:
    """A process's rank and the number of ranks, from the environment of an MPI launcher."""

    rank: int
    size: int


def launched() -> Launch | None:
    """Rank and size if an MPI launcher, or srun with several tasks, has started this process; else None.

    Looks at the environment alone: a process that was started by itself must not initialise MPI.
    """
    variables, dead = os.environ, left_over()
    for rank, size in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("PMIX_RANK", "PMIX_SIZE"),
    ):
        if rank in variables and size in variables and rank not in dead:
            return Launch(int(variables[rank]), int(variables[size]))
    tasks = int(variables.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks > 1 and "SLURM_PROCID" in variables:
        return Launch(int(variables["SLURM_PROCID"]), tasks)
    return None


def left_over() -> list[str]:
    """Name the variables of MPI launchers that cannot be reached: they have started only an outer step."""
    names = sorted(os.environ)
    reaches_pmi = any(name.startswith(("PMI_PORT", "PMI_CONTROL", "PALS_")) for name in names)
    with contextlib.suppress(ValueError, OSError):
        os.fstat(int(os.environ.get("PMI_FD", "none")))
        reaches_pmi = True
    dead = [] if reaches_pmi else ["PMI_"]
    dead += [] if any(name.startswith(("PMIX_", "OMPI_MCA_")) for name in names) else ["OMPI_COMM_WORLD_"]
    return [name for name in names if name.startswith(tuple(dead))]
