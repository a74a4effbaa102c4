"""Traces of a run on disk: request, answer, and layout of the spans.

A process that wants a trace holds the lock of ``RUN/trace/`` and makes a directory with a request there. The
root of the run finds it, and writes the workers' spans and then a result beside it. The requesting process
removes the directory at the end. Only the user of a run can write there, so no other user can make a request.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tianji_cli.errors import TianjiError, UsageError, describe
from tianji_cli.files.directories import OPEN
from tianji_cli.files.regular import MOST_DOCUMENT_BYTES, open_regular, read_regular
from tianji_cli.files.rundir import TRACE, RunDirectory, write_whole

WHAT: Final = (
    "turn",
    "act",
    "step",
    "push",
    "adopt",
    "claim",
    "draw",
    "scatter",
    "update",
    "publish",
    "save",
    "sleep",
    "wait for credit",
)
"""Activities of a role; a span contains an index into this table."""

IDLE: Final = ("sleep", "wait for credit")
"""Activities in which a role does nothing."""

SPAN: Final = np.dtype([("began_s", "<f8"), ("ended_s", "<f8"), ("role", "<u2"), ("what", "<u2")])
"""Start and end by ``time.monotonic`` of the worker's host, index of the role in its process, activity."""

Spans = npt.NDArray[np.void]
"""``[N]`` of ``SPAN``."""

MOST_S: Final = 600.0
"""Most seconds of a trace."""

_REQUEST: Final = "request.json"
_RESULT: Final = "result.json"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TraceRequest(_Document):
    """A request to the root."""

    seconds: Annotated[float, Field(gt=0, le=MOST_S)]


class TracedProcess(_Document):
    """A process that was to be traced.

    Attributes:
        roles: names of its roles, in their order, such as ``actor 3``.
        missing: reason why there are no spans of it; empty if there are.
        began_s: start of its measurement, and ``ended_s`` the end, by its own clock.
        dropped: number of its oldest spans that had no room any more.
        offset_s: offset to be added to its clock to get the root's.
        uncertainty_s: possible error of the offset; 0 on the root's host, which has one clock.
    """

    rank: int
    title: str
    roles: tuple[str, ...]
    host: str
    cores: tuple[int, ...]
    missing: str = ""
    began_s: float = 0.0
    ended_s: float = 0.0
    dropped: int = 0
    offset_s: float = 0.0
    uncertainty_s: float = 0.0


class TraceResult(_Document):
    """The answer to a request; ``began_s`` and ``ended_s`` bound the window, by the root's clock."""

    began_s: float
    ended_s: float
    processes: tuple[TracedProcess, ...]


@dataclass(frozen=True)
class TracePlace:
    """The directory of one trace, requested or complete."""

    path: Path

    @property
    def is_taken(self) -> bool:
        """Whether the root has taken the request: the trace goes on."""
        return not (self.path / _REQUEST).exists()

    @property
    def is_there(self) -> bool:
        """Whether neither the root nor the requesting process has given the trace up."""
        return self.path.is_dir()

    def give_up(self) -> None:
        """Remove the directory, which tells the other side; the next request removes leftovers."""
        shutil.rmtree(self.path, ignore_errors=True)

    def read_result(self) -> TraceResult | None:
        """Read the result; None until it is there.

        Raises:
            TianjiError: it cannot be read.
        """
        result = self.path / _RESULT
        try:
            return TraceResult.model_validate_json(read_regular(result, MOST_DOCUMENT_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as cause:
            raise TianjiError(f"{result} cannot be read: {describe(cause)}") from cause

    def read_spans(self, rank: int) -> Spans:
        """Read the spans of a process, in the order in which they ended.

        Raises:
            OSError, ValueError: they cannot be read.
        """
        try:
            with open(open_regular(self._spans_of(rank)), "rb") as file:
                return np.frombuffer(file.read(), SPAN)
        except FileNotFoundError:  # The process did nothing.
            return np.empty(0, SPAN)

    def append_spans(self, rank: int, spans: bytes) -> None:
        """Append spans of a process.

        Raises:
            OSError: they cannot be written.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with open(open_regular(self._spans_of(rank), flags), "ab") as file:
            file.write(spans)

    def answer(self, result: TraceResult) -> None:
        """Write the result, which tells the requesting process that the trace is complete.

        Raises:
            OSError: it cannot be written.
        """
        write_whole(self.path / _RESULT, result.model_dump_json().encode())

    def _spans_of(self, rank: int) -> Path:
        return self.path / f"{rank}.spans"


@contextlib.contextmanager
def asked_for(run: RunDirectory, seconds: float) -> Iterator[TracePlace]:
    """Ask the root of a run for a trace; its files are removed at the end of the ``with`` statement.

    Raises:
        UsageError: the run is being traced already.
        OSError: the request cannot be written.
    """
    mailbox = run.path / TRACE
    with _held(run, mailbox):
        for leftover in mailbox.iterdir():  # From a process that was killed, and its lock with it.
            shutil.rmtree(leftover)
        place = TracePlace(mailbox / secrets.token_hex(8))
        try:
            place.path.mkdir()
            write_whole(place.path / _REQUEST, TraceRequest(seconds=seconds).model_dump_json().encode())
            yield place
        finally:
            # The root may write a last piece meanwhile; the next request removes it.
            shutil.rmtree(mailbox, ignore_errors=True)


@contextlib.contextmanager
def _held(run: RunDirectory, mailbox: Path) -> Iterator[None]:
    """Keep other processes from making requests; the kernel frees the lock when the process ends."""
    while True:
        mailbox.mkdir(0o700, exist_ok=True)  # Any user who can write there can make a request.
        descriptor = os.open(mailbox, OPEN)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"{run.path} is being traced by another process: wait until that is done"
                raise UsageError(message) from None
            except OSError:  # Some network file systems have no locks; then no process can be kept out.
                pass
            if mailbox.is_dir():  # The holder before this one may have removed it.
                yield
                return
        finally:
            os.close(descriptor)


def take_request(run: RunDirectory) -> tuple[TracePlace, TraceRequest] | None:
    """Take the pending request, once; None if there is none.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    try:
        found = next((run.path / TRACE).glob(f"*/{_REQUEST}"), None)
        if found is None:
            return None
        document = read_regular(found, MOST_DOCUMENT_BYTES)
        found.unlink()
    except FileNotFoundError:  # The request was withdrawn just now.
        return None
    try:
        return TracePlace(found.parent), TraceRequest.model_validate_json(document)
    except ValidationError as cause:
        raise ValueError(f"{found} is no request for a trace") from cause
