"""Runs that learn from a replay: their books, their balance, and what becomes of the replay when they end."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS

EXAMPLES = Path(__file__).parents[3] / "docs/examples"
RHO, WARMUP = 2.0, 512
DQN: dict[str, Any] = {
    "experiment": {"name": "run", "stop": {"env_steps": 4096}, "eval_episodes": 0, "plots": False},
    "environment": {"type": "gym", "id": "CartPole-v1", "num_envs": 8},
    "agent": {"type": "dqn", "epsilon_steps": 2000},
    "model": {"type": "mlp_q", "hidden": [16]},
    "training": {"batch_size": 64, "replay_ratio": RHO, "warmup_steps": WARMUP, "publish_every": 8},
    "distribution": {
        "transport": "shm",
        "pin_cores": False,
        "actor": {"num": 1, "send_size": 8, "window": 2},
        "buffer": {"capacity": 4096},
    },
}
SEPARATE: dict[str, Any] = {"distribution": {"buffer": {"colocate": False, "sampler": "prioritised"}}}
SAVED: dict[str, Any] = {
    "experiment": {"checkpoint_every_s": 0.3},
    "distribution": {"buffer": {"save_with_checkpoint": True}},
}


@pytest.fixture(autouse=True)
def dqn(workplace: Any) -> None:
    workplace.base = DQN


def check_books(summary: dict[str, Any], *, earlier: int = 0) -> None:
    """Everything received was heard of by the learner, and the balance was held."""
    assert summary["env_steps"] == earlier + summary["received"] > 0
    assert summary["rejected_frames"] == 0
    check_ratio(summary)


def check_ratio(summary: dict[str, Any]) -> None:
    """Within the tolerance: a fragment and a batch are worth 96 env steps."""
    assert summary["replay_ratio"]["target"] == RHO
    steps = summary["session"]["consumed"] / summary["replay_ratio"]["actual"]
    assert abs(summary["session"]["consumed"] / RHO - steps) < 96 + 64


@pytest.mark.parametrize(
    ("colocate", "transport"),
    [
        (True, "inproc"),
        (False, "zmq"),
        *(pytest.param(False, one, marks=pytest.mark.soak) for one in ("mpi", "ucx")),
    ],
)
def test_the_learner_hears_of_every_sample_that_was_received(
    workplace: Any, colocate: bool, transport: str
) -> None:
    buffer = {"colocate": colocate, "sampler": "prioritised"}
    long = {"experiment": {"stop": {"env_steps": 16_384}}}  # Few more batches than consumed, by comparison.
    summary = workplace.train(long, {"distribution": {"transport": transport, "buffer": buffer}}).finish()
    assert summary["status"] == "finished"
    check_books(summary)
    assert (summary["in_flight"], summary["lost"]) == (0, 0)
    # Used is what was drawn: up to three batches more than the learner consumed. What came in after the end
    # was decided (the window's fragments, and the one that was being made) was received and not stored.
    consumed, received, batch, fragment = summary["session"]["consumed"], summary["received"], 64, 64
    most = (consumed + 3 * batch) / (received - 3 * fragment)
    assert consumed / received <= summary["uses"]["mean"] <= most


def test_a_killed_actor_is_replaced_and_the_balance_is_held(workplace: Any) -> None:
    run = workplace.train(ENDLESS, SEPARATE, {"distribution": {"actor": {"num": 2}}})
    for restarts in (1, 2):
        run.train_until(run.env_steps + 3000)
        run.command.kill("actor 1")
        # A connection that ends before it is made counts as a stranger's: wait for the next actor's.
        again = (restarts, "running")
        workplace.until(lambda again=again: again in _actors(run), "it is replaced")
    run.train_until(run.env_steps + 4000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert sum(role["restarts"] for role in summary["roles"]) == 2
    check_books(summary)


def _actors(run: Any) -> list[tuple[int, str]]:
    """Restarts and state of each role; a row without a change of it leaves it out."""
    roles = next(row["roles"] for row in reversed(run.rows) if row["roles"])
    return [(role["restarts"], role["state"]) for role in roles if role["role"] == "actor"]


def test_a_killed_buffer_ends_the_run_which_goes_on_with_a_new_warm_up(workplace: Any) -> None:
    run = workplace.train(ENDLESS, SEPARATE, {"experiment": {"checkpoint_every_s": 0.2}})
    run.train_until(3000)
    workplace.until(lambda: run.saved_env_steps > WARMUP, "a checkpoint")
    run.command.kill("buffer (")
    summary = run.finish(1)
    assert "buffer (group 0) was killed by SIGKILL" in summary["reason"]
    assert summary["status"] == "failed"

    saved = run.saved_env_steps
    resumed = workplace.resume(run, "--set", f"experiment.stop.env_steps={saved + 2000}")
    again = resumed.finish()
    check_books(again, earlier=saved)
    assert again["session"]["consumed"] / RHO <= again["received"] - WARMUP + 96 + 64
    assert again["replay"]["size"] == again["received"], "it began empty"


def test_a_run_goes_on_with_a_replay_that_is_newer_than_the_checkpoint(workplace: Any) -> None:
    saved = {"distribution": {"buffer": {"save_with_checkpoint": True}}}
    run = workplace.train(ENDLESS, SEPARATE, saved, {"experiment": {"checkpoint_every_s": 1e6}})
    run.train_until(3000)
    run.command.kill("learner (")
    assert "learner (group 0) was killed by SIGKILL" in run.finish(1)["reason"]
    assert run.saved_env_steps == 0, "the learner had saved nothing since it began"

    again = workplace.resume(run, "--set", "experiment.stop.env_steps=2000").finish()
    assert again["status"] == "finished"
    check_books(again)


def test_a_suspended_learner_holds_everybody_up_and_then_the_balance_is_as_it_was(workplace: Any) -> None:
    run = workplace.train(ENDLESS, SEPARATE)
    run.train_until(3000)
    learner = run.command.kill("learner", signal.SIGSTOP)
    time.sleep(2.0)
    before = run.rows[-1]
    os.kill(learner, signal.SIGCONT)
    run.train_until(before["env_steps"] + 3000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert sum(role["restarts"] for role in summary["roles"]) == 0
    check_books(summary)


def test_a_saved_replay_is_full_at_once_when_a_run_goes_on(workplace: Any) -> None:
    run = workplace.train(ENDLESS, SAVED, SEPARATE)
    run.train_until(5000)
    run.command.signal_all(signal.SIGINT)
    first = run.finish(130)
    check_books(first)
    assert run.saved_env_steps == first["env_steps"]
    assert first["replay"]["size"] > 2048
    (copy,) = (path for path in (run.path / "checkpoints/replay").iterdir() if not path.is_symlink())
    assert (run.path / "checkpoints/replay/last").resolve() == copy.resolve()

    # Fewer steps than a warm-up, and more than may be received before the learner has made an update.
    resumed = workplace.resume(run, "--set", f"experiment.stop.env_steps={first['env_steps'] + 450}")
    again = resumed.finish()
    check_books(again, earlier=first["env_steps"])
    assert again["replay"]["size"] > 2048
    assert again["updates"] > first["updates"], "there was no warm-up"

    damaged = next((run.path / "checkpoints/replay/last").glob("*fragments.npy"))
    with damaged.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"damaged")
    before = (run.path / "checkpoints/last/state.json").read_bytes()
    refused = workplace.resume(run, "--set", "experiment.stop.env_steps=1000000000")
    refused.command.wait(1)
    assert "cannot read the replay saved in" in refused.command.last_words
    assert f"{damaged.name} is damaged" in refused.command.last_words
    assert refused.command.stderr.count("tianji: error") == 1
    assert (run.path / "checkpoints/last/state.json").read_bytes() == before


def test_a_sampler_of_ones_own_draws_and_goes_on_with_a_saved_replay(workplace: Any) -> None:
    (workplace.place / "recent.py").write_text((EXAMPLES / "recent.py").read_text())
    own = {"distribution": {"buffer": {"sampler": "recent:RecentSampler"}}}
    run = workplace.train(ENDLESS, SAVED, SEPARATE, own)
    run.train_until(3000)
    run.command.signal_all(signal.SIGINT)
    first = run.finish(130)
    check_books(first)
    again = workplace.resume(run, "--set", f"experiment.stop.env_steps={first['env_steps'] + 450}").finish()
    check_books(again, earlier=first["env_steps"])
    assert again["updates"] > first["updates"], "there was no warm-up"


def test_a_replay_that_fits_nowhere_is_refused_before_any_step(workplace: Any) -> None:
    run = workplace.train(SEPARATE, {"distribution": {"buffer": {"capacity": 10**12}}})
    run.command.wait(2)
    assert "a replay of 1000000000000 env steps takes" in run.command.last_words
    assert "would do" in run.command.last_words
    assert run.command.stderr.count("tianji: error") == 1
    assert not run.path.exists()


@pytest.mark.parametrize("small_disk", ["2m"], indirect=True)
def test_a_disk_too_full_for_the_replay_ends_the_run_and_the_copy_before_is_whole(
    workplace: Any, small_disk: Path
) -> None:
    outgrowing = {"training": {"replay_ratio": 0.25}, "distribution": {"buffer": {"capacity": 200_000}}}
    run = workplace.train(ENDLESS, SAVED, SEPARATE, outgrowing)
    run.command.wait(1)
    assert "No space left" in run.command.last_words
    assert "cannot write the replay to" in (run.path / "logs/buffer-1.log").read_text()

    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    end = f"experiment.stop.env_steps={run.saved_env_steps + 300}"
    again = workplace.resume(run, "--set", end).finish()
    assert again["status"] == "finished"
    assert again["replay"]["size"] > again["received"] + 4096


def test_the_evaluation_after_training_without_any_greed_is_greedy_and_repeats_itself(workplace: Any) -> None:
    random = {"agent": {"epsilon_start": 1.0, "epsilon_end": 1.0}}
    run = workplace.train(random, {"experiment": {"eval_episodes": 8, "stop": {"env_steps": 2048}}})
    evaluation = run.finish()["evaluation"]
    assert evaluation["episodes"] == 8
    figures = []
    for _ in range(2):
        command = workplace.command("eval", "run", "--out", "out", "--seed", "5", "--json", "-")
        command.wait(0)
        figures.append(command.stdout)
    assert figures[0] == figures[1]


def test_a_sampled_policy_takes_the_share_of_random_actions_that_training_ended_with(workplace: Any) -> None:
    prioritised = {"distribution": {"buffer": {"sampler": "prioritised"}}}
    run = workplace.train({"agent": {"epsilon_end": 1.0, "priorities": True}}, prioritised)
    run.finish()

    def returns(*options: str) -> list[float]:
        command = workplace.command(
            "eval", str(run.path), "--episodes", "64", "--seed", "5", "--json", "-", *options
        )
        command.wait(0)
        found: list[float] = json.loads(command.stdout)["returns"]
        return found

    sampled, greedy = returns("--policy", "sampled"), returns()
    # All actions are random: 22 steps of CartPole in the mean, and never the same number.
    assert 15 < sum(sampled) / len(sampled) < 30
    assert len(set(sampled)) > 10
    assert sampled != greedy


def test_what_a_buffer_received_for_a_learner_that_was_killed_is_lost(workplace: Any) -> None:
    run = workplace.train(SEPARATE, ENDLESS, {"distribution": {"groups": 2}})
    run.train_until(2 * WARMUP)
    run.command.kill("learner (group 1)", signal.SIGSTOP)
    made = run.produced
    run.produce_until(made + 512)
    run.command.kill("learner (group 1)")
    workplace.until(lambda: "group 1 is lost" in run.log, "it is lost")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["env_steps"] == summary["received"] > 0
    assert summary["lost"] > 0
