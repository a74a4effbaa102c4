"""A training that is over in seconds, for tests of where it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import tomli_w

from beds.namespaces import Wire

TIANJI: Final = Path(sys.executable).with_name("tianji")
ENV_STEPS: Final = 20_000
ENDLESS: Final = ("--set", "experiment.stop.env_steps=1000000000")
ACCOUNTS: Final = ("received", "in_flight", "lost", "dropped")
TITLE: Final = "tianji: actor 1"


def write_config(place: Path, transport: str | dict[str, str], actors: int = 2, hosts: int = 1) -> Path:
    """Write ``run.toml``: PPO on CartPole.

    Args:
        place: where to.
        transport: engine of the edges.
        actors: how many.
        hosts: how many, where no launcher says it.
    """
    config = {
        "experiment": {"name": "run", "stop": {"env_steps": ENV_STEPS}, "eval_episodes": 0, "plots": False},
        "environment": {"type": "gym", "id": "CartPole-v1", "num_envs": 8},
        "agent": {"type": "ppo"},
        "model": {"type": "mlp_actor_critic", "hidden": [16]},
        "training": {"rollout_steps": 512, "minibatch_size": 128, "epochs": 2},
        "distribution": {
            "transport": transport,
            "pin_cores": False,
            "actor": {"num": actors, "send_size": 32, "window": 2},
            "hosts": hosts,
        },
    }
    path = place / "run.toml"
    path.write_text(tomli_w.dumps(config))
    return path


def finished_summary(run: Path) -> dict[str, Any]:
    """Read a run's summary, and check what is true of every run that finished."""
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished", summary
    assert summary["env_steps"] >= ENV_STEPS
    assert summary["produced"] == sum(summary[account] for account in ACCOUNTS), summary
    assert summary["lost"] == 0, summary
    assert not (run / "job.key").exists()
    return summary


def hosts_of(summary: dict[str, Any]) -> dict[int, str]:
    """Say on which host each rank was."""
    return {role["rank"]: role["host"] for role in summary["roles"]}


class Training:
    """A training on the first host of a wire, and hosts that join from the second."""

    def __init__(self, wire: Wire, place: Path, transport: str | dict[str, str], *options: str) -> None:
        self.wire = wire
        self.run = place / "out/run/1"
        self._place = place
        self._address = f"tcp://{wire.hosts[0].address}:5555"
        # UCX takes both for one host and would go through shared memory.
        self._environment = os.environ | {"UCX_TLS": "tcp,self"}
        config = write_config(place, transport, actors=2, hosts=2)
        train = ("train", config, "--out", place / "out", "--listen", self._address, *options)
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
        assert summary["session"]["number"] > 1 or summary["received"] == summary["env_steps"]
        return summary
