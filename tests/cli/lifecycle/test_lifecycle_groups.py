"""Jobs of several groups: averaging over every engine, and groups that are slow, die, or go on later."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS

GROUPS = {"distribution": {"groups": 2, "sync_interval": 8}}


def averaged(run: Any, rounds: int) -> Any:
    """Wait until so many averages were made."""

    def made() -> bool:
        assert run.command.process.poll() is None, run.command.stdout + run.command.stderr
        return bool(run.rows) and run.rows[-1]["averaging"]["rounds"] >= rounds

    return made


def saved_env_steps(run: Any, group: int) -> int:
    place = run.path / "checkpoints" / (f"group-{group}" if group else "")
    return int(json.loads((place / "last/state.json").read_text())["progress"]["env_steps"])


def best_means(run: Any) -> dict[int, Any]:
    """The best mean return of each group so far; None for one without an episode."""
    return {row["group"]: row["best_mean_100"] for row in run.rows[-1]["by_group"]}


def check_best(run: Any) -> None:
    """``best`` leads to the best group, and is what is evaluated."""
    means = best_means(run)
    best = max(sorted(means), key=lambda group: means[group])
    link = run.path / "checkpoints/best"
    assert os.readlink(link).startswith("group-1/" if best == 1 else "best-")
    assert (link / "model.safetensors").is_file()
    assert Path(link).resolve().is_relative_to(run.path.resolve())


@pytest.mark.parametrize(
    "transport", ["shm", *(pytest.param(one, marks=pytest.mark.soak) for one in ("zmq", "mpi", "ucx"))]
)
def test_groups_are_averaged_over_every_engine(workplace: Any, transport: str) -> None:
    run = workplace.train(GROUPS, ENDLESS, {"distribution": {"transport": transport}})
    workplace.until(averaged(run, 3), "averages")
    workplace.until(lambda: None not in best_means(run).values(), "episodes of both groups end")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["groups"] == 2
    assert summary["averaging"]["lost"] == []
    run.check_refusals()
    assert summary["env_steps"] == saved_env_steps(run, 0) + saved_env_steps(run, 1)
    check_best(run)


def test_groups_in_step_train_and_average_their_optimizers_when_asked_to(workplace: Any) -> None:
    stop = {"experiment": {"stop": {"env_steps": 20_000}}}
    run = workplace.train(GROUPS, stop, {"distribution": {"mode": "sync", "sync_optimizer": True}})
    summary = run.finish()
    assert summary["averaging"]["rounds"] > 2
    assert summary["staleness"]["max"] == 0


@pytest.mark.parametrize("mode", ["async", pytest.param("sync", marks=pytest.mark.soak)])
def test_a_suspended_group_delays_nobody_and_is_named(workplace: Any, mode: str) -> None:
    run = workplace.train(GROUPS, ENDLESS, {"distribution": {"sync_wait_s": 0.2, "mode": mode}})
    workplace.until(averaged(run, 2), "averages")
    learner = run.command.kill("buffer and learner (group 1)", signal.SIGSTOP)
    workplace.until(lambda: "group 1 is late" in run.log, "it is late")
    before = run.rows[-1]
    run.train_until(before["env_steps"] + 2000)
    os.kill(learner, signal.SIGCONT)
    workplace.until(averaged(run, before["averaging"]["rounds"] + 2), "averages with it again")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["averaging"]["missed"][1] >= 1
    assert summary["averaging"]["lost"] == []


def test_a_group_whose_learner_is_killed_is_left_behind_and_the_books_are_right(workplace: Any) -> None:
    evaluated = {"experiment": {"eval_episodes": 2}, "distribution": {"transport": "zmq"}}
    run = workplace.train(GROUPS, evaluated, workplace.with_goal())
    workplace.until(averaged(run, 2), "averages")
    run.command.kill("buffer and learner (group 1)")
    workplace.until(lambda: "group 1 is lost" in run.log, "it is lost")
    workplace.until(lambda: not run.command.pids("actor 1 (group 1)"), "its actor ends")
    steps, rounds = run.env_steps, run.rows[-1]["averaging"]["rounds"]
    run.train_until(steps + 2000)
    workplace.until(averaged(run, rounds + 1), "averages without it")
    run.reach_goal()
    summary = run.finish()
    assert summary["status"] == "finished"
    assert "without group 1" in summary["reason"]
    assert summary["averaging"]["lost"] == [1]
    assert summary["averaging"]["rounds"] > rounds
    assert summary["evaluation"]["episodes"] == 2
    assert "killed by SIGKILL" in run.log


TWO_LEARNERS = {"distribution": {"learner": {"num": 2}}}
PARTED = {
    "agent": {"type": "dqn"},
    "model": {"type": "mlp_q", "hidden": [16]},
    "training": {"batch_size": 64, "replay_ratio": 2.0, "warmup_steps": 512, "publish_every": 8},
    "distribution": {"buffer": {"colocate": False, "capacity": 4096}},
}


@pytest.mark.parametrize(
    "who", ["buffer (group 1)", pytest.param("follower 1 (group 1)", marks=pytest.mark.soak)]
)
def test_a_group_is_left_behind_whichever_of_its_receivers_is_killed(workplace: Any, who: str) -> None:
    if "follower" in who:
        change: dict[str, Any] = TWO_LEARNERS
    else:
        change = PARTED
        workplace.base = {key: value for key, value in workplace.base.items() if key != "training"}
    run = workplace.train(GROUPS, ENDLESS, change)
    workplace.until(averaged(run, 2), "averages")
    run.command.kill(who)
    workplace.until(lambda: "group 1 is lost" in run.log, "it is lost")
    workplace.until(lambda: len(run.command.pids("actor")) == 1, "its actor ends")
    rounds = run.rows[-1]["averaging"]["rounds"]
    workplace.until(averaged(run, rounds + 2), "averages without it")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["averaging"]["lost"] == [1]
    assert f"{who} was killed" in run.log


@pytest.mark.soak
def test_a_group_that_does_not_stop_in_time_is_lost_and_the_job_is_finished(workplace: Any) -> None:
    run = workplace.train(GROUPS, {"experiment": {"stop": {"wall_s": 3.0}, "eval_episodes": 2}})
    run.train_until(2000)
    run.command.kill("buffer and learner (group 1)", signal.SIGSTOP)
    summary = run.finish()
    assert summary["status"] == "finished"
    assert summary["averaging"]["lost"] == [1]
    assert "learner (group 1) did not stop in time and was killed" in run.log
    assert summary["evaluation"]["episodes"] == 2


def test_an_actor_of_the_second_group_is_restarted(workplace: Any) -> None:
    run = workplace.train(GROUPS, ENDLESS)
    run.train_until(3000)
    run.command.kill("actor 1 (group 1)")
    workplace.until(
        lambda: "actor 1 (group 1) was killed" in run.log or "restarting it" in run.log, "a restart"
    )
    workplace.until(lambda: run.command.pids("actor 1 (group 1)"), "its successor")
    run.train_until(run.env_steps + 3000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert sum(role["restarts"] for role in summary["roles"]) == 1
    assert summary["averaging"]["lost"] == []


def test_the_loss_of_the_first_group_ends_the_job(workplace: Any) -> None:
    run = workplace.train(GROUPS, ENDLESS)
    workplace.until(averaged(run, 2), "averages")
    run.command.kill("buffer and learner (group 0)")
    assert "buffer and learner (group 0) was killed" in run.finish(1)["reason"]
    assert saved_env_steps(run, 1) > 0, "the other group has saved"


def test_a_job_of_two_groups_that_is_interrupted_is_resumed_where_each_was(workplace: Any) -> None:
    run = workplace.train(GROUPS, ENDLESS)
    workplace.until(averaged(run, 2), "averages")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["status"] == "stopped"
    own = [saved_env_steps(run, group) for group in range(2)]
    assert summary["env_steps"] == sum(own)
    again = workplace.resume(run, "--set", f"experiment.stop.env_steps={sum(own) + 8000}")
    summary = again.finish()
    assert summary["env_steps"] == sum(own) + summary["received"]
    assert all(saved_env_steps(again, group) > own[group] for group in range(2))


MEMBERS = {
    "distribution": {"groups": 2},
    "population": {
        "interval": 2000,
        "perturb": {"training.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}},
    },
}


@pytest.mark.parametrize("groups", [GROUPS, MEMBERS], ids=["averaged", "members"])
def test_a_kill_between_the_first_checkpoints_of_two_groups_takes_nothing_from_either(
    workplace: Any, groups: dict[str, Any]
) -> None:
    run = workplace.train(groups, ENDLESS)
    workplace.until(
        lambda: (
            run.rows
            and min(row["env_steps"] for row in run.rows[-1]["by_group"] or [{"env_steps": 0}]) > 2000
        ),
        "both learn",
    )
    run.command.signal_all(signal.SIGINT)
    run.finish(130)
    own = [saved_env_steps(run, group) for group in range(2)]

    second = workplace.resume(run, "--set", "experiment.checkpoint_every_s=10")
    second.train_until(sum(own) + 1)
    second.command.kill("buffer and learner (group 1)", signal.SIGSTOP)
    workplace.until(lambda: saved_env_steps(run, 0) > own[0], "group 0 saves")
    second.train_until(saved_env_steps(run, 0) + own[1] + 1)
    second.command.end()
    saved = saved_env_steps(run, 0)
    assert saved_env_steps(run, 1) == own[1], "group 1 has saved nothing in the second session"

    third = workplace.resume(run, "--set", f"experiment.stop.env_steps={saved + own[1] + 4000}")
    summary = third.finish()
    assert summary["env_steps"] == saved + own[1] + summary["received"]
    assert saved_env_steps(run, 1) > own[1]
    assert f"goes on at {saved + own[1]} env steps: the last " in run.log


def test_a_resumed_job_may_have_one_more_group(workplace: Any) -> None:
    run = workplace.train()
    alone = run.finish()
    assert alone["averaging"] is None
    assert "group" not in alone["reason"]
    saved = alone["env_steps"]
    options = ("--set", "distribution.groups=2", "--set", f"experiment.stop.env_steps={saved + 8000}")
    summary = workplace.resume(run, *options).finish()
    assert summary["env_steps"] == saved + summary["received"] >= saved + 8000


def test_a_mean_return_is_reached_in_one_group_which_is_named(workplace: Any) -> None:
    run = workplace.train(GROUPS, {"experiment": {"stop": {"mean_return": 15.0}}})
    summary = run.finish()
    assert summary["reason"].startswith("mean return of the last 100 episodes is ")
    assert summary["reason"].endswith(("in group 0", "in group 1"))
