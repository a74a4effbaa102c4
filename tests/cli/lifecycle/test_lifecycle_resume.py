"""Runs that --resume refuses, and a full disk."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from cli.lifecycle.conftest import ENDLESS
from cli.sessions import fill_disk


def test_resume_says_what_is_wrong_and_leaves_a_run_alone_that_is_still_going(workplace: Any) -> None:
    missing = workplace.command("train", "--resume", "nothing", "--out", "out")
    missing.wait(2)
    assert "no run 'nothing'" in missing.last_words

    run = workplace.train(ENDLESS)
    run.train_until(1000)
    config = (run.path / "config.toml").read_bytes()
    refused = workplace.command(
        "train", "--resume", str(run.path), "--set", "training.epochs=1", "--set", "model.hidden=[8]"
    )
    refused.wait(2)
    assert "still going" in refused.last_words
    assert (run.path / "config.toml").read_bytes() == config
    run.train_until(run.env_steps + 2000)
    run.command.signal_all(signal.SIGINT)
    run.finish(130)

    (run.path / "checkpoints/last").unlink()
    bare = workplace.command("train", "--resume", str(run.path))
    bare.wait(2)
    assert "no checkpoint" in bare.last_words


def test_resume_is_refused_while_an_orphaned_learner_still_saves(workplace: Any) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(1000)
    learner = run.command.kill("buffer and learner", signal.SIGSTOP)
    os.kill(run.command.pid, signal.SIGKILL)
    run.command.wait()
    refused = workplace.command("train", "--resume", str(run.path))
    refused.wait(2)
    assert "still going, or saving" in refused.last_words
    os.kill(learner, signal.SIGCONT)
    run.command.wait_for_all()
    workplace.resume(run, "--set", f"experiment.stop.env_steps={run.saved_env_steps + 2048}").finish()


def test_a_run_that_was_interrupted_goes_on_where_it_was(workplace: Any) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(5000)
    run.command.signal_all(signal.SIGINT)
    first = run.finish(130)
    again = workplace.resume(run, "--set", f"experiment.stop.env_steps={first['env_steps'] + 4096}").finish()
    assert again["env_steps"] == first["env_steps"] + again["received"]
    assert again["updates"] > first["updates"]
    steps = [row["env_steps"] for row in run.rows]
    assert steps[-1] >= again["env_steps"]


def contents(place: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a run: when it was written, and what."""
    return {
        str(path.relative_to(place)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in place.rglob("*")
        if path.is_file()
    }


def test_a_run_that_has_reached_its_goal_says_so_and_stays_as_it_is(workplace: Any) -> None:
    run = workplace.train()
    first = run.finish()
    before = contents(run.path)
    again = workplace.command("train", "--resume", str(run.path), "--json", "summary.json")
    again.wait(0)
    assert f"{run.path} has reached its goal, and nothing was changed" in again.stdout
    assert f"{first['env_steps']} environment steps, and experiment.stop.env_steps is 2048" in again.stdout
    assert f"tianji train --resume {run.path} --set experiment.stop.env_steps=" in again.stdout
    assert again.stderr == ""
    told = first | {"run": str(run.path)}
    assert json.loads((workplace.place / "summary.json").read_text()) == told
    workplace.environment = {"FORCE_COLOR": "1", "COLUMNS": "60"}  # To rich it is a terminal.
    again = workplace.command("train", "--resume", str(run.path))
    again.wait(0)
    assert f"train --resume {run.path} --set experiment.stop.env_steps=...\n" in again.stdout
    workplace.environment = {}
    only_json = workplace.command("train", "--resume", str(run.path), "--json", "-")
    only_json.wait(0)
    assert json.loads(only_json.stdout) == told
    assert contents(run.path) == before
    (run.path / "summary.json").rename(workplace.place / "kept.json")
    os.mkfifo(run.path / "summary.json")
    not_waiting = workplace.command("train", "--resume", str(run.path), "--json", "-")
    not_waiting.wait(1)
    assert not_waiting.last_words.endswith("summary.json: it is no regular file")
    (workplace.place / "kept.json").rename(run.path / "summary.json")

    # Of a goal that is moved, another rule may hold: this environment pays 1 each step.
    lower = ("--set", "experiment.stop.mean_return=1", "--set", "experiment.stop.env_steps=1000000")
    again = workplace.command("train", "--resume", str(run.path), *lower)
    again.wait(0)
    assert "experiment.stop.mean_return is 1.0" in again.stdout
    assert contents(run.path) == before

    # A limit of time is each session's own.
    moved = workplace.resume(run, "--set", "experiment.stop={ wall_s = 0.5 }").finish()
    assert moved["env_steps"] > first["env_steps"]
    moved = workplace.resume(run).finish()
    assert moved["received"] > 0


BREAKS = """
import gymnasium, numpy, pathlib, setproctitle, time

class Breaks(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        assert not pathlib.Path("broken").exists()
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        return numpy.zeros(3, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        if "tianji: evaluator" in setproctitle.getproctitle():
            time.sleep(0.01)
        return numpy.zeros(3, numpy.float32), 1.0, False, self.steps % 20 == 0, {}
"""


def test_a_run_that_was_stopped_in_its_evaluation_is_at_its_goal_though_nothing_builds(
    workplace: Any,
) -> None:
    workplace.module(BREAKS)
    environment = {"environment": {"type": "my_env:Breaks", "id": ""}}
    run = workplace.train(environment, {"experiment": {"eval_episodes": 3000}}, options=())
    workplace.until(lambda: "evaluating=" in run.command.stderr, "the evaluation goes on")
    run.command.signal_all(signal.SIGINT)
    run.finish(130)
    assert "evaluate it     tianji eval out/run/1" in run.command.stdout
    assert "go on with it" not in run.command.stdout
    (workplace.place / "broken").touch()
    again = workplace.command("train", "--resume", str(run.path))
    again.wait(0)
    assert "has reached its goal, and nothing was changed" in again.stdout


def test_a_full_disk_ends_the_run_with_what_could_not_be_written(workplace: Any, small_disk: Path) -> None:
    run = workplace.train(ENDLESS, {"experiment": {"checkpoint_every_s": 3.0}})
    run.train_until(1000)
    filler = fill_disk(small_disk)
    run.command.wait(1)
    assert "No space left" in run.command.last_words
    assert "checkpoint" in run.command.last_words

    filler.unlink()
    resumed = workplace.resume(run, "--set", f"experiment.stop.env_steps={run.saved_env_steps + 2048}")
    assert resumed.finish()["status"] == "finished"


def test_metrics_that_cannot_be_written_do_not_end_a_run(workplace: Any, small_disk: Path) -> None:
    run = workplace.train(workplace.with_goal(), {"experiment": {"checkpoint_every_s": 600.0}}, options=())
    run.train_until(1000)
    filler = fill_disk(small_disk)
    workplace.until(lambda: "metrics cannot be written" in run.command.stderr, "it is said")
    filler.unlink()
    run.reach_goal()
    summary = run.finish()
    assert summary["status"] == "finished"
    assert "missing from the metrics" in summary["reason"]
