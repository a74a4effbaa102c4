"""Suspended processes are not dead: they are reported, waited for, and only ended when the run ends."""

import os
import signal
import time
from typing import Any

ENDLESS = {"experiment": {"stop": {"env_steps": 10**9}}}


def test_a_suspended_actor_is_reported_and_goes_on_when_it_is_continued(workplace: Any) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(1000)
    actor = run.command.kill("actor 0", signal.SIGSTOP)
    while "nothing heard of actor 0" not in (run.log if (run.path / "logs/root-0.log").exists() else ""):
        time.sleep(0.1)
    steps = run.env_steps
    os.kill(actor, signal.SIGCONT)
    run.train_until(steps + 1000)
    assert "actor 0 (group 0) is heard of again" in run.log
    assert run.command.pids("actor 0") == [actor]
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert sum(role["restarts"] for role in summary["roles"]) == 0
    assert summary["lost"] == 0


def test_an_actor_that_is_suspended_when_the_run_ends_is_killed_and_accounted_for(
    workplace: Any,
) -> None:
    run = workplace.train(ENDLESS, {"distribution": {"actor": {"num": 2}}})
    run.train_until(3000)
    run.command.kill("actor 1", signal.SIGSTOP)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["status"] == "stopped"
    assert summary["dropped"] + summary["in_flight"] + summary["lost"] < 1000  # Windows of two fragments.
    assert run.saved_env_steps == summary["env_steps"]
