"""Hosts that cannot reach the run's directory are refused before training if the run needs them to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tianji_cli.config.loader import load_config
from tianji_cli.errors import RunFailed
from tianji_cli.plan.plan import Host, make_plan
from tianji_cli.root.session import _check_places

SPREAD = ("distribution.learner.num=2", 'distribution.learner.hosts=["*"]', "training.rollout_steps=8192")
AWAY = ('distribution.learner.hosts=["b"]',)


def events(settings: tuple[str, ...], *, resumed: bool, reaches: bool) -> list[str]:
    engines = 'distribution.transport={ local = "shm", remote = "zmq" }'
    job = load_config("configs/ppo_cartpole.toml", ["distribution.hosts=2", engines, *settings])
    plan = make_plan(job, [Host("a", (0, 1)), Host("b", (0, 1))])
    node, seen = SimpleNamespace(reaches_run=reaches), list[str]()
    nodes: Any = {process.rank: node for process in plan.processes if process.host == "b"}
    request: Any = SimpleNamespace(job=job, run=SimpleNamespace(path=Path("run")), resumed=resumed)
    telemetry: Any = SimpleNamespace(event=seen.append)
    _check_places(request, plan, nodes, telemetry)
    return seen


@pytest.mark.parametrize(
    ("settings", "resumed", "why"),
    [
        (SPREAD, True, "^b is to go on with group 0 and cannot reach .*run: share it"),
        (AWAY, True, "^b is to go on with group 0 and cannot reach"),
        (AWAY, False, "^b is to keep the checkpoints of group 0 and cannot reach"),
    ],
)
def test_a_learner_that_needs_the_run_s_directory_is_refused_without(
    settings: tuple[str, ...], resumed: bool, why: str
) -> None:
    with pytest.raises(RunFailed, match=why):
        events(settings, resumed=resumed, reaches=False)
    events(settings, resumed=resumed, reaches=True)


def test_gradients_between_hosts_are_announced_as_unencrypted() -> None:
    said = events(SPREAD, resumed=False, reaches=False)
    assert said == ["gradients of group 0 go over the network, unencrypted: a, b"], (
        "a follower writes nothing"
    )
    assert events(("distribution.learner.num=2", SPREAD[2]), resumed=False, reaches=False) == []
