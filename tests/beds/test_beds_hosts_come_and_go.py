"""A host of actors that fails in many ways while a job trains, between network namespaces."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from beds.namespaces import Wire
from beds.training import TIANJI, write_config

ACCOUNTS = ("received", "in_flight", "lost", "dropped")
ENDLESS = ("--set", "experiment.stop.env_steps=1000000000")
TITLE = "tianji: actor 1"


class Training:
    """A training on the first host of a wire, and hosts that join from the second."""

    def __init__(self, wire: Wire, place: Path, transport: str) -> None:
        self.wire = wire
        self.run = place / "out/run/1"
        self._place = place
        self._address = f"tcp://{wire.hosts[0].address}:5555"
        # UCX takes both for one host and would go through shared memory.
        self._environment = os.environ | {"UCX_TLS": "tcp,self"}
        config = write_config(place, transport, actors=2, hosts=2)
        train = ("train", config, "--out", place / "out", "--listen", self._address, *ENDLESS)
        self.root = self._start(0, *train)
        self.until((self.run / "job.key").exists, "the key is written")

    def _start(self, host: int, *command: str | Path) -> subprocess.Popen[bytes]:
        with (self._place / f"host-{host}").open("a") as output:
            return subprocess.Popen(
                self.wire.hosts[host].command(TIANJI, *command),
                env=self._environment,
                cwd=self._place,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def join(self) -> subprocess.Popen[bytes]:
        """Start a host, and wait until its actor is there."""
        before = self.actors
        host = self._start(1, "join", self._address, "--key", self.run / "job.key")
        self.until(lambda: bool(self.actors - before), "the host's actor begins")
        self.train_on()
        return host

    @property
    def actors(self) -> set[int]:
        """Process ids of the second host's actor, one that has been given up included."""
        return {pid for pid, title in self.wire.hosts[1].processes().items() if title.startswith(TITLE)}

    @property
    def log(self) -> str:
        log = self.run / "logs/root-0.log"
        return log.read_text() if log.exists() else ""

    @property
    def env_steps(self) -> int:
        metrics = self.run / "metrics.jsonl"
        rows = metrics.read_text().splitlines() if metrics.exists() else []
        return json.loads(rows[-2])["env_steps"] if len(rows) > 1 else 0  # The last may be half written.

    def train_on(self, env_steps: int = 3000) -> None:
        goal = self.env_steps + env_steps
        self.until(lambda: self.env_steps >= goal, f"{goal} steps")

    def until(self, condition: Callable[[], bool], what: str, limit_s: float = 150) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert self.root.poll() is None, (what, (self._place / "host-0").read_text())
            assert time.monotonic() < deadline, (what, (self._place / "host-0").read_text())
            time.sleep(0.1)

    def finish(self) -> dict[str, Any]:
        """End the training in order, and check its account."""
        os.killpg(self.root.pid, signal.SIGINT)
        assert self.root.wait(60) == 130, (self._place / "host-0").read_text()
        summary: dict[str, Any] = json.loads((self.run / "summary.json").read_text())
        assert summary["produced"] == sum(summary[account] for account in ACCOUNTS), summary
        assert summary["received"] == summary["env_steps"]
        return summary


@pytest.fixture
def training(
    wire: Wire, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Training, subprocess.Popen[bytes]]]:
    one = Training(wire, tmp_path, request.param)
    try:
        yield one, one.join()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.root.pid, signal.SIGKILL)
        one.root.wait()


over = pytest.mark.parametrize(
    "training", ["zmq", pytest.param("ucx", marks=pytest.mark.soak)], indirect=True, ids=str
)
Begun = tuple[Training, subprocess.Popen[bytes]]


def is_missed(training: Training, times: int = 1) -> bool:
    return training.log.count("a host that joins takes its place") == times


@over
def test_a_host_that_is_killed_twice_comes_again(training: Begun) -> None:
    job, host = training
    for times in (1, 2):
        os.killpg(host.pid, signal.SIGKILL)
        host.wait()
        job.until(lambda times=times: is_missed(job, times), "it is missed")
        job.train_on()
        host = job.join()
    summary = job.finish()
    assert host.wait(60) == 0
    assert [role["restarts"] for role in summary["roles"] if role["role"] == "actor"] == [0, 2]


@pytest.mark.soak
@pytest.mark.timeout(400)
@over
def test_a_host_that_was_suspended_for_90_seconds_is_fenced_and_takes_a_seat_anew(training: Begun) -> None:
    job, host = training
    old = job.actors
    pids = job.wire.hosts[1].processes()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    job.until(lambda: is_missed(job), "it is given up")
    job.train_on()
    time.sleep(25)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    job.until(lambda: bool(job.actors - old) and not job.actors & old, "it has taken its seat anew")
    job.train_on(10_000)
    job.finish()
    assert host.wait(60) == 0


@pytest.mark.soak
@pytest.mark.timeout(400)
@over
@pytest.mark.parametrize("seconds", [10, 75])
def test_a_host_that_was_cut_off(training: Begun, seconds: int) -> None:
    job, host = training
    job.wire.set_link(up=False)
    time.sleep(seconds)
    if seconds > 60:
        job.until(lambda: is_missed(job), "it is given up")
    job.train_on()
    job.wire.set_link(up=True)
    if seconds > 60:
        assert host.wait(60) == 1, "its root was gone"
        host = job.join()
    job.train_on(10_000)
    summary = job.finish()
    assert host.wait(60) == 0
    assert len(summary["last_report_only"]) == (seconds > 60)


@pytest.mark.soak
@pytest.mark.timeout(400)
@over
def test_a_host_far_away_loses_nothing(training: Begun) -> None:
    job, host = training
    job.wire.slow_down(delay_s=0.2, loss=0.05)
    job.train_on(20_000)
    summary = job.finish()
    assert host.wait(60) == 0
    assert (summary["lost"], summary["last_report_only"]) == (0, [])
