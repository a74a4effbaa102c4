"""The words of the control channel: JSON objects with a ``kind``, checked when they arrive.

Worker to root: ``register``, ``report``, ``finished``, ``failed``, ``stopped``, ``terminate``.
Root to worker: ``addresses``, ``peer_lost``, ``wind_down``, ``stop``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Register(_Message):
    """A worker has built its endpoint and can be reached at ``address``."""

    kind: Literal["register"] = "register"
    rank: int
    incarnation: int
    pid: int
    address: str


class Report(_Message):
    """What a worker's roles are doing: ``roles[i]`` is the i-th role's report, ``busy_s`` its work so far."""

    kind: Literal["report"] = "report"
    rank: int
    incarnation: int
    roles: list[dict[str, Any]]
    busy_s: list[float]
    running_s: float


class Finished(_Message):
    """A role has reached its goal; ``reason`` says which."""

    kind: Literal["finished"] = "finished"
    rank: int
    reason: str


class Failed(_Message):
    """A role raised; the worker is about to end."""

    kind: Literal["failed"] = "failed"
    rank: int
    cause: str
    traceback: str


class Stopped(_Message):
    """A worker has stopped in order; its last report."""

    kind: Literal["stopped"] = "stopped"
    report: Report


class Terminate(_Message):
    """A worker was sent SIGTERM and passes it on: it means the whole job."""

    kind: Literal["terminate"] = "terminate"
    rank: int


class Addresses(_Message):
    """Where the peers are; also sent again when one was restarted."""

    kind: Literal["addresses"] = "addresses"
    addresses: dict[int, str]


class PeerLost(_Message):
    """A rank is dead."""

    kind: Literal["peer_lost"] = "peer_lost"
    rank: int


class WindDown(_Message):
    """Training is over and actors are stopping: make no more updates, receive what still comes."""

    kind: Literal["wind_down"] = "wind_down"


class Stop(_Message):
    """Stop in order, and say so."""

    kind: Literal["stop"] = "stop"


T = TypeVar("T")

FromWorker = Register | Report | Finished | Failed | Stopped | Terminate
ToWorker = Addresses | PeerLost | WindDown | Stop

_FROM_WORKER: TypeAdapter[FromWorker] = TypeAdapter(Annotated[FromWorker, Field(discriminator="kind")])
_TO_WORKER: TypeAdapter[ToWorker] = TypeAdapter(Annotated[ToWorker, Field(discriminator="kind")])


class MalformedMessageError(Exception):
    """Bytes on the control channel are no message of its protocol."""


def encode(message: FromWorker | ToWorker) -> bytes:
    """Write a message as JSON. Not finite numbers become null, which JSON can hold."""
    return message.model_dump_json().encode()


def decode_from_worker(data: bytes, ranks: int) -> FromWorker:
    """Read what a worker sent.

    Args:
        data: the message.
        ranks: how many processes the job has.

    Raises:
        MalformedMessageError: it is none of the messages, or from no rank of the job.
    """
    message = _decode(_FROM_WORKER, data)
    rank = message.report.rank if isinstance(message, Stopped) else message.rank
    if not 0 <= rank < ranks:
        raise MalformedMessageError(f"there is no rank {rank}")
    return message


def decode_to_worker(data: bytes) -> ToWorker:
    """Read what the root sent.

    Raises:
        MalformedMessageError: it is none of the messages.
    """
    return _decode(_TO_WORKER, data)


def _decode(adapter: TypeAdapter[T], data: bytes) -> T:
    try:
        return adapter.validate_json(data)
    except (ValidationError, ValueError) as cause:
        raise MalformedMessageError(str(cause)) from cause
