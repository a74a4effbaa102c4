"""A run is as it was after a command that takes it: refused, killed at any moment, or on a full disk."""

import json
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.lifecycle.conftest import Run, Workplace
from cli.sessions import fill_disk
from cli.warm import WarmCommands

GOES_ON = ("train", "--resume", "RUN", "--quiet", "--set", "experiment.stop={env_steps=1_000_000}")

REFUSED = {
    "the config's model has [32, 4]": (*GOES_ON, "--set", "model.hidden=[32]"),
    "the config's model has [16, 6]": (
        *GOES_ON,
        "--set",
        "environment={type='gym', id='Acrobot-v1', num_envs=8}",
    ),
    "unknown key": (*GOES_ON, "--set", "training.nothing=1"),
    "the run has begun already": (*GOES_ON, "--set", "experiment.init_from='RUN'"),
    "no transport is named 'nothing'": (*GOES_ON, "--transport", "nothing"),
    "has no checkpoint 'nothing'": ("eval", "RUN", "--checkpoint", "nothing"),
    "cannot write nowhere/policy.onnx": ("export", "RUN", "--format", "onnx", "--out", "nowhere/policy.onnx"),
    "cannot write nowhere/below/page.html": ("report", "RUN", "--out", "nowhere/below/page.html"),
    "no run 'nothing'": ("compare", "RUN", "nothing"),
    "a run is traced while it trains": ("trace", "RUN", "--seconds", "1"),
    "--yes says so": ("rm", "RUN"),
    "has no log of 'actor-99'": ("logs", "RUN", "actor-99"),
    "nothing: no such file": ("config", "diff", "RUN", "nothing"),
    "has no checkpoint 'nothing'; there are best": (
        "train",
        "run.toml",
        "--init-from",
        "RUN:nothing",
        "--out",
        "other",
    ),
}
"""Commands, by what they say."""

OF_NO_USE = {
    "tianji train --resume": ("train", "--resume", "RUN"),  # Its goal is reached.
    "does not run: finished": ("stop", "RUN"),
    "tianji eval": ("watch", "RUN"),
}

READS = {
    "eval": ("eval", "RUN", "--episodes", "2000", "--out", "out", "--json", "WHERE/eval.json"),
    "export": ("export", "RUN", "--format", "onnx", "--out", "WHERE/policy.onnx", "--check"),
    "report": ("report", "RUN", "--out", "WHERE/page.html"),
    "compare": ("compare", "RUN", "--out", "WHERE/figures"),
    "another training": ("train", "run.toml", "--init-from", "RUN", "--out", "WHERE/runs", "--quiet"),
}
"""Commands that take a run and write elsewhere."""


