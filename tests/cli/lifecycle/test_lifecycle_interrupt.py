"""Ctrl-C and SIGTERM at any moment: an orderly end with status 130, and nothing left running."""

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from cli.lifecycle.conftest import ACCOUNTS, ENDLESS

LONG_EVALUATION = {"experiment": {"eval_episodes": 100000}}


def to_root(number: signal.Signals) -> Callable[[Any], None]:
    return lambda command: os.kill(command.pid, number)


def to_group(number: signal.Signals) -> Callable[[Any], None]:
    return lambda command: command.signal_all(number)


WAYS = [
    pytest.param(to_group(signal.SIGINT), id="ctrl-c"),
    pytest.param(to_root(signal.SIGTERM), id="sigterm"),
    pytest.param(to_group(signal.SIGTERM), id="sigterm-to-all"),
]


@pytest.mark.parametrize("interrupt", WAYS[:2])
def test_an_interruption_while_starting_ends_the_command(
    workplace: Any, interrupt: Callable[[Any], None]
) -> None:
    dice = random.Random(3)
    workplace.begins_cold = True  # The moments are spread over its imports.
    for moment_s in (0.0, 0.4, 0.8, 1.6):
        run = workplace.train(ENDLESS, options=())
        run.command.wait_for_handlers()
        time.sleep(moment_s + dice.uniform(0, 0.2))
        interrupt(run.command)
        run.command.wait(130)
        if (run.path / "summary.json").exists():
            summary = run.summary
            assert summary["status"] == "stopped"
            assert summary["produced"] == sum(summary[account] for account in ACCOUNTS)


@pytest.mark.parametrize(
    ("interrupt", "transport"),
    [
        pytest.param(to_group(signal.SIGINT), "shm", id="ctrl-c"),
        pytest.param(to_root(signal.SIGTERM), "inproc", id="sigterm"),
        pytest.param(to_group(signal.SIGTERM), "shm", id="sigterm-to-all"),
        pytest.param(to_group(signal.SIGINT), "inproc", id="ctrl-c-inproc", marks=pytest.mark.soak),
        pytest.param(to_root(signal.SIGTERM), "shm", id="sigterm-shm", marks=pytest.mark.soak),
        pytest.param(to_group(signal.SIGTERM), "inproc", id="sigterm-to-all-inproc", marks=pytest.mark.soak),
    ],
)
def test_an_interruption_while_training_saves_and_accounts(
    workplace: Any, interrupt: Callable[[Any], None], transport: str
) -> None:
    run = workplace.train(ENDLESS, {"distribution": {"transport": transport}})
    run.train_until(3000)
    interrupt(run.command)
    summary = run.finish(130)
    assert summary["status"] == "stopped"
    assert summary["reason"] in {"Ctrl-C", "SIGTERM"} or summary["reason"].startswith("SIGTERM to ")
    assert summary["lost"] == 0
    assert run.saved_env_steps == summary["env_steps"] > 0


@pytest.mark.parametrize("interrupt", WAYS)
def test_an_interruption_while_evaluating_keeps_what_was_trained(
    workplace: Any, interrupt: Callable[[Any], None]
) -> None:
    run = workplace.train(LONG_EVALUATION)
    run.command.pid_of("evaluator")
    interrupt(run.command)
    summary = run.finish(130)
    assert summary["status"] == "stopped"
    assert summary["evaluation"] is None
    assert run.saved_env_steps == summary["env_steps"] >= 2048


def test_signals_in_quick_succession_are_one_and_a_later_one_ends_at_once(workplace: Any) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(3000)
    for _ in range(5):
        run.command.signal_all(signal.SIGINT)
        run.command.signal_all(signal.SIGTERM)
        time.sleep(0.02)
    summary = run.finish(130)
    assert summary["status"] == "stopped"
    assert run.saved_env_steps == summary["env_steps"]

    run = workplace.train(ENDLESS)
    run.train_until(3000)
    learner = run.command.kill("buffer and learner", signal.SIGSTOP)
    run.command.interrupt()
    assert learner in run.command.pids("buffer and learner")
    run.command.signal_all(signal.SIGINT)
    assert run.finish(130)["status"] == "stopped"
    assert "ending at once" in run.log


def test_sigterm_to_one_worker_stops_the_job(workplace: Any) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(1000)
    run.command.kill("actor 0", signal.SIGTERM)
    summary = run.finish(130)
    assert summary["reason"] == "SIGTERM to actor 0 (group 0)"
    assert summary["lost"] == 0


def test_a_closed_terminal_stops_the_job(workplace: Any) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(1000)
    run.command.signal_all(signal.SIGHUP)
    assert run.finish(130)["reason"] == "SIGHUP"
    assert run.saved_env_steps == run.summary["env_steps"]
