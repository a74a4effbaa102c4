"""Learners of rollouts whose buffer has a process of its own: books, rollouts, and what a death means."""

import signal
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS

APART: dict[str, Any] = {"distribution": {"buffer": {"colocate": False}, "actor": {"num": 2}}}
TWO: dict[str, Any] = {"distribution": {"buffer": {"colocate": False, "num": 2}, "actor": {"num": 3}}}


@pytest.mark.parametrize(
    ("transport", "changes"),
    [
        ("shm", {}),
        ("zmq", {"distribution": {"buffer": {"rollouts": 3}}}),
        ("shm", {"distribution": {"learner": {"num": 2}}}),
        ("zmq", TWO),
        *(pytest.param(one, {}, marks=pytest.mark.soak) for one in ("mpi", "ucx")),
    ],
)
def test_the_learner_gets_every_sample_and_makes_whole_rollouts_of_them(
    workplace: Any, transport: str, changes: dict[str, Any]
) -> None:
    run = workplace.train(APART, changes, {"distribution": {"transport": transport}})
    summary = run.finish()
    assert summary["env_steps"] == summary["received"] >= 2048
    assert summary["rejected_frames"] == 0
    assert (summary["in_flight"], summary["lost"]) == (0, 0)
    rollouts = changes.get("distribution", {}).get("buffer", {}).get("rollouts", 1)
    assert summary["staleness"]["max"] <= 3 * rollouts
    assert any(role["role"] == "buffer" for role in summary["roles"])


def test_a_run_that_is_interrupted_is_resumed(workplace: Any) -> None:
    run = workplace.train(APART, ENDLESS)
    run.train_until(3000)
    run.command.signal_all(signal.SIGINT)
    first = run.finish(130)
    assert first["env_steps"] == first["received"]
    end = first["env_steps"] + 1500
    again = workplace.resume(run, "--set", f"experiment.stop.env_steps={end}").finish()
    assert again["env_steps"] == first["env_steps"] + again["received"] >= end


def test_a_killed_actor_is_replaced_and_a_killed_buffer_ends_the_run(workplace: Any) -> None:
    run = workplace.train(APART, ENDLESS)
    run.train_until(2000)
    run.command.kill("actor 1")
    run.train_until(run.env_steps + 3000)
    run.command.kill("buffer (")
    summary = run.finish(1)
    assert summary["reason"].startswith("buffer (group 0) was killed by SIGKILL")
    assert summary["env_steps"] == summary["received"]
    assert summary["lost"] > 0


def test_of_two_buffers_the_other_goes_on_when_one_is_killed(workplace: Any) -> None:
    run = workplace.train(TWO, ENDLESS)
    run.train_until(3000)
    run.command.kill("buffer 0")
    workplace.until(lambda: "buffer 0 (group 0) was killed" in run.log, "the loss is said")
    before = run.env_steps
    run.train_until(before + 3000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert "it is lost, with actor 0 (group 0); the others go on" in run.log
    assert summary["reason"].endswith("; without buffer 0 (group 0), lost on the way")
    assert summary["env_steps"] == summary["received"]
