"""`tianji launch ray` on real raylets: hosts come with nodes, are lost with them, and come again."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from beds.raylets import Raylets
from beds.training import TIANJI, write_config

pytestmark = pytest.mark.alone  # Four raylets start many processes.

TRANSPORT = {"local": "shm", "remote": "zmq"}
BROKEN = """
import gymnasium

class Broken(gymnasium.Env):
    def __init__(self):
        raise OSError("no simulator")
"""
ENDLESS = ("--set", "experiment.stop.env_steps=1000000000")


@pytest.fixture(scope="module")
def raylets() -> Iterator[Raylets]:
    with Raylets() as bed:
        yield bed


class Launched:
    """A `tianji launch ray` that is going on."""

    def __init__(self, place: Path, raylets: Raylets, *options: str) -> None:
        self.run = place / "out/run/1"
        self.output = place / "output"
        config = write_config(place, TRANSPORT, actors=3)
        command = ("launch", "ray", config, "--address", raylets.address, "--cpus-per-node=1", "--out=out")
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [TIANJI, *command, *options],
                cwd=place,
                stdout=output,
                stderr=output,
                env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
                start_new_session=True,
            )

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 90
        while not holds():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, f"{what}: {self.output.read_text()}"
            time.sleep(0.1)

    def times(self, words: str) -> int:
        return self.output.read_text().count(words)

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def launch(tmp_path: Path, raylets: Raylets) -> Iterator[Callable[..., Launched]]:
    begun: list[Launched] = []

    def one(*options: str) -> Launched:
        begun.append(Launched(tmp_path, raylets, *options))
        return begun[-1]

    yield one
    for job in begun:
        job.end()


@pytest.mark.timeout(300)
def test_hosts_come_with_nodes_are_lost_with_them_and_come_again(
    launch: Callable[..., Launched], raylets: Raylets
) -> None:
    job = launch("--hosts=1-3", *ENDLESS)
    job.until((job.run / "metrics.jsonl").exists, "it trains by itself")
    assert job.times("has joined") == 0
    first = raylets.add_node()
    job.until(lambda: job.times("has joined") == 1, "the first host joins")
    raylets.add_node()
    job.until(lambda: job.times("has joined") == 2, "the second host joins")
    raylets.lose(first)
    job.until(lambda: job.times("is lost") == 1, "the first host is lost")
    raylets.add_node()
    job.until(lambda: job.times("has joined") == 3, "Ray runs its task elsewhere")
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.process.wait(60) == 130, job.output.read_text()
    summary = json.loads((job.run / "summary.json").read_text())
    accounts = ("received", "in_flight", "lost", "dropped")
    assert summary["produced"] == sum(summary[account] for account in accounts)
    assert len({role["host"] for role in summary["roles"]}) == 3
    assert not (job.run / "job.key").exists()


def keys() -> set[Path]:
    """Keys that tasks have on this machine; that of a killed one stays until the next host joins from it."""
    return set(Path(tempfile.gettempdir()).glob("tianji-host-*/job.key"))


@pytest.mark.timeout(200)
def test_it_trains_to_its_goal_and_leaves_no_task(launch: Callable[..., Launched], raylets: Raylets) -> None:
    before = keys()
    raylets.add_node()
    job = launch("--hosts=2")
    assert job.process.wait(120) == 0, job.output.read_text()
    assert json.loads((job.run / "summary.json").read_text())["status"] == "finished"
    again = launch("--hosts=2", "--set", "experiment.seed=2")  # The node's CPU is free for it.
    assert again.process.wait(120) == 0, again.output.read_text()
    assert keys() <= before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--address=127.0.0.1:1", "--hosts=2"), "no Ray cluster at 127.0.0.1:1"),
        (("--address=ray://127.0.0.1:1", "--hosts=2"), "this has to be a node: HOST:PORT"),
        (("--hosts=1",), "one host needs no Ray"),
        (("--hosts=few",), "--hosts few is neither a number"),
    ],
)
@pytest.mark.timeout(120)
def test_what_cannot_be_is_refused_and_leaves_no_run(
    tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    config = write_config(tmp_path, TRANSPORT)
    command = [TIANJI, "launch", "ray", config, "--out=out", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_ray_the_error_is_the_command_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('not here')")
    config = write_config(tmp_path, TRANSPORT)
    done = subprocess.run(
        [sys.executable, "-m", "tianji_cli", "launch", "ray", config, "--hosts=2"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'tianji[ray]'" in done.stderr


def test_a_config_that_cannot_be_built_is_an_error_and_leaves_no_run(
    launch: Callable[..., Launched], tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    job = launch("--hosts=2", "--set", 'environment={type="broken:Broken", num_envs=8}')
    assert job.process.wait(60) != 0
    assert "no simulator" in job.output.read_text()
    assert not list((tmp_path / "out").rglob("job.key"))
    assert not job.run.exists()
