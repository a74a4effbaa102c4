"""Training across two hosts with a wire between them: samples cross it, and the user's own files do."""

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
    with (place / "train").open("w+") as output:
        training = subprocess.Popen(train, env=environment, cwd=place, stdout=output, stderr=output)
        try:
            run = place / "out/run/1"
            deadline = time.monotonic() + 60
            while not (run / "job.key").exists():
                assert training.poll() is None, (place / "train").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            join = (*joined_by, TIANJI, "join", address, "--key", run / "job.key")
            joined = second.run(*join, env=environment, timeout=200)
            assert joined.returncode == 0, joined.stderr + (place / "train").read_text()
            assert training.wait(200) == 0, (place / "train").read_text()
        finally:
            training.kill()
            training.wait()
    return run


def wait_for(condition: Callable[[], bool], training: subprocess.Popen[bytes], limit_s: float = 150) -> None:
    """Wait for something that a training does: a minute passes until a silent host is given up."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert training.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


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


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("lost", ["to the second host", "from it"])
def test_a_host_that_is_lost_in_one_direction_leaves_exact_books(
    wire: Wire, tmp_path: Path, lost: str
) -> None:
    first, second = wire.hosts
    config = write_config(tmp_path, "zmq", actors=1, hosts=2)
    config.write_text(config.read_text().replace("hosts = 2", "hosts = 2\ngroups = 2"))
    address = f"tcp://{first.address}:5555"
    endless = ("--set", "experiment.stop.env_steps=1000000000")
    train = first.command(TIANJI, "train", config, "--out", tmp_path / "out", "--listen", address, *endless)
    run = tmp_path / "out/run/1"

    def last_row() -> dict[str, Any]:
        rows = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
        return json.loads(rows[-2]) if len(rows) > 1 else {}  # The last one may be half written.

    with (tmp_path / "train").open("w+") as output:
        begun = [subprocess.Popen(train, cwd=tmp_path, stdout=output, stderr=output)]
        (training,) = begun
        try:
            wait_for((run / "job.key").exists, training)
            join = second.command(TIANJI, "join", address, "--key", run / "job.key")
            begun.append(subprocess.Popen(join, cwd=tmp_path, stdout=output, stderr=output))
            wait_for(
                lambda: min((of["env_steps"] for of in last_row().get("by_group", ())), default=0) > 5000,
                training,
            )
            wire.cut(*((first, second) if lost == "to the second host" else (second, first)))
            wait_for(lambda: "group 1 is lost" in (run / "logs/root-0.log").read_text(), training)
            training.send_signal(signal.SIGINT)
            assert training.wait(60) == 130, (tmp_path / "train").read_text()
            assert begun[1].wait(120) == 1
        finally:
            for process in begun:
                process.kill()
                process.wait()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["received"] == summary["env_steps"] > 10_000
    accounts = ("received", "in_flight", "lost", "dropped")
    assert summary["produced"] == sum(summary[account] for account in accounts), summary
    assert len(summary["last_report_only"]) == 2, "of what the lost host made the last report is known"
