"""Peers that nobody invited, and members gone mad: they are counted and dropped, and the job goes on."""

import contextlib
import functools
import os
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import zmq

from tianji_transports.core import FULL, EngineOptions
from tianji_transports.testing import Job, verbs
from tianji_transports.wiring import Channel, Slot, Wiring, digest
from tianji_transports.zmq.door import MEMBER, Door, Password
from tianji_transports.zmq.frames import LINE, Header, Kind, control_frame, password
from tianji_transports.zmq.transport import ZmqTransport

Socket = zmq.Socket[bytes]
Connect = Callable[..., Socket]

CHANNELS = (Channel("f", 0, (1, 2), 100_000),)
SLOTS = (Slot("p", 0, (1,), 1000),)
WIRING = Wiring("uninvited", CHANNELS, SLOTS)
RIGHT = digest(WIRING)
HELLO = Header(RIGHT, Kind.HELLO, 0, 1, 9, 0, 0)
MOST = 2**64 - 1


def port(endpoint: ZmqTransport, index: int = 0) -> int:
    """Port of the endpoint's ROUTER, or of a slot that it writes."""
    return int(endpoint.address.rpartition(":")[2].split(",")[index])


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes a socket that is connected to a port of an endpoint: a member's, or a stranger's."""
    with contextlib.ExitStack() as stack:
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)

        def make(
            endpoint: ZmqTransport,
            index: int = 0,
            kind: int = zmq.DEALER,
            *,
            member: bool = True,
            **options: Any,
        ) -> Socket:
            made: Socket = context.socket(kind)
            stack.callback(made.close, linger=0)
            made.sndhwm = 0
            if member:
                Password(password(endpoint.wiring, endpoint.address)).show(made)
            for name, value in options.items():
                setattr(made, name, value)
            made.connect(f"tcp://127.0.0.1:{port(endpoint, index)}")
            return made

        yield make


@pytest.fixture
def receiver() -> Iterator[ZmqTransport]:
    with ZmqTransport(WIRING, 0) as endpoint:
        yield endpoint


def count_to(endpoint: ZmqTransport, rejected: int) -> None:
    """Wait until exactly so many frames were rejected."""
    verbs.until(endpoint, lambda: endpoint.counters.rejected >= rejected or None)
    endpoint.wait(0.05)
    assert endpoint.counters.rejected == rejected


def answered(stranger: Socket) -> bool | None:
    """Say whether there is an answer, soon."""
    return bool(stranger.poll(5)) or None


def hello(stranger: Socket, header: Header = HELLO) -> None:
    """Say HELLO."""
    stranger.send(control_frame(header))


def spoilt_frames(number: int, seed: int) -> Iterator[list[bytes]]:
    """Frames that almost make sense, each with at least one fault."""
    draw = random.Random(seed)
    faults: list[Callable[[Header], Header]] = [
        lambda header: replace_field(header, digest=draw.randrange(MOST)),
        lambda header: replace_field(header, kind=draw.choice([0, 2, 4, 5, 7, *range(8, 256)])),
        lambda header: replace_field(header, stream=draw.randrange(1, 2**16)),
        lambda header: replace_field(header, rank=draw.choice([0, *range(3, 2**16)])),
        lambda header: replace_field(header, nbytes=draw.choice([1, 2**31, 2**32, 2**63, MOST])),
    ]
    for _ in range(number):
        header = Header(RIGHT, draw.choice([1, 3]), 0, draw.choice([1, 2]), draw.randrange(MOST), 0, 0)
        header = replace_field(header, number=draw.choice([0, 1, 2**31, 2**63, MOST]))
        shape = draw.randrange(9)
        if shape == 0:
            yield [draw.randbytes(draw.randrange(2 * LINE))]
        elif shape == 1:
            yield [control_frame(header)[: draw.randrange(LINE)]]
        elif shape == 2:
            yield [control_frame(header) + draw.randbytes(draw.randrange(1, 5000))]
        elif shape == 3:
            yield [control_frame(header)] + [b"", control_frame(header)] * draw.randrange(1, 4)
        else:
            for fault in draw.sample(faults, draw.randrange(1, 3)):
                header = fault(header)
            yield [control_frame(header)]


def replace_field(header: Header, **fields: int) -> Header:
    return header._replace(**fields)


@pytest.mark.parametrize("seed", range(2))
def test_spoilt_frames_are_all_counted_and_the_job_goes_on(connect: Connect, seed: int) -> None:
    with Job("zmq", CHANNELS) as job:
        receiver, sender = job.open(0), job.start(1)
        assert isinstance(receiver, ZmqTransport)
        stranger = connect(receiver)
        # Frames are spoilt for any job; those that would be right in another one are wrong in this one.
        frames = list(spoilt_frames(1000, seed))
        sender.tell("stream", 0, "f", 100)
        for number in range(100):
            for frame in frames[10 * number : 10 * (number + 1)]:
                stranger.send_multipart(frame)
            verbs.receive(receiver, "f", 1, number)
        sender.answer()
        count_to(receiver, len(frames))
        assert receiver.counters.claims == 100
        assert receiver.close().unclaimed == {}


@pytest.mark.parametrize("seed", range(2))
def test_frames_with_one_fault_are_counted_one_by_one(
    connect: Connect, receiver: ZmqTransport, seed: int
) -> None:
    stranger = connect(receiver)
    frames = list(spoilt_frames(1000, seed))
    for frame in frames:
        stranger.send_multipart(frame)
    # A stranger's right DATA has no HELLO before it; its right HELLO is not among the spoilt ones.
    count_to(receiver, len(frames))
    assert receiver.probe("f") is None
    assert receiver.counters.first_rejection


def test_replayed_reordered_and_hostile_numbers_are_refused(connect: Connect, receiver: ZmqTransport) -> None:
    stranger = connect(receiver)
    hello(stranger)
    for number in (1, 1, 2, 0, 3, 2**31, 2**63, MOST, 2):
        stranger.send(control_frame(HELLO._replace(kind=Kind.DATA, number=number)))
    count_to(receiver, 7)  # All but 1 and 2; 3 is beyond the window.
    for _ in range(100):  # To begin again before what was sent would free the window again.
        hello(stranger)
        stranger.send(control_frame(HELLO._replace(kind=Kind.DATA, number=1)))
    count_to(receiver, 207)
    hello(stranger, HELLO._replace(number=2))
    for number in (3, 4):
        stranger.send(control_frame(HELLO._replace(kind=Kind.DATA, number=number)))
    count_to(receiver, 209)
    assert receiver.close().unclaimed == {(1, "f"): 2}


def test_frames_of_an_earlier_life_are_refused(connect: Connect, receiver: ZmqTransport) -> None:
    stranger = connect(receiver)
    hello(stranger)
    stranger.send(control_frame(HELLO._replace(kind=Kind.DATA, session=8, number=1)))
    stranger.send(control_frame(HELLO._replace(session=8)))
    stranger.send(control_frame(HELLO._replace(kind=Kind.DATA, rank=2, number=1)))
    count_to(receiver, 3)
    assert receiver.probe("f") is None


@pytest.mark.parametrize("number", [0, MOST])
def test_a_flood_of_hellos_takes_no_memory_and_no_sender_its_place(connect: Connect, number: int) -> None:
    with Job("zmq", CHANNELS) as job:
        receiver, sender = job.open(0), job.start(1)
        assert isinstance(receiver, ZmqTransport)
        sender.tell("push", 0, "f", 0)
        verbs.receive(receiver, "f", 1, 0)
        sender.answer()
        header = HELLO._replace(digest=receiver._digest, number=number)
        strangers = []
        for session in range(1, 200):
            strangers.append(connect(receiver, routing_id=b"\1" + os.urandom(12)))
            hello(strangers[-1], header._replace(session=session))
        for stranger in strangers:
            verbs.until(receiver, functools.partial(answered, stranger))
        assert len(receiver._inlet_of[0, 1].lives) < 20
        sender.tell("stream", 0, "f", 20)
        verbs.receive_stream(receiver, "f", 1, 0, 20)
        sender.answer()


def test_a_flood_of_joins_has_a_value_published_once(connect: Connect, receiver: ZmqTransport) -> None:
    receiver.publish("p", memoryview(b"value"), 3)
    reader = connect(receiver, 1, zmq.SUB)
    reader.subscribe(b"")
    stranger = connect(receiver)
    join = Header(RIGHT, Kind.JOIN, 0, 1, 9, 0, 0)
    verbs.until(receiver, lambda: [stranger.send(control_frame(join)), reader.poll(20)][1] or None)
    while reader.poll(50):
        reader.recv()
    for _ in range(3000):
        stranger.send(control_frame(join))
    for hostile in (join._replace(stream=1), join._replace(rank=2), join._replace(stream=2**16 - 1)):
        stranger.send(control_frame(hostile))
    count_to(receiver, 3)
    published = 0
    while reader.poll(50):
        reader.recv()
        published += 1
    assert 1 <= published < 300


def test_a_reader_that_has_had_a_value_does_not_have_the_next_one_sent_twice(
    connect: Connect, receiver: ZmqTransport
) -> None:
    """It asks for what is on its way: with hundreds of readers all would get all again and again."""
    receiver.publish("p", memoryview(b"value"), 3)
    reader = connect(receiver, 1, zmq.SUB)
    reader.subscribe(b"")
    stranger = connect(receiver)
    new, had = (Header(RIGHT, Kind.JOIN, 0, 1, 9, number, 0) for number in (0, 4))
    verbs.until(receiver, lambda: [stranger.send(control_frame(new)), reader.poll(20)][1] or None)
    while reader.poll(50):
        reader.recv()
    receiver.publish("p", memoryview(b"later"), 4)
    reader.recv()
    for _ in range(10):
        stranger.send(control_frame(had))
        receiver.wait(0.01)
    assert not reader.poll(50)
    # One that really lacks it gets it a while later.
    verbs.until(receiver, lambda: [stranger.send(control_frame(had)), reader.poll(20)][1] or None)
    assert bytes(reader.recv()).endswith(b"later")


def test_nobody_but_its_receiver_gives_a_sender_credit(connect: Connect, receiver: ZmqTransport) -> None:
    with ZmqTransport(WIRING, 1) as sender:
        sender.connect({0: receiver.address})
        stranger = connect(sender)
        while (lent := sender.loan(0, "f", 1)) is FULL:
            receiver.wait(0.02)
            sender.wait(0.02)
        sender.push(lent)
        verbs.push(sender, 0, "f", 1)
        for kind in (Kind.CREDIT, Kind.WELCOME, Kind.BYE):
            for rank in (0, 1, 2):
                stranger.send(control_frame(HELLO._replace(kind=kind, rank=rank, number=2)))
        count_to(sender, 9)
        assert sender.loan(0, "f", 1) is FULL
        assert sender.unconfirmed(0, "f") == 2


class AnyPassword(Password):
    """The password of an impostor, which takes any answer for right."""

    def opens(self, _mechanism: bytes, _credentials: Sequence[bytes]) -> bool:
        return True


@contextlib.contextmanager
def impostor(kind: int) -> Iterator[tuple[Socket, int, Door]]:
    """A socket that poses as an endpoint's, its port, and what lets members in to it."""
    context = zmq.Context()
    try:
        door, false = Door(context, AnyPassword("")), context.socket(kind)
        false.linger = 0
        door.guard(false)
        yield false, false.bind_to_random_port("tcp://127.0.0.1"), door
    finally:
        context.destroy(linger=0)


