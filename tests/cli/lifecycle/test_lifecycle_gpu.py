"""Runs of the real command with a GPU: learners on it, and actors too."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("actors_on", ["cpu", "cuda"])
def test_a_job_trains_on_a_gpu_and_its_policy_is_judged_anywhere(workplace: Any, actors_on: str) -> None:
    change = {"distribution": {"actor": {"num": 2, "device": actors_on}}, "experiment": {"eval_episodes": 2}}
    run = workplace.train(change, options=("--quiet", "--device", "cuda"))
    run.finish()
    summary = run.summary
    assert summary["status"] == "finished"
    assert summary["received"] >= 2048
    workplace.command("eval", "run", "--out", "out", "--episodes", "2").wait(0)
