"""Training across two hosts with a wire between them: samples cross it, and the user's own files do."""

import hashlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import tomli_w

from beds.namespaces import Wire
from beds.training import TIANJI, finished_summary, hosts_of, write_config

OBSERVATION_BYTES = 16
"""CartPole's four float32: the least that a sample is."""
EXAMPLES = Path(__file__).parents[2] / "docs/examples"


def train_on_both(
    wire: Wire, config: Path, place: Path, environment: dict[str, str], joined_by: Sequence[str | Path] = ()
) -> Path:
    """Train to the end, and have the second host join by a command in front of its own; gives the run."""
    first, second = wire.hosts
    address = f"tcp://{first.address}:5555"
    train = first.command(TIANJI, "train", config, "--out", place / "out", "--listen", address, "--quiet")
    environment = os.environ | environment
    with (place / "train").open("w+") as said:
        training = subprocess.Popen(train, env=environment, cwd=place, stdout=said, stderr=said)
        try:
            run = place / "out/run/1"
            deadline = time.monotonic() + 60
            while not (run / "job.key").exists():
                assert training.poll() is None, (place / "train").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            join = (*joined_by, TIANJI, "join", address, "--key", run / "job.key")
            joined = second.run(*join, env=environment, timeout=90)
            assert joined.returncode == 0, joined.stderr + (place / "train").read_text()
            assert training.wait(60) == 0, (place / "train").read_text()
        finally:
            training.kill()
            training.wait()
    return run


@pytest.mark.parametrize("transport", ["ucx", pytest.param("zmq", marks=pytest.mark.soak)])
def test_samples_of_a_distant_actor_cross_the_wire(wire: Wire, tmp_path: Path, transport: str) -> None:
    first, second = wire.hosts
    config = write_config(tmp_path, transport, actors=1, hosts=2)
    # UCX takes both for one host and would go through shared memory.
    run = train_on_both(wire, config, tmp_path, {"UCX_TLS": "tcp,self"})
    summary = finished_summary(run)
    root, learner, actor = hosts_of(summary).values()
    assert actor not in {root, learner}
    fragments = OBSERVATION_BYTES * summary["received"]
    assert second.sent_bytes > fragments
    assert first.received_bytes > fragments


MEETING = """
import hashlib, os
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent

def parallel_env():
    from crossing.points import inner  # Within a function.
    rules = import_module("rules")
    tables = [HERE / "table.bin", HERE / "maps/a.map", Path(inner.__file__).with_name("b.map")]
    digests = [hashlib.sha256(table.read_bytes()).hexdigest() for table in tables]
    with open(os.environ["WITNESS"], "a") as witness:
        print(HERE, *digests, file=witness)
    return rules.Meeting()
"""


def test_the_user_s_modules_and_data_files_reach_a_host_that_has_none_of_them(
    wire: Wire, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    (mine / "maps").mkdir(parents=True)
    (mine / "crossing/points").mkdir(parents=True)
    (mine / "meeting.py").write_text(MEETING)
    (mine / "rules.py").write_text((EXAMPLES / "meeting.py").read_text())
    (mine / "crossing/__init__.py").touch()
    (mine / "crossing/points/__init__.py").touch()
    (mine / "crossing/points/inner.py").touch()
    data = {"table.bin": os.urandom(3_000_000), "maps/a.map": b"\r\n\0", "crossing/points/b.map": b""}
    for name, content in data.items():
        (mine / name).write_bytes(content)
    config = mine / "run.toml"
    tables = {
        "experiment": {
            "name": "run",
            "stop": {"env_steps": 20_000},
            "eval_episodes": 0,
            "plots": False,
            "extensions": ["."],
            "files": ["table.bin", "maps", "crossing/points/b.map"],
        },
        "environment": {"type": "pettingzoo", "id": "meeting", "num_envs": 8},
        "agent": {"type": "mappo"},
        "training": {"rollout_steps": 512, "minibatch_size": 128},
        "distribution": {"transport": "zmq", "hosts": 2, "pin_cores": False, "actor": {"send_size": 32}},
    }
    config.write_text(tomli_w.dumps(tables))
    witness = tmp_path / "witness"
    # Whatever runs on the second host sees an empty directory in the place of the user's.
    hidden = ("sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', mine)
    finished_summary(train_on_both(wire, config, tmp_path, {"WITNESS": str(witness)}, hidden))
    expected = [hashlib.sha256(content).hexdigest() for content in data.values()]
    places = set()
    for line in witness.read_text().splitlines():
        place, *digests = line.split()
        assert digests == expected
        places.add(Path(place))
    (sent,) = places - {mine}
    assert mine in places, "the learner's process reads the user's own"
    assert sent.name == "extensions"
    assert not sent.exists(), "the other host keeps nothing"
