"""Errors of this package, in one tree: engines raise them, and callers catch them.

    TransportError
    ├── UnknownTransportError      no engine of that name; names the nearest one
    ├── MissingExtraError          the engine's library is not installed; the message is the pip command
    ├── BrokenEngineError          the engine's library is installed and does not load; keeps the cause
    ├── MessageTooLargeError       more bytes than the channel or the engine was built for
    ├── PeerLostError              the other side is dead: messages that it had not claimed are gone
    ├── TransportMemoryError       the engine cannot get the memory that the wiring needs
    └── TransportClosedError       the endpoint was used after close()

Engines translate their library's exceptions into these and keep them as ``__cause__``.
"""


class TransportError(Exception):
    """Base of all errors that a transport raises."""


class UnknownTransportError(TransportError):
    """No engine is registered under that name."""


class MissingExtraError(TransportError):
    """The engine needs a library that is not installed."""


class BrokenEngineError(TransportError):
    """The engine's library is installed but does not load."""


class MessageTooLargeError(TransportError):
    """A message is larger than its channel, its slot or its engine allows."""


class PeerLostError(TransportError):
    """The peer on the other side of a channel is dead."""


class TransportMemoryError(TransportError):
    """The system has too little memory for a wiring (a small /dev/shm, say)."""


class TransportClosedError(TransportError):
    """An endpoint was used after it was closed."""
