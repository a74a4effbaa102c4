"""Actors whose environments take a given time for each step."""

from typing import Any

import pytest

STEP_S = 0.004
SLOW: dict[str, Any] = {
    "environment": {"num_envs": 1, "step_ms": 1e3 * STEP_S, "step_jitter": 0.0},
    "experiment": {"stop": {"env_steps": 2000}, "eval_episodes": 3},
    "distribution": {"actor": {"num": 2}},
}


@pytest.mark.parametrize("work", ["sleep", "busy"])
@pytest.mark.parametrize("apart", [{}, {"distribution": {"inference": {"num": 1}}}], ids=["local", "apart"])
def test_no_actor_makes_more_than_its_steps_allow(workplace: Any, work: str, apart: dict[str, Any]) -> None:
    summary = workplace.train(SLOW, apart, {"environment": {"step_work": work}}).finish()
    actors = sum(role["role"] == "actor" for role in summary["roles"])
    assert actors == 2
    assert 2000 <= summary["produced"] <= actors * summary["train_s"] / STEP_S
