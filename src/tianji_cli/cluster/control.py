"""The control channel: ZMQ ROUTER at the root, a DEALER in every worker, CURVE on both.

It carries registration, addresses, reports and stop, and no samples. Keys are made for each job and
kept in a file that only its owner can read; whoever lacks them cannot speak to the root.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import zmq
from zmq.utils import z85

from tianji_cli.cluster.messages import (
    FromWorker,
    MalformedMessageError,
    Register,
    ToWorker,
    decode_from_worker,
    decode_to_worker,
    encode,
)

MAX_MESSAGE_BYTES: Final = 16 << 20
"""Larger control messages are refused by the socket: reports are a few kilobytes."""

ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
"""Where libzmq asks whether a client's key is welcome (ZeroMQ RFC 27)."""


@dataclass(frozen=True)
class ControlKey:
    """What a worker needs to reach its root: the address and the job's keys (CURVE, Z85)."""

    address: str
    server_public: str
    client_public: str
    client_secret: str

    def write(self, path: Path) -> None:
        """Write a file that only its owner can read."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what ``write`` wrote."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


class ControlServer:
    """The root's end: hears all workers, and speaks to each by its rank.

    Args:
        ranks: how many processes the job has.
        host: interface to listen on.
    """

    def __init__(self, ranks: int, host: str = "127.0.0.1") -> None:
        self._context = zmq.Context()
        self._ranks = ranks
        self.rejected = 0
        self.last_rejection = ""
        server_public, server_secret = zmq.curve_keypair()
        client_public, client_secret = zmq.curve_keypair()
        # The one key that is welcome; libzmq asks here at every handshake, so no thread is needed for it.
        self._welcome = client_public
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind(ZAP_ENDPOINT)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.linger = 500
        self._router.maxmsgsize = MAX_MESSAGE_BYTES
        self._router.curve_server = True
        self._router.curve_publickey = server_public
        self._router.curve_secretkey = server_secret
        port = self._router.bind_to_random_port(f"tcp://{host}")
        self.key = ControlKey(
            f"tcp://{host}:{port}", server_public.decode(), client_public.decode(), client_secret.decode()
        )
        self._identities: dict[int, bytes] = {}

    @property
    def sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        """What to poll: ``receive`` has something to do when one is readable."""
        return (self._zap, self._router)

    def wait(self, timeout_s: float) -> None:
        """Sleep until ``receive`` has something to do."""
        poller = zmq.Poller()
        for socket in self.sockets:
            poller.register(socket, zmq.POLLIN)
        poller.poll(int(timeout_s * 1000) + 1)

    def receive(self) -> list[FromWorker]:
        """Take everything that has arrived. What is no message of the protocol is counted and dropped."""
        self._answer_handshakes()
        messages: list[FromWorker] = []
        while True:
            try:
                identity, *frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            try:
                message = decode_from_worker(b"".join(frames), self._ranks)
            except MalformedMessageError as cause:
                self.rejected += 1
                self.last_rejection = f"a control message was malformed and dropped: {cause}"
                continue
            if isinstance(message, Register):
                self._identities[message.rank] = identity
            messages.append(message)

    def send(self, rank: int, message: ToWorker) -> None:
        """Send to a worker that has registered; one that has not will be told when it does."""
        if rank in self._identities:
            self._router.send_multipart([self._identities[rank], encode(message)])

    def close(self) -> None:
        """Send what is queued, within half a second, and free the sockets."""
        self._router.close()
        self._zap.close(linger=0)
        self._context.term()

    def _answer_handshakes(self) -> None:
        while True:
            try:
                version, request, _domain, _address, _identity, mechanism, *credentials = (
                    self._zap.recv_multipart(zmq.NOBLOCK)
                )
            except zmq.Again:
                return
            known = mechanism == b"CURVE" and [z85.encode(key) for key in credentials] == [self._welcome]
            status = (b"200", b"OK") if known else (b"400", b"unknown key")
            self._zap.send_multipart([version, request, *status, b"", b""])
            if not known:
                self.rejected += 1
                self.last_rejection = "a control connection without the job's key was refused"


class ControlClient:
    """A worker's end.

    Args:
        key: address and keys of the job.
    """

    def __init__(self, key: ControlKey) -> None:
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.linger = 1000
        self._dealer.sndhwm = 0  # A report a second: what a slow root has not read yet may pile up.
        self._dealer.maxmsgsize = MAX_MESSAGE_BYTES
        self._dealer.curve_serverkey = key.server_public.encode()
        self._dealer.curve_publickey = key.client_public.encode()
        self._dealer.curve_secretkey = key.client_secret.encode()
        self._dealer.connect(key.address)

    @property
    def descriptor(self) -> int:
        """Readable when ``receive`` may have something; edge-triggered, so drain it by ``receive``."""
        return int(self._dealer.fd)

    def send(self, message: FromWorker) -> None:
        """Queue a message for the root. Never waits."""
        self._dealer.send(encode(message), zmq.NOBLOCK)

    def receive(self) -> list[ToWorker]:
        """Take everything that has arrived."""
        messages: list[ToWorker] = []
        while True:
            try:
                frames = self._dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            messages.append(decode_to_worker(b"".join(frames)))

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a message comes; False if none did."""
        return bool(self._dealer.poll(int(timeout_s * 1000)))

    def close(self) -> None:
        """Send what is queued, within a second, and free the socket."""
        self._dealer.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
