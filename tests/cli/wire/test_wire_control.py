import errno
import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import zmq

from tianji_cli.wire.address import JobKey, RootAddress, parse_address
from tianji_cli.wire.control import MOST_AT_ONCE, ControlClient, ControlServer
from tianji_cli.wire.messages import Addresses, Arrive, Finished, FromRoot, Ping, Register, Stop, ToRoot

Hear = Callable[..., list[ToRoot]]


@pytest.fixture
def server() -> Iterator[ControlServer]:
    opened = ControlServer(JobKey.new())
    opened.ranks = 4
    yield opened
    opened.close()


@pytest.fixture
def client(server: ControlServer) -> Iterator[ControlClient]:
    with ControlClient(server.address) as opened:
        yield opened


@pytest.fixture
def strangers(server: ControlServer) -> Iterator[Callable[[JobKey | None], "zmq.Socket[bytes]"]]:
    """Open bare sockets to the server, with any keys or none."""
    context, sockets = zmq.Context(), []

    def open_stranger(key: JobKey | None, server_key: str = "", events: int = 0) -> "zmq.Socket[bytes]":
        socket = context.socket(zmq.DEALER)
        sockets.append(socket)
        if events:  # Before it connects: what fails at once does not fail again.
            socket.get_monitor_socket(events)
        if key is not None:
            socket.curve_serverkey = (server_key or key.public).encode()
            socket.curve_publickey = key.public.encode()
            socket.curve_secretkey = key.secret.encode()
        socket.connect(server.address.address)
        return socket

    yield open_stranger
    for socket in sockets:
        socket.close(linger=0)
    context.term()


@pytest.fixture
def hear(server: ControlServer) -> Hear:
    """Receive until ``enough`` says so."""

    def receive(enough: Callable[[list[ToRoot]], bool] = bool) -> list[ToRoot]:
        heard: list[ToRoot] = []
        while not enough(heard):
            server.wait(1.0)
            heard += server.receive()
        return heard

    return receive


def register(rank: int) -> Register:
    return Register(rank=rank, incarnation=0, pid=1, address="tcp://x")


def received(client: ControlClient, number: int = 1) -> list[FromRoot]:
    heard: list[FromRoot] = []
    while len(heard) < number:
        client.wait(1.0)
        heard += client.receive()
    return heard


def test_a_worker_registers_and_is_addressed_by_its_rank(
    server: ControlServer, client: ControlClient, hear: Hear
) -> None:
    with ControlClient(server.address) as other:
        client.send(register(1))
        other.send(register(2))
        heard = hear(lambda messages: len(messages) == 2)
        assert sorted(message.rank for message in heard if isinstance(message, Register)) == [1, 2]
        server.send(1, Stop())
        server.send(2, Addresses(addresses={1: "a", 2: "b"}))
        assert received(client) == [Stop()]
        assert received(other) == [Addresses(addresses={1: "a", 2: "b"})]


def test_messages_of_a_worker_arrive_in_order(client: ControlClient, hear: Hear) -> None:
    sent = [register(1), *(Finished(rank=1, reason=str(i)) for i in range(200))]
    for message in sent:
        client.send(message)
    assert hear(lambda messages: len(messages) == len(sent)) == sent


def test_nothing_is_sent_to_a_rank_that_has_not_registered(server: ControlServer) -> None:
    server.send(7, Stop())


def test_a_restarted_worker_takes_its_rank_over(
    server: ControlServer, client: ControlClient, hear: Hear
) -> None:
    client.send(register(1))
    hear()
    with ControlClient(server.address) as successor:
        successor.send(register(1))
        hear()
        server.send(1, Stop())
        assert received(successor) == [Stop()]
    assert client.receive() == []


def test_a_node_is_addressed_by_its_name(server: ControlServer, client: ControlClient, hear: Hear) -> None:
    arrival = Arrive(node="host-1", host="b", cores=[0], interface="127.0.0.1", pid=1, version="1")
    client.send(arrival)
    assert hear() == [arrival]
    assert server.send("host-1", Ping())
    assert received(client) == [Ping()]


def test_a_peer_whose_connection_is_gone_cannot_be_sent_to(server: ControlServer, hear: Hear) -> None:
    assert not server.send(1, Ping()), "it has never been there"
    with ControlClient(server.address) as worker:
        worker.send(register(1))
        hear()
        assert server.send(1, Ping())
    deadline = time.monotonic() + 10
    while server.send(1, Ping()):
        assert time.monotonic() < deadline, "it has left"
        server.wait(0.01)


