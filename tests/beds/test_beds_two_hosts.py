"""Training across two hosts with a wire between them: samples cross it, and the user's own files do."""

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from beds.namespaces import Wire
from beds.training import TIANJI, finished_summary, hosts_of, write_config

OBSERVATION_BYTES = 16
"""CartPole's four float32: the least that a sample is."""
EXAMPLES = Path(__file__).parents[2] / "docs/examples"
ENDLESS = ("--set", "experiment.stop.env_steps=1000000000")
RELABELLER = """
from tianji_cli.roles.user_role import UserRole

class Relabeller(UserRole):
    restartable, held = True, False
    def halve(self, fields):
        fields["reward"] *= 0.5
    def turn(self):
        if not self.held and self.probe("fragments") is None:
            return False
        self.held = not self.forward("fragments", self.halve)
        return not self.held
    def stop(self):
        self.forward_rest("fragments", self.halve)
"""
Process = subprocess.Popen[bytes]


@contextmanager
def training_on_both(
    wire: Wire,
    config: Path,
    place: Path,
    *options: str,
    environment: dict[str, str] | None = None,
    joined_by: Sequence[str | Path] = (),
) -> Iterator[tuple[Path, Process, Process]]:
    """Begin to train, and have the second host join by a command in front of its own.

    Gives the run and both commands, which are ended when the test leaves them behind.
    """
    first, second = wire.hosts
    address = f"tcp://{first.address}:5555"
    train = first.command(TIANJI, "train", config, "--out", place / "out", "--listen", address, "--quiet")
    run = place / "out/run/1"
    join = second.command(*joined_by, TIANJI, "join", address, "--key", run / "job.key")
    surroundings = os.environ | (environment or {})
    with (place / "train").open("w+") as output, ExitStack() as begun:

        def begin(command: Sequence[str]) -> Process:
            process = subprocess.Popen(command, env=surroundings, cwd=place, stdout=output, stderr=output)
            begun.callback(process.wait)
            begun.callback(process.kill)
            return process

        training = begin([*train, *options])
        wait_for((run / "job.key").exists, training)
        yield run, training, begin(join)


def train_on_both(
    wire: Wire, config: Path, place: Path, environment: dict[str, str], joined_by: Sequence[str | Path] = ()
) -> Path:
    """Train to the end on both hosts; gives the run."""
    both = training_on_both(wire, config, place, environment=environment, joined_by=joined_by)
    with both as (run, training, joined):
        for process in (joined, training):
            assert process.wait(200) == 0, (place / "train").read_text()
    return run


def last_row(run: Path) -> dict[str, Any]:
    """Read the newest whole row of a run's metrics; an empty one before there is any."""
    rows = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
    return json.loads(rows[-2]) if len(rows) > 1 else {}  # The last one may be half written.


def wait_for(condition: Callable[[], bool], training: Process, limit_s: float = 150) -> None:
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
    with training_on_both(wire, config, tmp_path, *ENDLESS) as (run, training, joined):
        wait_for(
            lambda: min((of["env_steps"] for of in last_row(run).get("by_group", ())), default=0) > 5000,
            training,
        )
        wire.cut(*((first, second) if lost == "to the second host" else (second, first)))
        wait_for(lambda: "group 1 is lost" in (run / "logs/root-0.log").read_text(), training)
        training.send_signal(signal.SIGINT)
        assert training.wait(60) == 130, (tmp_path / "train").read_text()
        assert joined.wait(120) == 1
    summary = json.loads((run / "summary.json").read_text())
    assert summary["received"] == summary["env_steps"] > 10_000
    accounts = ("received", "in_flight", "lost", "dropped")
    assert summary["produced"] == sum(summary[account] for account in accounts), summary
    assert len(summary["last_report_only"]) == 2, "of what the lost host made the last report is known"


def with_relabellers(place: Path) -> Path:
    """Write a config with a relabeller on each host, between the actor there and the buffer on the first."""
    config = write_config(place, "zmq", actors=2, hosts=2)
    (place / "relabeller.py").write_text(RELABELLER)
    relabel = {"type": "relabeller:Relabeller", "num": 2}
    fragments = {"path": ["actor", "relabel", "buffer"]}
    tables = {"roles": {"relabel": relabel}, "graph": {"channels": {"fragments": fragments}}}
    config.write_text(config.read_text() + tomli_w.dumps(tables))
    return config


def hosts_of_relabellers(summary: dict[str, Any]) -> dict[int, str]:
    """Say on which host the process of each relabeller was, by rank."""
    return {role["rank"]: role["host"] for role in summary["roles"] if role["role"] == "relabel"}


def test_a_relabeller_on_the_second_host_sends_the_fragments_of_its_actor_over_the_wire(
    wire: Wire, tmp_path: Path
) -> None:
    run = train_on_both(wire, with_relabellers(tmp_path), tmp_path, {})
    summary = finished_summary(run)
    on = hosts_of(summary)
    (_, near), (distant, far) = hosts_of_relabellers(summary).items()
    assert (near, near != far) == (on[0], True)
    sent = summary["extra"][f"relabel-{distant}"]["channels"]["fragments"]["sent"]
    assert wire.hosts[1].sent_bytes > sent * 32 * 8 * OBSERVATION_BYTES > 0


def test_a_relabeller_that_is_killed_on_the_second_host_comes_again_there_with_exact_books(
    wire: Wire, tmp_path: Path
) -> None:
    config, (_, second) = with_relabellers(tmp_path), wire.hosts
    with training_on_both(wire, config, tmp_path, *ENDLESS) as (run, training, joined):

        def trains_until(env_steps: int) -> None:
            wait_for(lambda: last_row(run).get("env_steps", 0) > env_steps, training)

        trains_until(5000)
        (relabeller,) = second.pids("tianji: relabel 1 (group 0)")
        os.kill(relabeller, signal.SIGKILL)
        wait_for(lambda: "restarting it" in (run / "logs/root-0.log").read_text(), training)
        trains_until(last_row(run)["env_steps"] + 10_000)
        assert second.pids("tianji: relabel 1 (group 0)") not in ([], [relabeller])
        training.send_signal(signal.SIGINT)
        assert training.wait(60) == 130, (tmp_path / "train").read_text()
        assert joined.wait(60) == 0, (tmp_path / "train").read_text()
    summary = json.loads((run / "summary.json").read_text())
    accounts = ("received", "in_flight", "lost", "dropped")
    assert summary["produced"] == sum(summary[account] for account in accounts), summary
    assert (summary["rejected_frames"], summary["last_report_only"]) == (0, [])
    assert [role["restarts"] for role in summary["roles"] if role["role"] == "relabel"] == [0, 1]
