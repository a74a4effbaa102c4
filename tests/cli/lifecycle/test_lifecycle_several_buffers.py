"""A replay in several buffers: books, balance, what is saved, and what becomes of it when one dies."""

import shutil
import signal
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS, merged
from cli.lifecycle.test_lifecycle_replay import DQN, RHO, SAVED, WARMUP
from ports import free_address

FRAGMENT, BATCH = 64, 64
SEVERAL: dict[str, Any] = {
    "distribution": {
        "actor": {"num": 3},
        "buffer": {"colocate": False, "num": 2, "sampler": "prioritised"},
    }
}


@pytest.fixture(autouse=True)
def dqn(workplace: Any) -> None:
    workplace.base = merged(DQN, SEVERAL)


def check_books(summary: dict[str, Any], *, earlier: int = 0) -> None:
    """The learner heard of everything that was received, and each buffer held the balance."""
    assert summary["env_steps"] == earlier + summary["received"] > 0
    assert summary["rejected_frames"] == 0
    ratio, consumed = summary["replay_ratio"], summary["session"]["consumed"]
    # Each may be ahead by what a fragment and a batch are worth, and has three batches under way.
    assert abs(consumed / RHO - consumed / ratio["actual"]) < 2 * (FRAGMENT + BATCH / RHO + 3 * BATCH / RHO)


@pytest.mark.parametrize(
    "transport", ["shm", "zmq", *(pytest.param(one, marks=pytest.mark.soak) for one in ("mpi", "ucx"))]
)
def test_the_learner_hears_of_every_sample_that_any_of_them_received(workplace: Any, transport: str) -> None:
    long = {"experiment": {"stop": {"env_steps": 16_384}}}
    run = workplace.train(long, {"distribution": {"transport": transport}})
    summary = run.finish()
    check_books(summary)
    assert (summary["in_flight"], summary["lost"]) == (0, 0)
    assert summary["session"]["consumed"] / RHO <= summary["received"] - WARMUP + 2 * (FRAGMENT + BATCH)
    assert summary["replay"]["capacity"] == 4096
    assert [role["role"] for role in summary["roles"]].count("buffer") == 2
    first = next(row for row in run.rows if row["updates"])
    assert first["env_steps"] >= WARMUP, "none begins before all have their part of the warm-up"


def test_each_saves_its_replay_and_a_resumed_run_goes_on_with_all_of_them(workplace: Any) -> None:
    run = workplace.train(ENDLESS, SAVED)
    run.train_until(5000)
    run.command.signal_all(signal.SIGINT)
    first = run.finish(130)
    check_books(first)
    checkpoints = run.path / "checkpoints"
    assert sorted(path.name for path in checkpoints.glob("replay*")) == ["replay-0-of-2", "replay-1-of-2"]

    goal = ("--set", f"experiment.stop.env_steps={first['env_steps'] + 450}")
    other = workplace.resume(run, *goal, "--set", "distribution.buffer.num=3")
    other.command.wait(1)
    assert "was saved by another number of buffers than distribution.buffer.num = 3" in other.command.stderr

    again = workplace.resume(run, *goal).finish()
    check_books(again, earlier=first["env_steps"])
    assert again["replay"]["size"] > 2048
    assert again["updates"] > first["updates"], "there was no warm-up"

    shutil.rmtree(checkpoints / "replay-0-of-2")
    shutil.rmtree(checkpoints / "replay-1-of-2")
    goal = ("--set", f"experiment.stop.env_steps={again['env_steps'] + 2000}")
    empty = workplace.resume(run, *goal, "--set", "distribution.buffer.num=3").finish()
    check_books(empty, earlier=again["env_steps"])
    assert empty["replay"]["size"] == empty["received"], "they began empty"


@pytest.mark.parametrize(
    "transport", ["shm", "zmq", *(pytest.param(one, marks=pytest.mark.soak) for one in ("ucx",))]
)
def test_one_that_is_killed_is_lost_with_its_actors_and_the_others_go_on(
    workplace: Any, transport: str
) -> None:
    run = workplace.train(ENDLESS, {"distribution": {"transport": transport}})
    run.train_until(3000)
    run.command.kill("buffer 1")
    workplace.until(lambda: "buffer 1 (group 0) was killed" in run.log, "the loss is said")
    before = run.rows[-1]
    run.train_until(before["env_steps"] + 3000)
    assert run.rows[-1]["updates"] > before["updates"] + 20, "the learner goes on"
    run.command.kill("actor 0")
    again = run.env_steps
    run.train_until(again + 2000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert "env steps of the replay and actor 1 (group 0), actor 2 (group 0); the others go on" in run.log
    assert summary["reason"].endswith("; without buffer 1 (group 0), lost on the way")
    assert summary["env_steps"] == summary["received"]
    assert summary["lost"] > 0
    assert summary["replay"]["capacity"] == 2048


def test_two_hosts_have_a_buffer_each_and_the_learner_draws_from_both(workplace: Any) -> None:
    address = free_address()
    two = {"distribution": {"hosts": 2, "transport": {"local": "shm", "remote": "zmq"}}}
    run = workplace.train(two, options=("--listen", address, "--quiet"))
    workplace.until((run.path / "job.key").exists, "the key is written")
    host = workplace.command("join", address, "--key", str(run.path / "job.key"))
    summary = run.finish()
    host.wait(0)
    check_books(summary)
    assert (summary["in_flight"], summary["lost"]) == (0, 0)
    buffers = [role["host"] for role in summary["roles"] if role["role"] == "buffer"]
    assert len(set(buffers)) == 2


def test_a_run_whose_last_buffer_is_killed_fails_with_exact_accounts(workplace: Any) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(3000)
    run.command.kill("buffer 0")
    workplace.until(lambda: "buffer 0 (group 0) was killed" in run.log, "the loss is said")
    run.command.kill("buffer 1")
    summary = run.finish(1)
    assert summary["reason"].startswith("buffer 1 (group 0) was killed by SIGKILL")
    assert summary["env_steps"] == summary["received"]
