"""A raw loop over ZMQ: DEALER and ROUTER over TCP, zero-copy if ZMQ allows, with a ring of send buffers."""

from __future__ import annotations

import itertools
import mmap

import zmq

from tianji_lab.bench.experiment import LEAD, Trial
from tianji_lab.bench.raw.loop import WAIT_S, RawEnd, fill
from tianji_transports.core import EngineOptions
from tianji_transports.errors import TransportError
from tianji_transports.zmq.sockets import keep_freed_memory


class SocketEnd(RawEnd):
    """One end: a plain socket, encrypted only beyond loopback; attempts sleep in ZMQ."""

    def __init__(self, trial: Trial, rank: int, options: EngineOptions) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER if rank == LEAD else zmq.DEALER)
        self._socket.linger = 0
        self._socket.sndhwm = self._socket.rcvhwm = trial.window
        self._socket.sndtimeo = self._socket.rcvtimeo = int(WAIT_S * 1000)
        self._leads = rank == LEAD
        if options.secret_key:  # Like the engine: beyond loopback a peer needs the key.
            self._socket.curve_publickey = options.public_key.encode()
            self._socket.curve_secretkey = options.secret_key.encode()
            if self._leads:
                self._socket.curve_server = True
            else:
                self._socket.curve_serverkey = options.public_key.encode()
        if self._leads:
            # The engine does the same for the whole process: the order of the two must not matter.
            keep_freed_memory(trial.nbytes * (trial.window + 1))
            try:
                port = self._socket.bind_to_random_port(f"tcp://{options.host}")
            except zmq.ZMQError as error:
                self.close()
                raise TransportError(f"ZMQ cannot listen on {options.host!r}: {error}") from error
            self.address = f"tcp://{options.host}:{port}"
            return
        # ZMQ sends from this memory: a window of messages, and the messages that its thread has taken out.
        ring = [memoryview(mmap.mmap(-1, trial.nbytes)) for _ in range(4 * trial.window)]
        self._next = itertools.cycle(ring).__next__
        self._memory = self._next()

    def connect(self, peer: str) -> None:
        """Connect the sender's socket; the receiver's is bound."""
        if self._leads:
            return
        try:
            self._socket.connect(peer)
        except zmq.ZMQError as error:
            raise TransportError(f"ZMQ cannot connect to {peer!r}: {error}") from error

    def send(self, word: int) -> bool:
        """Fill the next buffer of the ring; ZMQ waits for room in its queue."""
        fill(self._memory, word)
        try:
            self._socket.send(self._memory, copy=False)
        except zmq.Again:
            return False
        self._memory = self._next()
        return True

    def receive(self, into: memoryview | None) -> memoryview | None:
        """Receive ZMQ's frame, and lend it or copy it once."""
        try:
            self._socket.recv()  # The sender's identity.
        except zmq.Again:
            return None
        memory = self._socket.recv(copy=False).buffer
        if into is None:
            return memory
        into[:] = memory
        return into

    def flush(self) -> bool:
        """Do nothing: ZMQ's own thread sends its messages while the socket is open."""
        return True

    def close(self) -> None:
        """Discard the messages that ZMQ still holds."""
        self._context.destroy(linger=0)
