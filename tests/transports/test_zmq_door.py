"""Descriptors that strangers take of a process that listens with ZMQ; members get in all the same."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from tianji_cli.wire.address import JobKey
from tianji_cli.wire.control import ControlServer
from tianji_transports.core import FULL, EngineOptions
from tianji_transports.testing import verbs
from tianji_transports.wiring import Channel, Slot, Wiring
from tianji_transports.zmq.door import SPARE, Curve, Door, Password, all_shut
from tianji_transports.zmq.transport import ZmqTransport

Socket = zmq.Socket[bytes]

LIMIT = 1024
WIRING = Wiring("door", (Channel("f", 0, (1,), 1000),), (Slot("p", 0, (1,), 1000),))
IDLERS = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
ports, number = [int(word) for word in sys.argv[2:]], int(sys.argv[1])
idle = [socket.create_connection(("127.0.0.1", ports[i % len(ports)]), 20) for i in range(number)]
print("open", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def idle_strangers(number: int, *ports: int) -> Iterator["subprocess.Popen[str]"]:
    """Another process that opens connections, and says nothing over them."""
    command = [sys.executable, "-c", IDLERS, str(number), *map(str, ports)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as strangers:
        yield strangers
        strangers.kill()


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """As many as most systems grant a process that asks for no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def options(keys: bool) -> EngineOptions:
    if not keys:
        return EngineOptions()
    public, secret = zmq.curve_keypair()
    return EngineOptions(public_key=public.decode(), secret_key=secret.decode())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def send(sender: ZmqTransport, receiver: ZmqTransport) -> None:
    """Send a message all the way."""
    while (loan := sender.loan(0, "f", 1)) is FULL:
        sender.wait(0.01)
        receiver.wait(0.01)
    sender.push(loan)
    verbs.claim(receiver, "f").release()