def test_a_receiver_that_answers_nonsense_gives_no_credit(connect: Connect) -> None:
    with ZmqTransport(WIRING, 1) as sender, impostor(zmq.ROUTER) as (false, bound, door):
        sender.connect({0: f"tcp://127.0.0.1:{bound},{bound}"})
        verbs.until(sender, lambda: [door.look(), sender.loan(0, "f", 1), false.poll(20)][2] or None)
        identity = false.recv_multipart()[0]
        welcome = Header(RIGHT, Kind.WELCOME, 0, 0, 5, MOST, 0)
        false.send_multipart([identity, control_frame(welcome)])
        verbs.push(sender, 0, "f", 1)
        nonsense = [
            welcome._replace(kind=Kind.CREDIT, number=2),
            welcome._replace(kind=Kind.CREDIT, number=MOST),
            welcome._replace(kind=Kind.CREDIT, number=1, session=6),
            welcome._replace(kind=Kind.CREDIT, number=1, rank=1),
            welcome._replace(kind=Kind.CREDIT, number=1, stream=1),
            welcome._replace(kind=Kind.CREDIT, number=1, digest=0),
            welcome._replace(kind=Kind.BYE, session=6),
            welcome._replace(kind=Kind.DATA),
        ]
        for header in nonsense:
            false.send_multipart([identity, control_frame(header)])
        false.send_multipart([identity, b"short"])
        count_to(sender, len(nonsense) + 1)
        assert sender.unconfirmed(0, "f") == 1


