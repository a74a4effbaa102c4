"""Environments that do not come back from a call: who is ended, what its log has, how the run ends."""

import signal
from typing import Any

import pytest
from cli.hangs import HANGS, hanging


@pytest.mark.parametrize("mode", [pytest.param("async", marks=pytest.mark.soak), "sync"])
def test_an_actor_that_hangs_in_a_step_comes_again_and_the_run_goes_on(workplace: Any, mode: str) -> None:
    workplace.module(HANGS)
    two = {"distribution": {"mode": mode, "actor": {"num": 2}}}
    run = workplace.train(hanging(3.0, once=True), two, {"experiment": {"stop": {"env_steps": 10**9}}})
    workplace.until(lambda: "; restarting it" in run.log, "it is restarted")
    run.train_until(run.env_steps + 4000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert sum(role["restarts"] for role in summary["roles"]) >= 1
    assert " in a step, an action or a picture (its output: " in run.log
    assert any("in step\n" in log.read_text() for log in (run.path / "logs").glob("actor-*.log"))


def test_an_environment_that_hangs_again_and_again_ends_the_run_with_that_as_its_reason(
    workplace: Any,
) -> None:
    workplace.module(HANGS)
    few = {"distribution": {"max_restarts_per_minute": 1}}
    run = workplace.train(hanging(2.0), few, {"experiment": {"stop": {"env_steps": 10**9}}})
    summary = run.finish(1)
    assert "actor 0 (group 0) hung for " in summary["reason"]
    assert "restarts are limited to 1 a minute" in summary["reason"]
    assert summary["bottleneck"] is None, "no transport is to blame"
    (log,) = (run.path / "logs").glob("actor-*.log")
    assert "in hang_in_reset\n" in log.read_text()


def test_a_run_that_hangs_when_its_time_is_up_has_failed(workplace: Any) -> None:
    workplace.module(HANGS)
    run = workplace.train(hanging(3600.0), {"experiment": {"stop": {"wall_s": 30.0}}})
    summary = run.finish(1)
    assert summary["env_steps"] > 0
    assert "actor 0 (group 0) hangs, and nothing was made or learnt since" in summary["reason"]
    assert "30 s of training" in summary["reason"]
    (log,) = (run.path / "logs").glob("actor-*.log")
    assert "in hang_in_reset\n" in log.read_text()


def test_roles_that_share_a_process_with_one_that_hangs_end_with_it(workplace: Any) -> None:
    workplace.module(HANGS)
    run = workplace.train(
        hanging(0.2), {"distribution": {"transport": "inproc"}, "experiment": {"stop": {"env_steps": 10**9}}}
    )
    assert "hung for " in run.finish(1)["reason"]
