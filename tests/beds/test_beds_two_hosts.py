"""Training across two hosts with a wire between them: samples cross it, over zmq and over ucx."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from beds.namespaces import Wire
from beds.training import TIANJI, finished_summary, hosts_of, write_config

OBSERVATION_BYTES = 16
"""CartPole's four float32: the least that a sample is."""


@pytest.mark.parametrize("transport", ["zmq", "ucx"])
def test_samples_of_a_distant_actor_cross_the_wire(wire: Wire, tmp_path: Path, transport: str) -> None:
    first, second = wire.hosts
    config = write_config(tmp_path, transport, actors=1, hosts=2)
    address = f"tcp://{first.address}:5555"
    # UCX takes both for one host and would go through shared memory.
    environment = os.environ | {"UCX_TLS": "tcp,self"}
    train = first.command(TIANJI, "train", config, "--out", tmp_path / "out", "--listen", address, "--quiet")
    with (tmp_path / "train").open("w+") as said:
        training = subprocess.Popen(train, env=environment, cwd=tmp_path, stdout=said, stderr=said)
        try:
            key = tmp_path / "out/run/1/job.key"
            deadline = time.monotonic() + 60
            while not key.exists():
                assert training.poll() is None, (tmp_path / "train").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            joined = second.run(TIANJI, "join", address, "--key", key, env=environment, timeout=90)
            assert joined.returncode == 0, joined.stderr + (tmp_path / "train").read_text()
            assert training.wait(60) == 0, (tmp_path / "train").read_text()
        finally:
            training.kill()
            training.wait()
    summary = finished_summary(tmp_path / "out/run/1")
    root, learner, actor = hosts_of(summary).values()
    assert actor not in {root, learner}
    fragments = OBSERVATION_BYTES * summary["received"]
    assert second.sent_bytes > fragments
    assert first.received_bytes > fragments
