"""What follows from measurements nobody has made, and a file that holds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from lab.profile.made_up_measurements import PPO, Job, made_up

from tianji_cli.config.loader import load_config
from tianji_lab.profile.document import document
from tianji_lab.profile.result import MeasuredJob, ProfileResult, find
from tianji_lab.profile.scaling import Cluster

Find = Callable[..., ProfileResult]


@cache
def of(
    job: Job = PPO,
    cores: int = 2,
    cluster: Cluster | None = None,
    noise: float = 0.04,
    overrides: tuple[str, ...] = (),
) -> ProfileResult:
    """What is found of a config, on so many cores, for this machine or a cluster."""
    measurements = made_up(job, cores, noise)
    subject = MeasuredJob(
        config=job.config,
        overrides=overrides,
        job=load_config(job.config, overrides),
        measurements=measurements,
        environment={"CPU": "an abacus", "cores": f"{cores} usable of {cores}"},
    )
    return find(subject, cluster or Cluster(cores), anywhere=cluster is not None)


@pytest.fixture
def found() -> Find:
    """Makes findings, each once."""
    return of


@pytest.fixture
def earlier(found: Find, tmp_path: Path) -> Path:
    """What `tianji profile --json` writes, on two cores."""
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(document(found())))
    return path