SWITCHED = """
import pathlib, time
import gymnasium, setproctitle

class Switched(gymnasium.Wrapper):
    def __init__(self):
        assert "actor" not in setproctitle.getproctitle() or not pathlib.Path("broken").exists()
        while "first build" in setproctitle.getproctitle() and pathlib.Path("builds").exists():
            time.sleep(0.01)
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        while pathlib.Path("waits").exists():
            time.sleep(0.01)
        return super().step(action)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, warm_commands: WarmCommands) -> Path:
    """A run that is over, which no test changes."""
    workplace = Workplace(tmp_path_factory.mktemp("finished"), warm_commands)
    workplace.module(SWITCHED)
    run = workplace.train({"environment": {"type": "my_env:Switched", "id": ""}})
    run.finish()
    run.command.wait_for_all()
    return run.path


@pytest.fixture
def run(finished: Path, workplace: Workplace) -> Path:
    path = workplace.place / "out/run/1"
    shutil.copytree(finished, path, symlinks=True)
    with (path / "metrics.jsonl").open("a") as rows:
        rows.write('{"schema": 1, "torn')  # As a kill may leave it.
    workplace.config()
    return path


def contents(run: Path) -> dict[str, Any]:
    """Contents of a run, without logs and files that live as long as a command."""
    found: dict[str, Any] = {}
    for path in run.rglob("*"):
        name = str(path.relative_to(run))
        if not name.startswith("logs/") and name not in {"job.key", "production.bin"}:
            is_file = path.is_file() and not path.is_symlink()
            found[name] = (
                path.read_bytes() if is_file else str(path.readlink()) if path.is_symlink() else None
            )
    return found


def command(workplace: Workplace, run: Path, arguments: tuple[str, ...]) -> Any:
    return workplace.command(*(word.replace("RUN", str(run)) for word in arguments))


def check_it_plays(workplace: Workplace, run: Path) -> None:
    command(workplace, run, ("eval", "RUN", "--episodes", "1")).wait(0)


@pytest.mark.parametrize("said", [*REFUSED, *OF_NO_USE])
def test_a_command_that_is_refused_or_of_no_use_changes_nothing(
    workplace: Workplace, run: Path, said: str
) -> None:
    before = contents(run)
    ended = command(workplace, run, {**REFUSED, **OF_NO_USE}[said])
    ended.wait(2 if said in REFUSED else 0)
    assert said in ended.stdout + ended.stderr
    assert contents(run) == before


def test_a_session_that_fails_before_it_begins_changes_nothing(workplace: Workplace, run: Path) -> None:
    before = contents(run)
    (workplace.place / "broken").touch()
    failed = command(workplace, run, (*GOES_ON, "--set", "training.epochs=1"))
    failed.wait(1)
    assert f"the session did not begin: {run} is as it was" in failed.stderr
    assert failed.last_words.startswith("tianji: error: actor 0")
    assert contents(run) == before
    listed = command(workplace, run, ("list", "runs", "--out", "out", "--json", "-"))
    listed.wait(0)
    assert [one["status"] for one in json.loads(listed.stdout)["runs"]] == ["finished"]


@pytest.mark.parametrize("title", ["first build", "buffer and learner", "actor"])
def test_a_session_that_is_killed_before_it_begins_changes_nothing(
    workplace: Workplace, run: Path, title: str
) -> None:
    before = contents(run)
    if title == "first build":  # It would be over before anybody has looked.
        (workplace.place / "builds").touch()
    begun = command(workplace, run, (*GOES_ON, "--set", "training.epochs=1"))
    begun.pid_of(title)
    begun.signal_all(signal.SIGSTOP)
    has_begun = contents(run) != before
    begun.end()
    if not has_begun:
        assert contents(run) == before
    check_it_plays(workplace, run)


def test_a_session_that_is_killed_before_its_first_update_is_listed_as_killed_and_gone_on_with(
    workplace: Workplace, run: Path
) -> None:
    before = contents(run)
    (workplace.place / "waits").touch()
    begun = command(workplace, run, (*GOES_ON, "--set", "training.epochs=1"))
    workplace.until(lambda: len(Run(run, begun).rows) > before["metrics.jsonl"].count(b"\n"), "a row")
    begun.end()
    train_s = [row["train_s"] for row in Run(run, begun).rows]
    assert train_s[-1] == train_s[before["metrics.jsonl"].count(b"\n") - 1] > 0
    after = contents(run)
    for name in before.keys() - {"metrics.jsonl", "sessions.jsonl"}:
        assert after[name] == before[name], name
    for name in ("metrics.jsonl", "sessions.jsonl"):
        assert after[name].startswith(before[name][: before[name].rindex(b"\n") + 1])
    listed = command(workplace, run, ("list", "runs", "--out", "out", "--json", "-"))
    listed.wait(0)
    assert [one["status"] for one in json.loads(listed.stdout)["runs"]] == ["killed"]
    (workplace.place / "waits").unlink()
    check_it_plays(workplace, run)

    again = workplace.resume(Run(run, begun), "--set", "experiment.stop={env_steps=6000}")
    summary = again.finish()
    assert summary["session"]["number"] == 3
    numbers = [json.loads(line)["number"] for line in (run / "sessions.jsonl").read_text().splitlines()]
    assert numbers == [1, 2, 3]
    state = json.loads((run / "checkpoints/last/state.json").read_text())
    assert state["progress"]["sessions"] == 2


def test_a_session_on_a_full_disk_changes_nothing(
    workplace: Workplace, finished: Path, small_disk: Path
) -> None:
    run = small_disk / "run/1"
    shutil.copytree(finished, run, symlinks=True)
    before = contents(run)
    fill_disk(small_disk)
    full = command(workplace, run, (*GOES_ON, "--set", "training.epochs=1"))
    full.wait(1)
    assert "No space left" in full.last_words
    assert contents(run) == before
    check_it_plays(workplace, run)


@pytest.mark.parametrize("arguments", READS.values(), ids=READS)
def test_a_command_that_reads_a_run_leaves_it_as_it_was_though_it_is_killed_or_cannot_write(
    workplace: Workplace, finished: Path, small_disk: Path, arguments: tuple[str, ...]
) -> None:
    run = small_disk / "run/1"
    shutil.copytree(finished, run, symlinks=True)
    workplace.config()
    before = contents(run)
    elsewhere = [word.replace("WHERE", str(workplace.place)) for word in arguments]
    for moment_s in np.random.default_rng(5).uniform(0.0, 1.0, 3):
        begun = command(workplace, run, tuple(elsewhere))
        with suppress(subprocess.TimeoutExpired):
            begun.process.wait(moment_s)
        begun.end()
        assert contents(run) == before
    fill_disk(small_disk)
    full = command(workplace, run, tuple(word.replace("WHERE", str(small_disk)) for word in arguments))
    assert full.wait() != 0
    assert "No space left" in full.stderr
    assert contents(run) == before
