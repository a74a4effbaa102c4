import signal
import struct
from collections.abc import Iterator

import pytest
import zmq

from tianji_transports.core import FULL, EngineOptions
from tianji_transports.errors import TransportError
from tianji_transports.testing import Job, TransportContract, verbs
from tianji_transports.wiring import Channel, Slot, Wiring, digest
from tianji_transports.zmq.door import MEMBER
from tianji_transports.zmq.frames import Header, Kind, control_frame, password
from tianji_transports.zmq.transport import ZmqTransport

CHANNELS = (Channel("f", 0, (1,), 100_000),)
SLOTS = (Slot("p", 0, (1,), 1000),)


def keys() -> EngineOptions:
    public, secret = zmq.curve_keypair()
    return EngineOptions(public_key=public.decode(), secret_key=secret.decode())


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def member(endpoint: ZmqTransport) -> dict[str, bytes]:
    """A function that opens an endpoint on loopback."""
    return {"plain_username": MEMBER, "plain_password": password(endpoint.wiring, endpoint.address).encode()}


def dealer(context: "zmq.Context[zmq.Socket[bytes]]", address: str, **options: bytes) -> "zmq.Socket[bytes]":
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    for name, value in options.items():
        setattr(socket, name, value)
    socket.connect(address)
    return socket


def router_address(endpoint: ZmqTransport) -> str:
    return endpoint.address.partition(",")[0]


def test_malformed_frames_are_counted_and_dropped(context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    wiring = Wiring("malformed", CHANNELS, SLOTS)
    right = digest(wiring)
    frames = [
        [b""],
        [b"x" * 63],
        [b"x" * 64],
        [b"x" * 5000],
        [struct.pack("<Q", right) + b"\xff" * 56],
        [control_frame(Header(right + 1, Kind.HELLO, 0, 1, 9, 0, 0))],
        [control_frame(Header(right, Kind.HELLO, 7, 1, 9, 0, 0))],
        [control_frame(Header(right, Kind.HELLO, 0, 5, 9, 0, 0))],
        [control_frame(Header(right, Kind.DATA, 0, 1, 9, 1, 0))],
        [control_frame(Header(right, Kind.DATA, 0, 1, 9, 1, 44))],
        [control_frame(Header(right, Kind.CREDIT, 0, 1, 9, 1, 0))],
        [control_frame(Header(right, Kind.JOIN, 3, 1, 9, 1, 0))],
        [control_frame(Header(right, 250, 0, 1, 9, 1, 0))],
        [control_frame(Header(right, Kind.HELLO, 0, 1, 9, 0, 0)), b"a second frame"],
    ]
    with (
        ZmqTransport(wiring, 0) as receiver,
        dealer(context, router_address(receiver), **member(receiver)) as stranger,
    ):
        for frame in frames:
            stranger.send_multipart(frame)

        def all_counted() -> bool | None:
            assert receiver.probe("f") is None
            return receiver.counters.rejected == len(frames) or None

        verbs.until(receiver, all_counted)
        # A well-formed stranger may not overrun the window either.
        stranger.send(control_frame(Header(right, Kind.HELLO, 0, 1, 9, 0, 0)))
        for number in (1, 2, 3, 2, 0):
            stranger.send(control_frame(Header(right, Kind.DATA, 0, 1, 9, number, 0)))
        verbs.until(receiver, lambda: receiver.counters.rejected == len(frames) + 3 or None)
        assert receiver.close().unclaimed == {(1, "f"): 2}


def test_a_rejected_frame_does_not_disturb_the_others(context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    with Job("zmq", CHANNELS) as job:
        receiver, sender = job.open(0), job.start(1)
        assert isinstance(receiver, ZmqTransport)
        sender.tell("stream", 0, "f", 20, 70_000)
        with dealer(context, router_address(receiver), **member(receiver)) as stranger:
            for number in range(20):
                stranger.send(b"noise" * 100)
                verbs.receive(receiver, "f", 1, number)
            sender.answer()
            verbs.until(receiver, lambda: receiver.probe("f") or receiver.counters.rejected == 20 or None)


@pytest.mark.parametrize("before", [1050, 1700])
def test_a_large_window_has_room_whatever_was_sent_before(before: int) -> None:
    """ZMQ frees room in its queues in large steps: what left before a stop may still count as there."""
    window, nbytes = 4000, 16_384
    with Job("zmq", (Channel("f", 0, (1,), nbytes, window),)) as job:
        sender, receiver = job.open(1), job.start(0)
        receiver.tell("receive_stream", "f", 1, 0, before)
        verbs.stream(sender, 0, "f", before)
        receiver.answer()
        verbs.until(sender, lambda: sender.unconfirmed(0, "f") == 0 or None)
        receiver.signal(signal.SIGSTOP)
        try:
            for number in range(before, before + window):
                verbs.push(sender, 0, "f", number, nbytes)
        finally:
            receiver.signal(signal.SIGCONT)
        receiver.ask("receive_stream", "f", 1, before, window)
        assert sender.close(20.0).unconfirmed == {}


class TestZmqWithKeys(TransportContract):
    engine = "zmq"

    @pytest.fixture(autouse=True)
    def _keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        options = keys()
        monkeypatch.setattr("tianji_transports.testing.job.EngineOptions", lambda: options)


def test_who_has_no_keys_of_the_job_gets_nowhere(context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    wiring = Wiring("strangers", CHANNELS)
    options = keys()
    public, secret = zmq.curve_keypair()
    with (
        ZmqTransport(wiring, 0, options=options) as receiver,
        dealer(context, router_address(receiver)) as plain,
        # Knows the job's public key, but not its secret one.
        dealer(
            context,
            router_address(receiver),
            curve_serverkey=options.public_key.encode(),
            curve_publickey=public,
            curve_secretkey=secret,
        ) as half,
        ZmqTransport(wiring, 1, options=options) as sender,
    ):
        plain.send(b"let me in")
        half.send(b"let me in")
        sender.connect({0: receiver.address})
        while sender.loan(0, "f", 1) is FULL:
            receiver.wait(0.05)
            sender.wait(0.05)
        verbs.until(receiver, lambda: receiver.counters.rejected >= 2 or None)
        assert "connection" in receiver.counters.first_rejection
        assert receiver.probe("f") is None


@pytest.mark.parametrize("address", ["", "tcp://127.0.0.1", "tcp://127.0.0.1:1,2", "ipc:///x:1"])
def test_an_address_of_another_shape_is_refused(address: str) -> None:
    with (
        ZmqTransport(Wiring("addresses", CHANNELS), 1) as sender,
        pytest.raises(TransportError, match="address"),
    ):
        sender.connect({0: address})


def test_a_host_that_is_not_ours_is_an_error_that_names_it() -> None:
    with pytest.raises(TransportError, match=r"203\.0\.113\.7"):
        ZmqTransport(Wiring("elsewhere", CHANNELS), 0, options=EngineOptions(host="203.0.113.7"))