def test_values_that_are_none_are_counted_and_never_read(connect: Connect, receiver: ZmqTransport) -> None:
    with ZmqTransport(WIRING, 1) as reader, impostor(zmq.PUB) as (false, bound, door):
        reader.connect({0: f"tcp://127.0.0.1:{port(receiver)},{bound}"})
        value = Header(RIGHT, Kind.VALUE, 0, 0, 5, 4, 5)
        bad = [
            b"noise",
            control_frame(value),
            control_frame(value._replace(digest=1)) + b"value",
            control_frame(value._replace(kind=Kind.DATA)) + b"value",
            control_frame(value._replace(stream=1)) + b"value",
            control_frame(value._replace(rank=2)) + b"value",
            control_frame(value._replace(nbytes=2000)) + bytes(2000),
        ]
        for frame in bad:
            before = reader.counters.rejected

            def refused(frame: bytes = frame, before: int = before) -> bool | None:
                door.look()
                false.send(frame)
                assert reader.latest("p") is None
                return reader.counters.rejected > before or None

            verbs.until(reader, refused)


def test_frames_above_the_largest_end_their_connection_only(connect: Connect, receiver: ZmqTransport) -> None:
    connect(receiver).send(bytes(1_000_000))
    with ZmqTransport(WIRING, 1) as sender:
        sender.connect({0: receiver.address})
        while (lent := sender.loan(0, "f", 1)) is FULL:
            receiver.wait(0.02)
            sender.wait(0.02)
        sender.push(lent)
        assert verbs.claim(receiver, "f").nbytes == 1
        assert receiver.counters.rejected == 0


