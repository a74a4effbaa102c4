"""Jobs whose number of working actors varies while they train."""

import signal
from typing import Any

import pytest
from ports import free_address

WAITING: dict[str, Any] = {
    "environment": {"num_envs": 1, "step_ms": 2.0},
    "experiment": {"stop": {"env_steps": 10**9}},
    "training": {"rollout_steps": 64, "minibatch_size": 64, "epochs": 1},
    "distribution": {"actor": {"num": {"min": 1, "max": 6, "first": 1}}},
}
"""Actors that wait for their environments, so that more of them are faster on any machine."""


def split(run: Any) -> dict[str, int]:
    found: dict[str, int] = run.rows[-1].get("split", {}) if run.rows else {}
    return found


@pytest.mark.parametrize("transport", ["shm", "zmq"])
def test_more_actors_come_to_work_where_they_are_faster(workplace: Any, transport: str) -> None:
    run = workplace.train(WAITING, {"distribution": {"transport": transport}}, options=())
    workplace.until(lambda: split(run).get("kept", 0) >= 1, "more actors work")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["split"]["actors"] >= 2
    assert "2 actors in place of 1" in run.command.stderr
    assert summary["lost"] == 0


def test_a_parked_actor_that_is_killed_comes_back_parked_and_the_run_reaches_its_goal(
    workplace: Any,
) -> None:
    still = {"experiment": {"stop": {"env_steps": 3000}}, "training": {"rollout_steps": 1024}}
    run = workplace.train(WAITING, still, options=())  # Its windows take longer than it trains.
    run.produce_until(64)
    pid = run.command.kill("actor 5")
    workplace.until(lambda: run.command.pids("actor 5") not in ([], [pid]), "actor 5 is there again")
    summary = run.finish()
    assert summary["env_steps"] >= 3000
    assert (summary["lost"], summary["split"]["actors"]) == (0, 1)
    busy = {role["rank"]: role["busy"] for role in summary["roles"] if role["role"] == "actor"}
    assert max(busy, key=busy.__getitem__) == min(busy), "another than the first actor worked"


def test_learners_of_two_groups_go_on_with_as_many_actors_each(workplace: Any) -> None:
    groups = {"distribution": {"groups": 2, "actor": {"num": {"min": 1, "max": 3, "first": 1}}}}
    run = workplace.train(WAITING, groups, options=())
    workplace.until(lambda: split(run).get("tried", 0) >= 1, "another number was tried")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["lost"] == 0


def test_a_host_that_joins_brings_actors_that_are_tried_too(workplace: Any) -> None:
    hosts = {
        "distribution": {
            "transport": "zmq",
            "hosts": {"min": 1, "max": 2},
            "actor": {"num": {"min": 1, "max": 4, "first": 1}},
        }
    }
    address = free_address()
    run = workplace.train(WAITING, hosts, options=("--listen", address))
    run.train_until(100)
    assert split(run) == {"actors": 1, "trying": None, "tried": 0, "kept": 0}  # No other is there.
    other = workplace.command("join", address, "--key", str(run.path / "job.key"))
    workplace.until(lambda: split(run).get("actors", 0) > 1, "actors of both hosts work")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    other.wait()
    assert summary["split"]["actors"] > 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"distribution": {"mode": "sync"}}, "actors in step wait for one another"),
        ({"distribution": {"transport": "inproc"}}, "with this transport no actor can rest alone"),
        ({"distribution": {"inference": {"num": 1}}}, "inference apart waits for all of them"),
        ({"distribution": {"actor": {"num": {"min": 3, "max": 2}}}}, "min (3) is more than max (2)"),
        ({"distribution": {"actor": {"num": {"max": 2, "first": 3}}}}, "first (3) is not between 1 and 2"),
        ({"distribution": {"actor": {"num": "many"}}}, "neither a number nor a table"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_numbers_that_cannot_vary_are_refused(workplace: Any, change: dict[str, Any], why: str) -> None:
    run = workplace.train(WAITING, change)
    assert run.command.wait() == 2
    assert why in run.command.stderr


def test_dry_run_says_how_many_work(workplace: Any) -> None:
    path = workplace.config(WAITING)
    shown = workplace.command("train", str(path), "--dry-run")
    assert shown.wait() == 0
    assert "1 to begin with: of 1 to 6 actors, as many work as train fastest" in shown.stdout
