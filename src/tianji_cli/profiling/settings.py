"""Settings that a split stands for, and what of a config no split changes."""

from __future__ import annotations

from tianji_cli.config.schema import JobConfig
from tianji_cli.throughput.split import Split
from tianji_cli.throughput.workload import Workload


def split_of(job: JobConfig) -> Split:
    """Read the split that a config has."""
    raise NotImplementedError


def split_settings(split: Split) -> list[str]:
    """Settings (``SECTION.KEY=VALUE``) that give a config this split, and nothing else."""
    raise NotImplementedError


def workload_of(job: JobConfig, rho: float, uses_per_update: float, updates_per_version: float) -> Workload:
    """What a job asks of the machine; the figures are measured, since only the embryo knows them."""
    raise NotImplementedError
