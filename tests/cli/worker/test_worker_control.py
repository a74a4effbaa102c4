"""A worker handles the messages of the root."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tianji_cli.config.loader import load_config
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import make_plan
from tianji_cli.wire.messages import Allow, Begin
from tianji_cli.worker.worker import WorkerControl


@pytest.mark.parametrize(("fragments", "each"), [(0, [0, 0]), (1, [1, 0]), (2, [1, 1]), (None, [None, None])])
def test_the_actors_of_a_process_share_the_fragments_that_they_may_begin(
    tmp_path: Path, fragments: int | None, each: list[int | None]
) -> None:
    config = load_config("configs/ppo_cartpole.toml", ["distribution.inference.num=1"])
    job, unused = Job("of-two", "", make_plan(config), tmp_path, tmp_path), SimpleNamespace()
    control: Any = WorkerControl(job, Begin(number=0, rank=3, incarnation=0, env_steps=0), unused, None)  # type: ignore[arg-type]
    allowed: list[int | None] = []
    actor = SimpleNamespace(name="actor", allow=allowed.append)
    control.begin([actor, actor])
    control._handle(Allow(fragments=fragments))
    assert allowed == each
