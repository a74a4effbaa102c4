"""The namespace bed itself: two hosts that see only each other, over a link with a limit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from beds.namespaces import NAMED, Wire

TESTS = Path(__file__).parents[1]

RECEIVES = """
import socket
server = socket.create_server(("10.77.0.2", 7700))
print("listening", flush=True)
with server.accept()[0] as peer:
    while peer.recv(1 << 20): pass
"""

SENDS = """
import socket
with socket.create_connection(("10.77.0.2", 7700)) as peer:
    peer.sendall(bytes(10_000_000))
"""

HOLDS_A_WIRE = """
import time
from beds.namespaces import Wire
with Wire() as wire:
    print(wire.hosts[0].namespace, flush=True)
    time.sleep(600)
"""


def test_bytes_between_the_hosts_cross_the_wire(wire: Wire) -> None:
    first, second = wire.hosts
    receiver = second.command(sys.executable, "-c", RECEIVES)
    with subprocess.Popen(receiver, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        sent = first.run(sys.executable, "-c", SENDS, timeout=60)
        assert sent.returncode == 0, sent.stderr
    assert 10_000_000 < first.sent_bytes < 11_000_000
    assert 10_000_000 < second.received_bytes < 11_000_000


def test_the_wire_is_limited_to_one_gigabit(wire: Wire) -> None:
    for host in wire.hosts:
        shown = host.run("tc", "qdisc", "show", "dev", "eth0", timeout=60).stdout
        assert "tbf" in shown
        assert "rate 1Gbit" in shown


def test_hosts_reach_nobody_else(wire: Wire) -> None:
    routes = wire.hosts[0].run("ip", "route", timeout=60).stdout.splitlines()
    assert [route.split()[0] for route in routes] == ["10.77.0.0/24"]


def test_two_wires_do_not_meet(wire: Wire) -> None:
    with Wire() as other:
        assert wire.hosts[0].run("true", timeout=60).returncode == 0
        assert not {host.namespace for host in wire.hosts} & {host.namespace for host in other.hosts}
        assert other.hosts[0].received_bytes < 10_000


def test_namespaces_of_a_killed_maker_are_removed_by_the_next(wire: Wire) -> None:
    command = [sys.executable, "-c", HOLDS_A_WIRE]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as maker:
        assert maker.stdout is not None
        left = NAMED / maker.stdout.readline().strip()
        assert left.exists()
        maker.send_signal(signal.SIGKILL)
    with Wire():
        assert not left.exists()
    assert all((NAMED / host.namespace).exists() for host in wire.hosts)
