"""Claims about short trainings: they are real ones, from one fork server, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cli.sessions import kill_session
from cli.warm import WarmCommands

from tianji_cli.errors import RunFailed, UsageError
from tianji_lab.profile.trainer import Trainer

DIES = """
import os, gymnasium

class Dies(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps > 20:
            raise RuntimeError("a wheel came off")
        return super().step(action)

gymnasium.register("Dies-v0", lambda **_: Dies(gymnasium.make("CartPole-v1")))
"""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Math libraries with one thread, as the command has them."""
    for library in ("OMP", "OPENBLAS", "MKL"):
        monkeypatch.setenv(f"{library}_NUM_THREADS", "1")


@pytest.fixture
def children() -> Iterator[set[int]]:
    """Processes that are there beforehand; none more may be left."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    yield before
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


@pytest.mark.usefixtures("children")
def test_one_fork_server_trains_with_one_split_after_another_whatever_the_stop_rules_say(config: str) -> None:
    with Trainer(config, ["experiment.stop.env_steps=600"]) as trainer:
        servers = {process.pid for process in psutil.Process().children()}
        place = Path(trainer._place)
        small = trainer.train(["environment.num_envs=2"], 0.5)
        large = trainer.train(["environment.num_envs=32", "distribution.actor.num=2"], 0.5, traced=True)
        assert {process.pid for process in psutil.Process().children()} == servers
        assert len(list(place.glob("*/*"))) == 2
    assert not place.exists()
    assert large.learner.env_steps > 600
    assert large.steps_per_s > small.steps_per_s > 0
    assert large.uses_per_s == 2 * large.steps_per_s
    assert small.timeline is None
    assert large.timeline is not None
    assert {lane.role for lane in large.timeline.lanes} == {"buffer", "learner", "actor 0", "actor 1"}


@pytest.mark.usefixtures("children")
def test_a_training_that_fails_says_why_and_the_next_one_is_none_the_worse(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    monkeypatch.syspath_prepend(tmp_path)
    with Trainer(config, []) as trainer:
        with pytest.raises(RunFailed, match="a wheel came off"):
            trainer.train(['environment.id="dies:Dies-v0"'], 0.5)
        assert trainer.train([], 0.5).steps_per_s > 0


@pytest.mark.usefixtures("children")
def test_what_cannot_be_built_is_refused_before_anything_is_trained(config: str) -> None:
    with pytest.raises(UsageError, match="NoSuch-v0"):
        Trainer(config, ['environment.id="NoSuch-v0"'])


def test_ranks_that_mpiexec_would_start_are_trained_over_shared_memory(config: str) -> None:
    with Trainer(config, ["distribution.transport=mpi"]) as trainer:
        assert trainer.train([], 0.5).steps_per_s > 0


def test_an_interruption_ends_the_command_and_its_training(
    config: str, warm_commands: WarmCommands, tmp_path: Path
) -> None:
    command = warm_commands.begin_kept(["profile", config], tmp_path, os.environ)
    try:
        profile = psutil.Process(command.pid)
        deadline = time.monotonic() + 60.0
        while not (workers := [one for one in profile.children(recursive=True) if "actor" in one.name()]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=30.0)
        assert command.returncode == 130
        _, alive = psutil.wait_procs(workers, timeout=10.0)
        assert not alive
    finally:
        kill_session(command.pid)