def test_a_watched_client_learns_that_the_root_is_gone() -> None:
    server = ControlServer(JobKey.new())
    server.ranks = 4
    with ControlClient(server.address, watched=True) as client:
        client.send(register(1))
        while not server.receive():
            server.wait(1.0)
        assert not client.severed
        server.close()
        while not client.severed:
            client.wait(1.0)
        assert not client.turned_away


def test_a_watched_client_learns_that_its_key_is_not_the_job_s(server: ControlServer) -> None:
    for key in (JobKey.new(), replace(JobKey.new(), public=server.address.key.public)):
        with ControlClient(RootAddress(server.address.address, key), watched=True) as client:
            while not client.turned_away:
                server.wait(0.01)
                assert server.receive() == []
            assert not client.severed


def test_one_look_takes_no_more_than_the_root_has_time_for(
    server: ControlServer, client: ControlClient
) -> None:
    for i in range(3 * MOST_AT_ONCE):
        client.send(Finished(rank=1, reason=str(i)))
    heard: list[ToRoot] = []
    while len(heard) < 3 * MOST_AT_ONCE:
        server.wait(1.0)
        some = server.receive()
        assert len(some) <= MOST_AT_ONCE
        heard += some
    assert [message.reason for message in heard if isinstance(message, Finished)] == [
        str(i) for i in range(3 * MOST_AT_ONCE)
    ]


def test_a_port_in_use_is_an_error_that_names_it(server: ControlServer) -> None:
    host, port = parse_address(server.address.address)
    with pytest.raises(OSError, match=f"cannot listen on tcp://{host}:{port}"):
        ControlServer(JobKey.new(), host, port)


def test_a_server_that_lacks_descriptors_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(_door: object, _listening: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    monkeypatch.setattr("tianji_cli.wire.control.Door.guard", no_descriptor)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=r"cannot listen on .*: Too many open files") as lacking:
        ControlServer(JobKey.new())
    assert lacking.value.errno == errno.EMFILE
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_client_with_another_key_never_gets_through_and_is_counted(
    server: ControlServer, client: ControlClient, strangers: Callable[..., "zmq.Socket[bytes]"], hear: Hear
) -> None:
    stranger = strangers(JobKey.new(), server.address.key.public)
    stranger.send(b'{"kind": "terminate", "rank": 0}')
    hear(lambda _: server.rejected > 0)
    assert "without the job's key" in server.last_rejection
    client.send(register(1))
    assert hear() == [register(1)]
    assert not stranger.poll(0)


@pytest.mark.parametrize("disguise", [lambda _: JobKey.new(), lambda _: None], ids=["wrong key", "no key"])
def test_a_client_that_does_not_speak_the_job_s_curve_never_gets_through(
    server: ControlServer,
    client: ControlClient,
    strangers: Callable[..., "zmq.Socket[bytes]"],
    hear: Hear,
    disguise: Callable[[JobKey], JobKey | None],
) -> None:
    events = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
    stranger = strangers(disguise(server.address.key), events=events)
    with stranger.get_monitor_socket() as failures:
        stranger.send(b'{"kind": "terminate", "rank": 0}')
        assert failures.poll(20_000), "its handshake failed"
        stranger.disable_monitor()
    client.send(register(1))
    assert hear() == [register(1)]


def test_malformed_messages_are_counted_and_dropped(
    server: ControlServer, client: ControlClient, strangers: Callable[..., "zmq.Socket[bytes]"], hear: Hear
) -> None:
    insider = strangers(server.address.key)
    for garbage in (b"", b"{not json", b'{"kind": "terminate", "rank": 4}', b"\x00\xff" * 50):
        insider.send(garbage)
    insider.send_multipart([b"two", b"frames"])
    hear(lambda _: server.rejected == 5)
    assert "malformed" in server.last_rejection
    client.send(register(1))
    assert hear() == [register(1)]
    assert server.rejected == 5


def test_one_who_sleeps_at_other_descriptors_too_misses_no_message(
    server: ControlServer, client: ControlClient, hear: Hear
) -> None:
    client.send(register(1))
    hear()
    assert not server.is_ready
    for rank in range(3):
        client.send(register(rank))
        while not server.is_ready:
            assert select.select(server.descriptors, [], [], 20)[0], "nothing woke the sleeper"
        assert server.receive() == [register(rank)]
