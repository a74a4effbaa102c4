"""Profiles of made-up measurements, and a file that holds one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from lab.profile.made_up_measurements import PPO, made_up

from tianji_cli.config.loader import load_config
from tianji_lab.profile.candidates import Candidates
from tianji_lab.profile.model import Cluster, Model
from tianji_lab.profile.parts import Measured, Measurements
from tianji_lab.profile.result import Profile
from tianji_lab.profile.split import num_envs_options

Find = Callable[..., Profile]


def of(
    config: str = PPO,
    cores: int = 2,
    cluster: Cluster | None = None,
    overrides: tuple[str, ...] = (),
    measurements: Measurements | None = None,
) -> Profile:
    """Profile a config on so many cores, for this machine or for a cluster, without a race."""
    job, measured = (
        load_config(config, overrides),
        measurements or made_up(config, cores, overrides=overrides),
    )
    hosts = Cluster(cores)
    model = Model(job, measured, cluster or hosts)
    sizes = num_envs_options(config, overrides)
    candidates = Candidates(config, overrides, model, sizes, elsewhere=cluster not in {None, hosts})
    return Profile(
        config=config,
        overrides=overrides,
        measured=Measured(measured, {"CPU": "an abacus", "cores": f"{cores} usable of {cores}"}),
        hosts=hosts,
        model=model,
        listed=[*candidates.best(6), *candidates.apart],
    )


@pytest.fixture
def found() -> Find:
    """Makes profiles."""
    return of


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A file that `tianji profile --json` writes, on two cores."""
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(of().document()))
    return path
