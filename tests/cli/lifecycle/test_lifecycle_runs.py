"""Runs that are listed, shown, followed, stopped and removed while they train, and afterwards."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS


def listed(workplace: Any) -> list[dict[str, Any]]:
    command = workplace.command("list", "runs", "--out", "out", "--json", "-")
    command.wait(0)
    runs: list[dict[str, Any]] = json.loads(command.stdout)["runs"]
    return runs


def test_a_run_is_listed_followed_and_stopped_and_only_then_removed(workplace: Any) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(1000)
    follow = workplace.command("logs", "out/run/1", "-f")
    (entry,) = listed(workplace)
    assert (entry["name"], entry["status"]) == ("out/run/1", "running")
    assert entry["env_steps"] >= 1000
    removal = workplace.command("rm", "out/run/1", "--yes")
    removal.wait(2)
    assert "out/run/1 is running: tianji stop out/run/1 ends it" in removal.stderr
    shown = workplace.command("show", "out/run/1")
    shown.wait(0)
    assert "out/run/1 running\n" in shown.stdout
    workplace.until(lambda: "root-0" in follow.stdout, "a log is printed")

    stop = workplace.command("stop", "out/run/1")
    stop.wait(0)
    summary = run.finish(130)
    assert (summary["status"], summary["reason"]) == ("stopped", "SIGTERM")
    assert stop.stdout.startswith("out/run/1 stopped: SIGTERM\n")
    assert "tianji train --resume out/run/1" in stop.stdout
    follow.wait(0)  # It ends with the run, and has all of it.
    assert [line.partition("| ")[2] for line in follow.stdout.splitlines() if line.startswith("root-0")] == (
        run.log.splitlines()
    )
    (entry,) = listed(workplace)
    assert (entry["status"], entry["env_steps"]) == ("stopped", summary["env_steps"])
    again = workplace.command("stop", "out/run/1")
    again.wait(0)
    assert again.stdout == "out/run/1 does not run: stopped, SIGTERM\n"

    unsaid = workplace.command("rm", "out/run/1")
    unsaid.wait(2)
    assert "--yes" in unsaid.stderr
    assert run.path.is_dir()
    workplace.command("rm", "out/run/1", "--yes").wait(0)
    assert not (workplace.place / "out/run").exists()
    assert listed(workplace) == []


def test_a_run_that_does_not_end_in_time_is_said_to_and_one_that_was_killed_is_listed_so(
    workplace: Any,
) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(1)
    os.kill(run.command.pid, signal.SIGSTOP)
    late = workplace.command("stop", "out/run/1", "--limit", "0.2")
    late.wait(1)
    assert f"kill -CONT {run.command.pid} lets it go on" in late.stderr
    os.kill(run.command.pid, signal.SIGKILL)
    run.command.wait()
    run.command.wait_for_all()  # Its learner saves.
    (entry,) = listed(workplace)
    assert (entry["status"], entry["reason"]) == ("killed", "it has ended without a result")
    stop = workplace.command("stop", "out/run/1")
    stop.wait(0)
    assert "does not run: killed" in stop.stdout


def test_a_copied_config_runs_where_it_lies(workplace: Any) -> None:
    (workplace.place / "elsewhere").mkdir()
    (workplace.place / "elsewhere/ppo_cartpole.toml").write_text("another = 1\n")
    copy = workplace.command("cp", "ppo_cartpole_learners", "elsewhere")
    copy.wait(0)
    assert copy.stdout == "tianji train elsewhere/ppo_cartpole_learners.toml\n"
    again = workplace.command("cp", "ppo_cartpole_learners", "elsewhere")
    again.wait(2)
    assert "elsewhere/ppo_cartpole_learners.toml is there already" in again.stderr
    workplace.command("cp", "ppo_cartpole_learners", "elsewhere", "--force").wait(0)
    workplace.command("train", "elsewhere/ppo_cartpole_learners.toml", "--dry-run").wait(0)


@pytest.mark.parametrize("config", ["ppo_cartpol", "../ppo_cartpole"])
def test_only_configs_that_come_with_tianji_are_copied(workplace: Any, config: str) -> None:
    command = workplace.command("cp", config)
    command.wait(2)
    assert "comes with tianji" in command.stderr
    assert not list(Path(workplace.place).glob("*.toml"))
