"""Strangers at the control channel, and at the ports of the transport."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import psutil
import pytest
import zmq
from cli.lifecycle.conftest import ENDLESS
from cli.sessions import in_session
from ports import free_ports


def test_strangers_at_the_control_channel_disturb_nothing_and_are_counted(workplace: Any) -> None:
    host, port = "127.0.0.1", free_ports(1)[0]
    address = f"tcp://{host}:{port}"
    run = workplace.train(ENDLESS, options=("--quiet", "--listen", address))
    run.train_until(1000)
    key_file = run.path / "job.key"
    assert key_file.stat().st_mode & 0o777 == 0o600
    key = json.loads(key_file.read_text())

    for garbage in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(4096), b"\xff" + b"\0" * 63):
        with socket.create_connection((host, port), timeout=5) as stranger:
            stranger.sendall(garbage)
    with zmq.Context() as context:

        def dealer(**keys: bytes) -> zmq.Socket[bytes]:
            client = context.socket(zmq.DEALER)
            client.linger = 0
            for name, value in keys.items():
                setattr(client, name, value)
            client.connect(address)
            return client

        server = key["public"].encode()
        public, secret = zmq.curve_keypair()
        keyless = dealer()
        unknown = dealer(curve_serverkey=server, curve_publickey=public, curve_secretkey=secret)
        insider = dealer(
            curve_serverkey=server,
            curve_publickey=key["public"].encode(),
            curve_secretkey=key["secret"].encode(),
        )
        report = {"kind": "report", "incarnation": 0, "roles": [], "busy_s": [], "running_s": 0}
        reports = (json.dumps(report | {"rank": rank}).encode() for rank in (1, 99))
        for words in (b"stop", b'{"kind":"stop"}', b"\xff\xfe", b"[" * 5000, *reports):
            for client in (keyless, unknown, insider):
                client.send(words, zmq.NOBLOCK) if client.poll(0, zmq.POLLOUT) else client.send(words)
        time.sleep(1.0)
        for client in (keyless, unknown, insider):
            client.close()

    run.train_until(run.env_steps + 2000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["rejected_frames"] >= 7  # The insider's six, and the unknown key.
    assert summary["lost"] == 0


IDLERS = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
ports = [int(word) for word in sys.argv[1:]]
idle = [socket.create_connection(("127.0.0.1", ports[i % len(ports)]), 20) for i in range(1400)]
print("open", flush=True)
sys.stdin.read()
"""


def ports_of(pids: Iterable[int]) -> list[int]:
    """The TCP ports that processes listen on."""
    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            sockets = psutil.Process(pid).net_connections("tcp4")
            found |= {one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN}
    return sorted(found)


@contextlib.contextmanager
def idle_strangers(ports: list[int]) -> Iterator[None]:
    """More connections than a process may have at each of four ports; they say nothing."""
    command = [sys.executable, "-c", IDLERS, *map(str, ports)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as strangers:
        assert strangers.stdout is not None
        assert strangers.stdout.readline() == b"open\n"
        yield
        strangers.kill()


@pytest.mark.parametrize("transport", ["zmq", pytest.param("shm", marks=pytest.mark.soak)])
def test_a_job_with_few_descriptors_outlives_more_idle_strangers_than_that(
    workplace: Any, transport: str
) -> None:
    changes = {"experiment": {"eval_episodes": 2, "checkpoint_every_s": 1.0}}
    workplace.begins_cold = True  # Its limits are set before it looks at them.
    run = workplace.train(ENDLESS, changes, {"distribution": {"transport": transport}})
    resource.prlimit(run.command.pid, resource.RLIMIT_NOFILE, (128, 256))
    run.train_until(1000)
    for pid in (run.command.pid, run.command.pid_of("actor"), run.command.pid_of("buffer")):
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (256, 256), "the soft limit was raised"
    ports = ports_of(in_session(run.command.pid))
    assert len(ports) == (4 if transport == "zmq" else 1)
    with idle_strangers(ports):
        saved = run.saved_env_steps
        workplace.until(lambda: run.saved_env_steps > saved, "a checkpoint is saved")
        run.train_until(run.env_steps + 2000)
        run.command.kill("actor")
        run.train_until(run.env_steps + 2000)
        os.kill(run.command.pid, signal.SIGTERM)
        summary = run.finish(130)
    assert summary["rejected_frames"] > 800


def test_the_root_of_several_groups_outlives_them_too(workplace: Any) -> None:
    changes = {"experiment": {"eval_episodes": 2}, "distribution": {"transport": "zmq", "groups": 2}}
    workplace.begins_cold = True  # Its limits are set before it looks at them.
    run = workplace.train(ENDLESS, changes)
    resource.prlimit(run.command.pid, resource.RLIMIT_NOFILE, (128, 256))
    run.train_until(1000)
    ports = ports_of([run.command.pid])
    assert len(ports) == 3, "the control channel's, and two for averaging"
    with idle_strangers(ports):
        run.train_until(run.env_steps + 5000)
        os.kill(run.command.pid, signal.SIGTERM)
        summary = run.finish(130)
    assert summary["rejected_frames"] > 256, "more than it has descriptors"
    assert summary["status"] == "stopped"
