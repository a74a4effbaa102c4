import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianji_transports.errors import TransportError
from tianji_transports.testing import Job, verbs
from tianji_transports.testing.channels import introduce
from tianji_transports.ucx.frames import (
    KIND_AT,
    NUMBER,
    RANK_BITS,
    SESSION_BITS,
    STREAM_BITS,
    Kind,
    job_bits,
    new_session,
    tag_of,
    tag_parts,
)
from tianji_transports.ucx.port import Port, Tag, address_text, parse_address
from tianji_transports.ucx.transport import UcxTransport
from tianji_transports.wiring import Channel, Slot, Wiring

CHANNELS = (Channel("f", 0, (1, 2), 100_000),)
SLOTS = (Slot("p", 0, (1,), 1000),)


@pytest.fixture
def stranger() -> Iterator[Port]:
    port = Port(job_bits(Wiring("another", CHANNELS, SLOTS)))
    yield port
    port.close()


def send(stranger: Port, to: UcxTransport, tag: int, message: bytes) -> None:
    session, address = parse_address(to.address, to.rank)
    stranger.send_small(stranger.endpoint(to.rank, session, address), Tag(tag), message)


def streams_on(receiver: UcxTransport, sender: UcxTransport) -> None:
    introduce(receiver, sender)
    for number in range(3):
        verbs.push(sender, 0, "f", number)
        verbs.receive(receiver, "f", 1, number)


@pytest.mark.parametrize("nbytes", [0, 8, 100, 8000])
def test_messages_of_another_job_are_counted_and_dropped(stranger: Port, nbytes: int) -> None:
    with Job("ucx", CHANNELS, SLOTS) as job:
        receiver, sender = job.open(0), job.open(1)
        other = job_bits(Wiring("another", CHANNELS, SLOTS))
        for kind in Kind:
            send(stranger, receiver, tag_of(other, kind, 5, 1, 0), bytes(nbytes))
        verbs.until(receiver, lambda: receiver.counters.rejected == len(Kind) or None)
        assert receiver.counters.first_rejection == "a message of another job"
        streams_on(receiver, sender)


def test_malformed_messages_are_counted_and_dropped(stranger: Port) -> None:
    with Job("ucx", CHANNELS, SLOTS) as job:
        receiver, sender = job.open(0), job.open(1)
        ours = job_bits(job.wiring)
        number = NUMBER.pack(1)
        wrong = [
            (tag_of(ours, Kind.HELLO, 5, 1, 0), b"short"),
            (tag_of(ours, Kind.HELLO, 5, 1, 0), number),
            (tag_of(ours, Kind.HELLO, 5, 1, 0), number + b"no address"),
            (tag_of(ours, Kind.HELLO, 5, 1, 9), number + stranger.lobby.address),
            (tag_of(ours, Kind.HELLO, 5, 9, 0), number + stranger.lobby.address),
            (tag_of(ours, Kind.DATA, 5, 1, 0), number),
            (tag_of(ours, Kind.DATA, 5, 1, 9), bytes(8000)),
            (tag_of(ours, Kind.CREDIT, 5, 1, 0), number),
            (tag_of(ours, Kind.WELCOME, 5, 1, 0), number),
            (tag_of(ours, Kind.BYE, 5, 1, 0), number),
            (tag_of(ours, Kind.JOIN, 5, 9, 0), number + stranger.lobby.address),
            (tag_of(ours, Kind.JOIN, 5, 1, 9), number + stranger.lobby.address),
            (tag_of(ours, Kind.ACK, 5, 1, 0), number),
            (tag_of(ours, Kind.VALUE, 5, 1, 0), bytes(100)),
            (tag_of(ours, Kind.VALUE, 5, 1, 9), b""),
        ]
        for tag, message in wrong:
            send(stranger, receiver, tag, message)
        verbs.until(receiver, lambda: receiver.counters.rejected == len(wrong) or None)
        kind = int(Kind.HELLO)
        why = f"5 bytes of kind {kind}, stream 0, rank 1 are no message here"
        assert receiver.counters.first_rejection == why
        streams_on(receiver, sender)


