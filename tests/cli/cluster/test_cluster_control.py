import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from tianji_cli.cluster.control import ControlClient, ControlKey, ControlServer
from tianji_cli.cluster.messages import Addresses, Finished, FromWorker, Register, Stop, ToWorker

Hear = Callable[..., list[FromWorker]]


@pytest.fixture
def server() -> Iterator[ControlServer]:
    opened = ControlServer(ranks=4)
    yield opened
    opened.close()


@pytest.fixture
def client(server: ControlServer) -> Iterator[ControlClient]:
    with ControlClient(server.key) as opened:
        yield opened


@pytest.fixture
def strangers(server: ControlServer) -> Iterator[Callable[[ControlKey | None], "zmq.Socket[bytes]"]]:
    """Open bare sockets to the server, with any keys or none."""
    context, sockets = zmq.Context(), []

    def open_stranger(key: ControlKey | None) -> "zmq.Socket[bytes]":
        socket = context.socket(zmq.DEALER)
        sockets.append(socket)
        if key is not None:
            socket.curve_serverkey = key.server_public.encode()
            socket.curve_publickey = key.client_public.encode()
            socket.curve_secretkey = key.client_secret.encode()
        socket.connect(server.key.address)
        return socket

    yield open_stranger
    for socket in sockets:
        socket.close(linger=0)
    context.term()


@pytest.fixture
def hear(server: ControlServer) -> Hear:
    """Receive until ``enough`` says so."""

    def receive(enough: Callable[[list[FromWorker]], bool] = bool) -> list[FromWorker]:
        heard: list[FromWorker] = []
        while not enough(heard):
            server.wait(1.0)
            heard += server.receive()
        return heard

    return receive


def register(rank: int) -> Register:
    return Register(rank=rank, incarnation=0, pid=1, address="tcp://x")


def told(client: ControlClient, number: int = 1) -> list[ToWorker]:
    heard: list[ToWorker] = []
    while len(heard) < number:
        client.wait(1.0)
        heard += client.receive()
    return heard


def test_a_worker_registers_and_is_spoken_to_by_its_rank(
    server: ControlServer, client: ControlClient, hear: Hear
) -> None:
    with ControlClient(server.key) as other:
        client.send(register(1))
        other.send(register(2))
        heard = hear(lambda messages: len(messages) == 2)
        assert sorted(message.rank for message in heard if isinstance(message, Register)) == [1, 2]
        server.send(1, Stop())
        server.send(2, Addresses(addresses={1: "a", 2: "b"}))
        assert told(client) == [Stop()]
        assert told(other) == [Addresses(addresses={1: "a", 2: "b"})]


def test_messages_of_a_worker_arrive_in_order(client: ControlClient, hear: Hear) -> None:
    sent = [register(1), *(Finished(rank=1, reason=str(i)) for i in range(200))]
    for message in sent:
        client.send(message)
    assert hear(lambda messages: len(messages) == len(sent)) == sent


def test_a_rank_that_has_not_registered_is_not_spoken_to(server: ControlServer) -> None:
    server.send(7, Stop())


def test_a_restarted_worker_takes_its_rank_over(
    server: ControlServer, client: ControlClient, hear: Hear
) -> None:
    client.send(register(1))
    hear()
    with ControlClient(server.key) as successor:
        successor.send(register(1))
        hear()
        server.send(1, Stop())
        assert told(successor) == [Stop()]
    assert client.receive() == []


def other_keys(key: ControlKey) -> ControlKey:
    public, secret = zmq.curve_keypair()
    return replace(key, client_public=public.decode(), client_secret=secret.decode())


def other_server(key: ControlKey) -> ControlKey:
    return replace(key, server_public=zmq.curve_keypair()[0].decode())


def test_a_client_with_another_key_never_gets_through_and_is_counted(
    server: ControlServer, client: ControlClient, strangers: Callable[..., "zmq.Socket[bytes]"], hear: Hear
) -> None:
    stranger = strangers(other_keys(server.key))
    stranger.send(b'{"kind": "terminate", "rank": 0}')
    hear(lambda _: server.rejected > 0)
    assert "without the job's key" in server.last_rejection
    client.send(register(1))
    assert hear() == [register(1)]
    assert not stranger.poll(0)


@pytest.mark.parametrize("disguise", [other_server, lambda _: None], ids=["wrong server key", "no keys"])
def test_a_client_that_does_not_speak_the_job_s_curve_never_gets_through(
    server: ControlServer,
    client: ControlClient,
    strangers: Callable[..., "zmq.Socket[bytes]"],
    hear: Hear,
    disguise: Callable[[ControlKey], ControlKey | None],
) -> None:
    stranger = strangers(disguise(server.key))
    events = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
    with stranger.get_monitor_socket(events) as failures:
        stranger.send(b'{"kind": "terminate", "rank": 0}')
        assert failures.poll(20_000), "its handshake failed"
        stranger.disable_monitor()
    client.send(register(1))
    assert hear() == [register(1)]


def test_malformed_messages_are_counted_and_dropped(
    server: ControlServer, client: ControlClient, strangers: Callable[..., "zmq.Socket[bytes]"], hear: Hear
) -> None:
    insider = strangers(server.key)
    for garbage in (b"", b"{not json", b'{"kind": "terminate", "rank": 4}', b"\x00\xff" * 50):
        insider.send(garbage)
    insider.send_multipart([b"two", b"frames"])
    hear(lambda _: server.rejected == 5)
    assert "malformed" in server.last_rejection
    client.send(register(1))
    assert hear() == [register(1)]
    assert server.rejected == 5


def test_the_key_file_can_be_read_by_its_owner_only(tmp_path: Path, server: ControlServer) -> None:
    path = tmp_path / "control.key"
    former = os.umask(0)
    try:
        server.key.write(path)
    finally:
        os.umask(former)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ControlKey.read(path) == server.key
    with pytest.raises(FileExistsError):
        server.key.write(path)


def test_a_key_read_from_its_file_opens_the_channel(
    tmp_path: Path, server: ControlServer, hear: Hear
) -> None:
    server.key.write(tmp_path / "control.key")
    with ControlClient(ControlKey.read(tmp_path / "control.key")) as worker:
        worker.send(register(3))
        assert hear() == [register(3)]


def test_every_job_has_keys_of_its_own(server: ControlServer) -> None:
    other = ControlServer(ranks=4)
    try:
        assert other.key.server_public != server.key.server_public
        assert other.key.client_secret != server.key.client_secret
    finally:
        other.close()
