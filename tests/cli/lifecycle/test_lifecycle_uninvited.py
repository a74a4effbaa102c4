"""Strangers at the control channel."""

import json
import os
import signal
import socket
import time
from typing import Any

import zmq

ENDLESS = {"experiment": {"stop": {"env_steps": 10**9}}}


def test_strangers_at_the_control_channel_disturb_nothing_and_are_counted(workplace: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host, port = free.getsockname()
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
        report = {"kind": "report", "rank": 99, "incarnation": 0, "roles": [], "busy_s": [], "running_s": 0}
        for words in (b"stop", b'{"kind":"stop"}', b"\xff\xfe", b"[" * 5000, json.dumps(report).encode()):
            for client in (keyless, unknown, insider):
                client.send(words, zmq.NOBLOCK) if client.poll(0, zmq.POLLOUT) else client.send(words)
        time.sleep(1.0)
        for client in (keyless, unknown, insider):
            client.close()

    run.train_until(run.env_steps + 2000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["rejected_frames"] >= 6  # The insider's five, and the unknown key.
    assert summary["lost"] == 0