def test_messages_of_an_earlier_life_are_counted_and_dropped(stranger: Port) -> None:
    with Job("ucx", CHANNELS, SLOTS) as job:
        receiver, sender = job.open(0), job.open(1)
        streams_on(receiver, sender)
        earlier = sender._session
        sender.close()
        receiver.peer_lost(1)
        again = job.open(1, incarnation=1)
        streams_on(receiver, again)
        send(stranger, receiver, tag_of(job_bits(job.wiring), Kind.DATA, earlier, 1, 0), bytes(100))
        verbs.until(receiver, lambda: receiver.counters.rejected == 1 or None)
        streams_on(receiver, again)


def test_a_sender_killed_while_it_writes_does_not_block_another() -> None:
    """All who write to one worker share its queue: each life of a sender has a worker of its own."""
    with Job("ucx", (Channel("f", 0, (1, 2), 400_000, window=4),)) as job:
        receiver, steady = job.open(0), job.start(2)
        expected = 0
        steady.tell("stream", 0, "f", 60, 100)
        for life in range(12):
            victim = job.start(1, incarnation=life)
            victim.tell("stream", 0, "f", 100_000, 300_000)
            for _ in range(10):
                verbs.claim(receiver, "f", 1).release()
            job.kill(victim)
            receiver.peer_lost(1)
            for _ in range(5):
                verbs.receive(receiver, "f", 2, expected)
                expected += 1
        while (held := receiver.probe("f", 1)) is not None:
            held.release()
        assert expected == 60
        steady.answer()


def test_what_is_no_address_is_refused() -> None:
    assert parse_address(address_text(7, b"abc"), 1) == (7, b"abc")
    with Job("ucx", CHANNELS) as job:
        sender = job.open(1)
        for text in ("", "tcp://127.0.0.1:1", "ucx:x:YWJj", "ucx:1:not base64", address_text(1, b"abc")):
            with pytest.raises(TransportError, match="rank 0"):
                sender.connect({0: text})


def test_a_wiring_that_tags_cannot_name_is_refused() -> None:
    with pytest.raises(TransportError, match="16384 ranks"):
        job_bits(Wiring("j", (Channel("f", 0, (1 << RANK_BITS,), 1),)))


@given(
    st.sampled_from(Kind),
    st.integers(0, (1 << SESSION_BITS) - 1),
    st.integers(0, (1 << RANK_BITS) - 1),
    st.integers(0, (1 << STREAM_BITS) - 1),
)
def test_tags_come_apart_as_they_were_put_together(kind: Kind, session: int, rank: int, stream: int) -> None:
    job = job_bits(Wiring("j", CHANNELS))
    tag = tag_of(job, kind, session, rank, stream)
    assert tag_parts(tag) == (kind, session, rank, stream)
    assert tag >> KIND_AT + 3 << KIND_AT + 3 == job
    assert tag < 1 << 64


def test_two_lives_in_a_row_have_different_sessions() -> None:
    for incarnation in range(100):
        assert new_session(incarnation) != new_session(incarnation + 1)
        assert 0 <= new_session(incarnation) < 1 << SESSION_BITS


@pytest.mark.parametrize(("variable", "expected"), [(None, "inf"), ("4096", "4K")])
def test_the_environment_stays_the_users(variable: str | None, expected: str) -> None:
    code = (
        "import os; before = dict(os.environ); from tianji_transports.ucx import library as ucx_library; "
        "assert dict(os.environ) == before, set(os.environ) - set(before); "
        "print(ucx_library.new_context().config['RNDV_THRESH'])"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    if variable is not None:
        environment["UCX_RNDV_THRESH"] = variable
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert expected in done.stdout
    assert done.stderr == ""


def test_settings_that_ucx_refuses_are_an_error_with_its_cause() -> None:
    code = (
        "from tianji_transports.ucx import library as ucx_library\n"
        "from tianji_transports.errors import TransportError\n"
        "try: ucx_library.new_context()\n"
        "except TransportError as error: print(error, type(error.__cause__))\n"
    )
    environment = {**os.environ, "UCX_TLS": "carrier_pigeon"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert "UCX cannot start" in done.stdout
