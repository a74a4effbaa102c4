"""Endpoints of a job that nobody starts for them meet, or say who is missing and why."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import zmq
from ports import free_ports

from tianji_transports import registry
from tianji_transports.core import EngineOptions, Transport
from tianji_transports.errors import TransportError
from tianji_transports.rendezvous import introduction, meet
from tianji_transports.testing import verbs
from tianji_transports.wiring import Channel, Wiring

WIRING = Wiring("rendezvous", (Channel("f", 0, (1, 2), 100),))
OTHER = Wiring("rendezvous", (Channel("f", 0, (1, 2), 200),))
ALONE = Wiring("rendezvous", (Channel("f", 0, (1,), 100),))


def keys() -> EngineOptions:
    public, secret = zmq.curve_keypair()
    return EngineOptions(public_key=public.decode(), secret_key=secret.decode())


@pytest.fixture
def begin() -> Iterator[Callable[..., Future[None]]]:
    """Runs a function with an endpoint of a rank, in a thread that owns it."""
    with ThreadPoolExecutor(8) as pool:

        def begin(
            rank: int,
            act: Callable[[Transport], None],
            wiring: Wiring = WIRING,
            options: EngineOptions | None = None,
        ) -> Future[None]:
            def run() -> None:
                with registry.create("zmq", wiring, rank, options=options) as endpoint:
                    act(endpoint)
                    endpoint.close(drain_s=10.0)

            return pool.submit(run)

        yield begin


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


def meet_at(at: str, timeout_s: float = 20.0) -> Callable[[Transport], None]:
    return lambda endpoint: meet(endpoint, at, timeout_s)


@pytest.mark.parametrize("options", [None, keys()], ids=["no key", "key"])
@pytest.mark.parametrize("where", ["file:{folder}/ranks", "tcp://127.0.0.1:{port}", "tcp://localhost:{port}"])
def test_ranks_meet_in_any_order_and_send(
    begin: Callable[..., Future[None]], tmp_path: Path, port: int, where: str, options: EngineOptions | None
) -> None:
    at = where.format(folder=tmp_path, port=port)

    def send(endpoint: Transport) -> None:
        meet(endpoint, at, 20.0)
        verbs.push(endpoint, 0, "f", 0)

    def receive(endpoint: Transport) -> None:
        meet(endpoint, at, 20.0)
        for source in (1, 2):
            verbs.receive(endpoint, "f", source, 0)

    first = begin(2, send, options=options)
    threading.Event().wait(0.2)  # The lowest rank, which listens, comes late.
    for one in (begin(0, receive, options=options), begin(1, send, options=options), first):
        one.result(30)


def test_the_introductions_of_an_environment_variable_are_enough_to_send(
    begin: Callable[..., Future[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = threading.Event()

    def receive(endpoint: Transport) -> None:
        monkeypatch.setenv("PARENT", introduction(endpoint))
        there.set()
        for source in (1, 2):
            verbs.receive(endpoint, "f", source, 0)

    def send(endpoint: Transport) -> None:
        assert there.wait(20.0)
        meet(endpoint, "env:PARENT")
        verbs.push(endpoint, 0, "f", 0)

    for one in (begin(0, receive), begin(1, send), begin(2, send)):
        one.result(30)


def test_an_engine_without_addresses_has_nothing_to_exchange() -> None:
    with registry.create("shm", ALONE, 1) as endpoint:
        meet(endpoint, "tcp://127.0.0.1:1", 0.0)


def test_a_rank_that_does_not_come_is_named_at_all_others(
    begin: Callable[..., Future[None]], tmp_path: Path, port: int
) -> None:
    for at in (f"file:{tmp_path}/ranks", f"tcp://127.0.0.1:{port}"):
        both = begin(0, meet_at(at, 1.0)), begin(1, meet_at(at, 5.0 if at.startswith("tcp") else 1.0))
        for one in both:
            with pytest.raises(TransportError, match=r"waited \S+ s at .*: rank 2 has not come"):
                one.result(20)
    with pytest.raises(TransportError, match="rank 0 has not answered; is it there, with this key"):
        begin(1, meet_at(at, 0.5)).result(20)


def test_who_has_another_key_is_not_let_in_and_the_one_who_waits_says_so(
    begin: Callable[..., Future[None]], port: int
) -> None:
    at = f"tcp://127.0.0.1:{port}"
    waits = begin(0, meet_at(at, 2.0), ALONE, keys())
    with pytest.raises(TransportError, match="rank 0 has not answered"):
        begin(1, meet_at(at, 1.0), ALONE, keys()).result(20)
    with pytest.raises(TransportError, match="rank 1 has not come; one was rejected because of a connection"):
        waits.result(20)


def test_strangers_at_the_port_hold_nobody_up(begin: Callable[..., Future[None]], port: int) -> None:
    at = f"tcp://127.0.0.1:{port}"
    waits = begin(0, meet_at(at), ALONE)
    strangers = []
    deadline = time.monotonic() + 10
    while len(strangers) < 20:
        try:
            strangers.append(socket.create_connection(("127.0.0.1", port)))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
    for stranger in strangers[::2]:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(1 << 16))
    begin(1, meet_at(at), ALONE).result(20)
    waits.result(20)
    for stranger in strangers:
        stranger.close()


def test_another_wiring_is_an_error(begin: Callable[..., Future[None]], tmp_path: Path, port: int) -> None:
    key = keys()
    at = f"tcp://127.0.0.1:{port}"
    for rank, one in enumerate((begin(0, meet_at(at), WIRING, key), begin(1, meet_at(at), OTHER, key))):
        with pytest.raises(TransportError, match=f"rank {1 - rank} has another wiring than rank {rank}"):
            one.result(20)
    at = f"file:{tmp_path}/ranks"
    waits = begin(0, meet_at(at), WIRING)
    while not (tmp_path / "ranks").exists() or not (tmp_path / "ranks").stat().st_size:
        assert not waits.done()
    with pytest.raises(TransportError, match="rank 0 has another wiring than rank 1"):
        begin(1, meet_at(at), OTHER).result(20)
    (tmp_path / "ranks").write_text(f'[1, 1, "{"x" * 40}"]\n')
    with pytest.raises(TransportError, match="rank 1 has another wiring than rank 0"):
        waits.result(20)


def test_a_rank_comes_once(begin: Callable[..., Future[None]], tmp_path: Path, port: int) -> None:
    at = f"tcp://127.0.0.1:{port}"
    for one in [begin(rank, meet_at(at)) for rank in (0, 1, 1)]:
        with pytest.raises(TransportError, match="two endpoints of rank 1 have come"):
            one.result(20)
    at = f"file:{tmp_path}/ranks"
    for one in [begin(rank, meet_at(at), ALONE) for rank in (0, 1)]:
        one.result(20)
    with pytest.raises(TransportError, match=r"rank 1 has met others in .*ranks before; take a new file"):
        begin(1, meet_at(at), ALONE).result(20)


@pytest.mark.parametrize(
    "line", ["[]", "[1, 2", "{}", "7", '"abc"', "[" * 4000, "\0\xff", '[1, [1], "a"]', '[1, true, "a"]']
)
def test_what_introduces_nobody_is_refused(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARENT", line.replace("\0", "\1"))
    with registry.create("zmq", ALONE, 1) as endpoint, pytest.raises(TransportError) as raised:
        meet(endpoint, "env:PARENT")
    assert "introduces no endpoint" in str(raised.value) or "another wiring" in str(raised.value)


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("nowhere", "nobody can meet at 'nowhere'; write file:PATH"),
        ("env:NOT_SET_AT_ALL", "a variable that is set"),
        ("tcp://127.0.0.1", "write file:PATH, tcp://HOST:PORT"),
        (
            "tcp://10.9.8.7:5555",
            r"other hosts reach 10.9.8.7: all ranks need a key, EngineOptions\(public_key",
        ),
        ("file:{folder}/no/such", "No such file"),
        ("file:{folder}", "Is a directory"),
        ("file:{folder}/fifo", "no file of yours that others cannot write to"),
        ("file:{folder}/open", "no file of yours that others cannot write to"),
        ("file:{folder}/link", "symbolic links"),
        ("file:{folder}/notes", "'my notes' introduces no endpoint"),
    ],
)
def test_a_place_where_nobody_can_meet_is_named(at: str, said: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "open").touch()
    (tmp_path / "open").chmod(0o666)
    (tmp_path / "link").symlink_to(tmp_path / "new")
    (tmp_path / "notes").write_text("my notes")
    with registry.create("zmq", ALONE, 0) as endpoint, pytest.raises(TransportError, match=said):
        meet(endpoint, at.format(folder=tmp_path), 1.0)
    assert (tmp_path / "notes").read_text() == "my notes"


def test_a_port_that_is_taken_is_named(port: int) -> None:
    at = f"tcp://127.0.0.1:{port}"
    refused = pytest.raises(
        TransportError, match=f"rank 0 cannot meet others at {at}: Address already in use"
    )
    with socket.create_server(("127.0.0.1", port)), registry.create("zmq", ALONE, 0) as endpoint, refused:
        meet(endpoint, at, 1.0)


MPI_PROGRAM = """
import sys
from tianji_transports import registry
from tianji_transports.mpi.world import initialise
from tianji_transports.rendezvous import meet
from tianji_transports.testing import verbs
from tianji_transports.wiring import Channel, Wiring

rank = 1 - initialise().Get_rank()
with registry.create(sys.argv[1], Wiring("by-mpi", (Channel("f", 0, (1,), 100),)), rank) as endpoint:
    meet(endpoint, "mpi", 20.0)
    if rank == 1:
        verbs.push(endpoint, 0, "f", 0)
    else:
        verbs.receive(endpoint, "f", 1, 0)
    endpoint.close(drain_s=10.0)
"""


@pytest.mark.parametrize("engine", ["mpi", "zmq"])
def test_processes_of_an_mpi_job_meet_by_mpi_whatever_their_ranks_and_engine(engine: str) -> None:
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec") or "mpiexec"
    done = subprocess.run(
        [mpiexec, "-n", "2", sys.executable, "-c", MPI_PROGRAM, engine],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