@pytest.mark.usefixtures("few_descriptors")
@pytest.mark.parametrize("keys", [False, True], ids=["inside a host", "between hosts"])
def test_five_thousand_idle_strangers_leave_descriptors_for_members_and_files(keys: bool) -> None:
    how = options(keys)
    with ZmqTransport(WIRING, 0, options=how) as receiver, ZmqTransport(WIRING, 1, options=how) as sender:
        sender.connect({0: receiver.address})
        send(sender, receiver)
        ports = [int(number) for number in receiver.address.rpartition(":")[2].split(",")]
        before = descriptors()
        with idle_strangers(5000, *ports):
            # Each is accepted sooner or later, and refused when it is put out.
            while receiver.counters.rejected < 4500:
                receiver.wait(0.01)
                send(sender, receiver)
                assert sender.counters.rejected == 0
            verbs.until(receiver, lambda: descriptors() < before + LIMIT // 2 or None)
            with contextlib.ExitStack() as files:
                for _ in range(300):
                    files.enter_context(tempfile.TemporaryFile())
                with ZmqTransport(WIRING, 1, 1, options=how) as successor:
                    successor.connect({0: receiver.address})
                    send(successor, receiver)


@pytest.mark.usefixtures("few_descriptors")
def test_a_door_shuts_though_strangers_crowd_another_one_of_the_process() -> None:
    """Descriptors that they hold there are missing for a checkpoint here."""
    with contextlib.ExitStack() as stack:
        servers = [ControlServer(JobKey.new()) for _ in range(3)]
        for server in servers:
            stack.callback(server.close)
        ports = [int(server.address.address.rpartition(":")[2]) for server in servers]
        strangers = stack.enter_context(idle_strangers(5000, *ports))
        assert strangers.stdout is not None
        assert strangers.stdout.readline() == "open\n"
        with servers[0].undisturbed():
            for _ in range(SPARE):
                stack.enter_context(tempfile.TemporaryFile())


def test_who_shuts_all_doors_for_a_moment_opens_none_that_was_shut_before() -> None:
    with contextlib.closing(ControlServer(JobKey.new())) as server:
        host, _, port = server.address.address.removeprefix("tcp://").rpartition(":")
        with all_shut():
            with server.undisturbed():
                pass
            with pytest.raises(TimeoutError):
                socket.create_connection((host, int(port)), timeout=0.3)
        socket.create_connection((host, int(port)), timeout=10.0).close()


def test_a_thousand_members_at_once_are_all_let_in() -> None:
    server = ControlServer(JobKey.new())
    server.ranks = 1
    context = zmq.Context()
    context.max_sockets = 2000
    key = server.address.key
    try:
        members = []
        for number in range(1000):
            member = context.socket(zmq.DEALER)
            Curve(key.public, key.secret).show(member)
            member.connect(server.address.address)
            member.send(b'{"kind": "finished", "rank": 0, "reason": "%d"}' % number)
            members.append(member)
        heard: set[str] = set()
        while len(heard) < len(members):
            server.wait(1.0)
            heard |= {message.reason for message in server.receive()}  # type: ignore[union-attr]
        assert server.rejected == 0
    finally:
        context.destroy(linger=0)
        server.close()


def test_a_closed_endpoint_has_no_door_to_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    with ZmqTransport(WIRING, 0) as endpoint:
        endpoint.wait(0.0)
        with endpoint.undisturbed():
            pass
    touched: list[int] = []
    monkeypatch.setattr("tianji_transports.zmq.door.keep_out", touched.append)
    with endpoint.undisturbed():
        assert touched == [], "these numbers may be another file's by now"


def make_curve() -> Curve:
    public, secret = zmq.curve_keypair()
    return Curve(public.decode(), secret.decode())


@pytest.mark.parametrize("kind", [zmq.ROUTER, zmq.PUB], ids=["ROUTER", "PUB"])
@pytest.mark.parametrize("key", [make_curve(), Password("a word")], ids=["curve", "password"])
def test_strangers_are_put_out_at_every_stage_and_members_never(
    monkeypatch: pytest.MonkeyPatch, kind: int, key: Curve | Password
) -> None:
    context, theirs, opened = zmq.Context(), zmq.Context(), []
    door, listening = Door(context, key), context.socket(kind)
    door.guard(listening)
    port = listening.bind_to_random_port("tcp://127.0.0.1")

    def client(shown: Curve | Password | None) -> Socket:
        """Connect; gives what tells of it."""
        made = theirs.socket(zmq.SUB if kind == zmq.PUB else zmq.DEALER)
        if shown is not None:
            shown.show(made)
        monitor = made.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        made.connect(f"tcp://127.0.0.1:{port}")
        opened.extend((made, monitor))
        return monitor

    def news(monitor: Socket) -> int:
        while not monitor.poll(5):
            door.look()
        event: int = recv_monitor_message(monitor)["event"]
        return event

    try:
        member = client(key)
        assert news(member) == zmq.EVENT_HANDSHAKE_SUCCEEDED
        monkeypatch.setattr(door, "_allowed", 0)
        zmtp = b"\xff" + bytes(8) + b"\x7f\x03\x00"
        mechanism = b"CURVE" if isinstance(key, Curve) else b"PLAIN"
        for words in (b"", zmtp, zmtp + mechanism.ljust(20, b"\0") + bytes(32)):
            with socket.create_connection(("127.0.0.1", port), 20) as stranger:
                stranger.sendall(words)
                stranger.settimeout(0.01)
                while not ended(stranger):
                    door.look()
        for shown in (None, make_curve(), Password("another word")):
            assert news(client(shown)) == zmq.EVENT_DISCONNECTED
        door.look()
        assert not member.poll(100), "it is still there"
    finally:
        for left in (*opened, *door.sockets, listening):
            left.close(linger=0)
        theirs.term()
        context.term()


def ended(stranger: socket.socket) -> bool:
    try:
        return stranger.recv(1000) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