def test_on_loopback_who_has_not_the_password_of_an_endpoint_gets_no_byte_in(
    connect: Connect, receiver: ZmqTransport
) -> None:
    greeting = control_frame(HELLO)
    of_another = password(WIRING, receiver.address.replace("127.0.0.1", "127.0.0.2"))
    of_another_job = password(Wiring("another", CHANNELS, SLOTS), receiver.address)
    strangers = [connect(receiver, member=False)]
    for word in ("guessed", of_another, of_another_job):
        shown = {"plain_username": MEMBER, "plain_password": word.encode()}
        strangers.append(connect(receiver, member=False, **shown))
    for stranger in strangers:
        stranger.send(greeting)
    verbs.until(receiver, lambda: receiver.counters.rejected >= len(strangers) or None)
    assert not any(stranger.poll(20) for stranger in strangers), "nobody was answered"
    assert "of a connection" in receiver.counters.first_rejection
    member = connect(receiver)
    member.send(greeting)
    verbs.until(receiver, functools.partial(answered, member))


def test_off_loopback_a_stranger_gets_no_byte_into_the_job(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    public, secret = zmq.curve_keypair()
    options = EngineOptions(public_key=public.decode(), secret_key=secret.decode())
    monkeypatch.setattr("tianji_transports.testing.job.EngineOptions", lambda: options)
    mine, my_secret = zmq.curve_keypair()
    with Job("zmq", CHANNELS) as job, contextlib.ExitStack() as open_sockets:
        receiver, sender = job.open(0), job.start(1)
        assert isinstance(receiver, ZmqTransport)
        number = port(receiver)
        greeting = control_frame(HELLO._replace(digest=receiver._digest))
        wrong = {"curve_publickey": mine, "curve_secretkey": my_secret}
        strangers = [
            connect(receiver, member=False),
            connect(receiver, member=False, plain_username=b"root", plain_password=b"root"),
            connect(receiver, member=False, curve_serverkey=public, **wrong),
            connect(receiver, member=False, curve_serverkey=mine, **wrong),
            connect(
                receiver, member=False, curve_serverkey=mine, curve_publickey=public, curve_secretkey=secret
            ),
        ]
        for stranger in strangers:
            stranger.send(greeting)
        draw = random.Random(5)
        zmtp = b"\xff" + bytes(8) + b"\x7f\x03\x00"
        for begun in (b"", b"\xff", zmtp, b"GET / HTTP/1.0\r\n\r\n", draw.randbytes(5000), greeting):
            for _ in range(20):  # They stay open, and never say more.
                raw = open_sockets.enter_context(socket.create_connection(("127.0.0.1", number), 5))
                with contextlib.suppress(ConnectionError):
                    raw.sendall(begun)
        sender.tell("stream", 0, "f", 50)
        verbs.receive_stream(receiver, "f", 1, 0, 50)
        sender.answer()
        verbs.until(receiver, lambda: receiver.counters.rejected >= 4 or None)
        assert "connection" in receiver.counters.first_rejection
        assert receiver.close().unclaimed == {}
