"""Pods of `tianji launch k8s` run in network namespaces, each with a small `/dev/shm` of its own.

There is no Kubernetes: the test gives the pods their files (below other paths than in a pod), names and
addresses, and starts them again.
"""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from beds.namespaces import Host, Wire
from beds.training import TIANJI, finished_summary, write_config

NAME = "run"
MOUNTS = """
mount -t tmpfs -o size=64m none /dev/shm
mount --bind "$PLACE/hosts" /etc/hosts
exec sh -c "$SCRIPT"
"""


class Cluster:
    """Two pods of a Job, by its manifests."""

    def __init__(self, wire: Wire, place: Path, documents: dict[str, Any]) -> None:
        self._wire = wire
        self._place = place
        (container,) = documents["Job"]["spec"]["template"]["spec"]["containers"]
        self.pods: list[subprocess.Popen[bytes]] = []
        (script,) = container["args"]
        self._script = script.replace("/etc/tianji", str(place)).replace("/runs", str(place / "runs"))
        for directory in ("config", "key", "runs"):
            (place / directory).mkdir()
        for name, text in documents["ConfigMap"]["data"].items():
            (place / "config" / name).write_text(text)
        for name, content in documents["ConfigMap"].get("binaryData", {}).items():
            (place / "config" / name).write_bytes(base64.b64decode(content))
        for name, text in documents["Secret"]["stringData"].items():
            (place / "key" / name).write_text(text)
        (place / "hosts").write_text(f"127.0.0.1 localhost\n{wire.hosts[0].address} {NAME}-0.{NAME}\n")

    def start(self, index: int) -> subprocess.Popen[bytes]:
        """Start a pod."""
        host: Host = self._wire.hosts[index]
        environment = os.environ | {
            "JOB_COMPLETION_INDEX": str(index),
            "POD_IP": host.address,
            "PLACE": str(self._place),
            "SCRIPT": self._script,
            "PATH": f"{TIANJI.parent}:{os.environ['PATH']}",
        }
        with (self._place / f"pod-{index}.log").open("a") as log:
            pod = subprocess.Popen(
                host.command("unshare", "--mount", "sh", "-ec", MOUNTS),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pods.append(pod)
        return pod

    def kill(self, index: int, number: signal.Signals) -> None:
        """Send a signal to all processes of a pod."""
        for pid in self._wire.hosts[index].processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def log(self, index: int) -> str:
        return (self._place / f"pod-{index}.log").read_text()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, (what, self.log(0), self.log(1))
            time.sleep(0.1)

    @property
    def run(self) -> Path:
        """The run's directory, which the root's pod has made."""
        return next((self._place / "runs").glob(f"{NAME}-*"), self._place / "runs/none")

    @property
    def rows(self) -> list[dict[str, Any]]:
        metrics = self.run / "metrics.jsonl"
        lines = metrics.read_text().splitlines()[:-1] if metrics.exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture
def cluster(wire: Wire, tmp_path: Path) -> Iterator[Cluster]:
    config = write_config(tmp_path, {"local": "shm", "remote": "zmq"}, actors=2)
    options = ("--hosts=1-2", "--image=tianji", "--print", "--set=experiment.stop={env_steps=400_000}")
    often = "--set=experiment.checkpoint_every_s=1.0"
    command = [sys.executable, "-m", "tianji_cli", "launch", "k8s", config, *options, often]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    one = Cluster(wire, tmp_path, {document["kind"]: document for document in yaml.safe_load_all(written)})
    try:
        yield one
    finally:
        for index in (0, 1):
            one.kill(index, signal.SIGKILL)
        for pod in one.pods:
            pod.wait()


def test_pods_train_come_again_and_end_with_the_first(cluster: Cluster) -> None:
    first, second = cluster.start(0), cluster.start(1)
    cluster.until(lambda: "starting actor 1" in cluster.log(1), "the second pod has a seat")
    cluster.until(lambda: bool(cluster.rows) and cluster.rows[-1]["env_steps"] > 10_000, "it trains")
    cluster.kill(1, signal.SIGKILL)  # A node is gone, and the pod comes again on another one.
    second.wait()
    second = cluster.start(1)
    cluster.until(lambda: cluster.log(1).count("starting actor 1") == 2, "it has a seat again")
    cluster.until((cluster.run / "checkpoints/last").exists, "it has saved")
    cluster.kill(0, signal.SIGTERM)  # The root's pod is preempted.
    assert first.wait(60) == 130, cluster.log(0)
    first = cluster.start(0)
    cluster.until(lambda: cluster.log(1).count("starting actor 1") == 3, "the other pod follows it")
    assert first.wait(120) == 0, cluster.log(0)
    summary = finished_summary(cluster.run)
    assert summary["session"]["number"] == 2
    assert second.poll() is None, "it asks until Kubernetes ends it"
    second.send_signal(signal.SIGTERM)  # The Job is over.
    assert second.wait(20) == 143
