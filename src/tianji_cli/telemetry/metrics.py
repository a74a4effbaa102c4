"""``metrics.jsonl`` and TensorBoard events: every snapshot of a run, written as it comes, and read back.

Training is worth more than its metrics: when they cannot be written (the disk is full), the run goes on,
the user is told once, and the rows that are missing are counted. Events are written in this thread and
without TensorFlow or torch. Rows become the snapshots that they were, and ``summary.json`` the summary, while
the run writes them: a row that is damaged or not whole yet is passed over, the next one is a second away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import count
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from tianji_cli.errors import TianjiError, one_line, os_errors_as, printable
from tianji_cli.files.regular import open_regular, parse_json, read_json
from tianji_cli.files.rundir import RunDirectory, RunDirectoryError
from tianji_cli.telemetry.snapshot import METRICS, SPREADS, SUMMARY_SCHEMA, Snapshot, Summary, read_back


class InUseError(TianjiError):
    """Another process has the file open for appending."""


class AppendOnlyFile:
    """Owns one descriptor and appends records to it, unbuffered.

    Raises:
        InUseError: another process appends to it.
        OSError: it cannot be opened, is no regular file, or is a link.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            os.close(self._descriptor)
            raise InUseError(str(path)) from cause
        except OSError:
            # Some network file systems have no locks; then there is nothing to be learnt about other writers.
            pass
        self._size = os.fstat(self._descriptor).st_size

    def append(self, record: bytes) -> None:
        """Append a whole record.

        Raises:
            OSError: it does not fit; the file is as it was before.
        """
        try:
            written = os.write(self._descriptor, record)
            if written < len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(record)

    def end_of_last(self, end: bytes) -> int:
        """Position behind the last ``end`` of a record: what is there was left by a writer that was killed.

        Raises:
            OSError: the file cannot be read.
        """
        kept, step = self._size, 1 << 16
        while kept > 0:
            start = max(0, kept - step)
            found = os.pread(self._descriptor, kept - start, start).rfind(end)
            if found >= 0:
                return start + found + len(end)
            kept = start
        return 0

    def cut(self, position: int) -> None:
        """Cut off what lies behind a position.

        Raises:
            OSError: the file cannot be cut.
        """
        if position < self._size:
            os.ftruncate(self._descriptor, position)
            self._size = position

    def close(self) -> None:
        """Close the file. Harmless when repeated."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def has_writer(path: Path) -> bool | None:
    """Whether a living process has a file open for appending; None if its file system has no locks.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    descriptor = open_regular(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as cause:
        return True if isinstance(cause, BlockingIOError) else None
    finally:
        os.close(descriptor)
    return False


def writer_here(path: Path) -> int | None:
    """Find the process on this host that has a file open for appending, whether there are locks or not.

    Returns:
        Its number; None if there is none, or none whose files this user may look at.

    Raises:
        OSError: there is no such file.
    """
    wanted = path.stat()
    found = []
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError, ValueError):  # Processes end, and others' are not to be looked at.
            if os.path.samestat(opened.stat(), wanted):
                about = Path(f"{opened.parent}info", opened.name).read_text(encoding="ascii")
                flags = re.search(r"^flags:\s*([0-7]+)$", about, re.MULTILINE)
                if flags is not None and int(flags[1], 8) & os.O_APPEND:
                    found.append(int(opened.parts[2]))
    return min(found, default=None)


class EventFile:
    """Owns one event file; a resumed run adds a second one beside it, as TensorBoard expects.

    Args:
        directory: that TensorBoard is pointed at.
        hyperparameters: numbers and texts by name.
        resumed_at: step from which TensorBoard is to forget what earlier files say.

    Raises:
        OSError: the file cannot be made or written.
    """

    def __init__(
        self, directory: Path, hyperparameters: Mapping[str, Any], resumed_at: int | None = None
    ) -> None:
        # Importing protobuf and the CRC costs a tenth of a second, which only a run that starts should pay.
        from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]  # noqa: PLC0415
        from tensorboard.compat.tensorflow_stub import pywrap_tensorflow  # type: ignore[import-untyped]  # noqa: PLC0415
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # type: ignore[import-untyped]  # noqa: PLC0415

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._crc = pywrap_tensorflow.masked_crc32c
        now = time.time()
        # TensorBoard reads files in the order of their names and takes those with "tfevents" in them.
        path = directory / f"events.out.tfevents.{now:017.6f}.{socket.gethostname()}"
        self._file = AppendOnlyFile(path)
        try:
            self._write(self._event(wall_time=now, file_version="brain.Event:2"))
            if hyperparameters:
                self._write(self._event(wall_time=now, summary=hparams_pb(dict(hyperparameters))))
            if resumed_at is not None:
                start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
                self._write(self._event(wall_time=now, step=resumed_at, session_log=start))
        except OSError:
            path.unlink()
            raise

    def append(self, snapshot: Snapshot) -> None:
        """Append the scalars of one snapshot, over environment steps.

        Raises:
            OSError: they do not fit.
        """
        self.append_scalars(snapshot.learner.env_steps, scalars(snapshot))

    def append_scalars(self, env_steps: int, tagged: Iterable[tuple[str, float]]) -> None:
        """Append scalars by their tags.

        Raises:
            OSError: they do not fit.
        """
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in tagged]
        self._write(self._event(wall_time=time.time(), step=env_steps, summary=self._summary(value=values)))

    def close(self) -> None:
        """Close the file. Harmless when repeated."""
        self._file.close()

    def _write(self, event: Any) -> None:
        """Frame one event as a TFRecord: length, its CRC, data, its CRC."""
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        self._file.append(
            length + struct.pack("<I", self._crc(length)) + data + struct.pack("<I", self._crc(data))
        )


def scalars(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    """List what is known in a snapshot as (TensorBoard tag, value)."""
    for metric in METRICS:
        if metric.tag.startswith("replay/") and snapshot.buffer.replay is None:
            continue
        value = metric.value(snapshot) if metric.tag else None
        if is_dataclass(value):
            value = vars(value)
        if isinstance(value, Mapping):
            yield from ((f"{metric.tag}/{name}", one) for name, one in value.items())
        elif value is not None:
            yield metric.tag, value
    for group in snapshot.by_group:
        if group.mean_100 is not None:
            yield f"return/mean_100_of_group_{group.group}", group.mean_100
    for kind in dict.fromkeys(role.role for role in snapshot.roles):
        busy = [role.busy for role in snapshot.roles if role.role == kind and role.busy is not None]
        if busy:
            yield f"busy/{kind}", statistics.median(busy)


def evaluation_scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """List what is known of an evaluation while training by its TensorBoard tags."""
    names = ("mean", "std", "win_rate", "length")
    return {f"evaluation/{name}": row[name] for name in names if row.get(name) is not None}


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Go through all of a JSON document that is no table, with dotted names."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class MetricsWriter:
    """Owns the metric files of one run.

    Args:
        run: where they go. Rows are appended to those that a resumed run already has.
        warn: told, once, that rows cannot be written and why.
        resumed_at: environment steps that a resumed run begins with; what went past them is superseded.
        hyperparameters: with dotted names, for TensorBoard; None: it gets nothing at all.

    Attributes:
        position: where the rows of this session begin, in bytes.

    Raises:
        RunDirectoryError: the files cannot be opened, or another process is writing them.
    """

    def __init__(
        self,
        run: RunDirectory,
        warn: Callable[[str], None],
        resumed_at: int | None = None,
        hyperparameters: Mapping[str, Any] | None = MappingProxyType({}),
    ) -> None:
        self._warn = warn
        self.lost_rows = 0
        self.last_error = ""
        self._written_roles: list[dict[str, Any]] | None = None
        self._run, self._resumed_at, self._hyperparameters = run, resumed_at, hyperparameters
        self._events: EventFile | None = None
        try:
            self._rows = AppendOnlyFile(run.metrics)
            self.position = self._rows.end_of_last(b"\n")
        except InUseError as cause:
            raise RunDirectoryError(
                f"{run.path} belongs to a run that is still going; stop it first or start a run of its own"
            ) from cause
        except OSError as cause:
            raise RunDirectoryError(f"cannot write metrics to {run.path}: {cause.strerror}") from cause
        if resumed_at is None:
            self.begin()

    def begin(self) -> None:
        """Open TensorBoard's file if it gets anything, then cut off a torn row: once a session begins.

        Raises:
            RunDirectoryError: they cannot be written.
        """
        with os_errors_as(RunDirectoryError, f"cannot write metrics to {self._run.path}"):
            if self._hyperparameters is not None:
                self._events = EventFile(self._run.path, self._hyperparameters, self._resumed_at)
            self._rows.cut(self.position)

    def write(self, snapshot: Snapshot) -> None:
        """Write one snapshot to both files, or count it as lost.

        Who carries which role, where and how, is in a row only if it has changed: rows are many, and stay
        short however many actors there are.
        """
        roles = snapshot.standing()
        row = snapshot.metrics() | {"roles": None if roles == self._written_roles else roles}
        try:
            self._rows.append(json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n")
            self._written_roles = roles
            if self._events is not None:
                self._events.append(snapshot)
        except OSError as cause:
            self._lose(cause)

    def write_evaluation(self, row: Mapping[str, Any]) -> None:
        """Write an evaluation while training to both files, or count it as lost."""
        try:
            self._rows.append(json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n")
            if self._events is not None:
                self._events.append_scalars(row["env_steps"], evaluation_scalars(row).items())
        except OSError as cause:
            self._lose(cause)

    def _lose(self, cause: OSError) -> None:
        self.last_error = cause.strerror or str(cause)
        if not self.lost_rows:
            self._warn(f"metrics cannot be written ({self.last_error}); the run goes on without them")
        self.lost_rows += 1

    def close(self) -> None:
        """Close both files. Harmless when repeated."""
        self._rows.close()
        if self._events is not None:
            self._events.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the snapshots of ``metrics.jsonl`` as one history; see ``read_history``."""
    return read_history(path)[0]


def read_history(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read ``metrics.jsonl`` as one history: snapshots, and evaluations while training.

    A run that was resumed from a checkpoint has rows from before the interruption that lie past the
    checkpoint; the resumed run went through those steps anew, so they are left out.

    Raises:
        OSError: it cannot be read.
        ValueError: a line is no JSON object; says which.
    """
    rows: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    for row in _parsed_lines(path):
        if row.get("kind") == EVALUATION:  # Its policy is older than the last snapshot.
            evaluations.append(row)
            continue
        if rows and rows[-1]["env_steps"] > row["env_steps"]:
            while rows and rows[-1]["env_steps"] > row["env_steps"]:
                rows.pop()
            evaluations = [one for one in evaluations if one["env_steps"] <= row["env_steps"]]
        rows.append(row)
    return rows, evaluations


def _parsed_lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in whole_lines(path, MOST_METRICS_BYTES):
        try:
            row = parse_json(line)
            of_evaluation = isinstance(row, dict) and row.get("kind") == EVALUATION
            (EvaluationRow if of_evaluation else Row).model_validate(row)
        except ValueError as cause:
            said = first_problem(cause) if isinstance(cause, ValidationError) else cause
            raise ValueError(f"{path}, line {number}: not a JSON object of a run's ({said})") from cause
        yield row


def first_problem(cause: ValidationError) -> str:
    """Say in a line what is wrong with a document, and where in it."""
    wrong = cause.errors()[0]
    where = ".".join(map(str, wrong["loc"]))
    return one_line(f"{where}: {wrong['msg']}" if where else wrong["msg"])


def whole_lines(path: Path, most_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Read the rows of a file that have their end, with their numbers, which begin at 1.

    Args:
        most_bytes: of a file with more only every second snapshot, or third, is read, so that they have
            about so many; besides them the first one, the last, and those that name roles.

    Raises:
        OSError: it cannot be read.
        ValueError: a line is longer than any row.
    """
    with open(open_regular(path), "rb") as file:
        every = 1 + os.fstat(file.fileno()).st_size // most_bytes
        left_out = b""
        for number in count(1):
            line = file.readline(MOST_ROW_BYTES)
            if len(line) == MOST_ROW_BYTES:
                raise ValueError(f"it has a line of more than {MOST_ROW_BYTES} bytes")
            if not line.endswith(b"\n"):
                # It is the end, or the writer was killed in the middle of it, or is still writing it.
                if left_out:
                    yield number - 1, left_out
                return
            is_kept = number % every == 0 or number == 1 or is_evaluation(line) or ROLES in line
            left_out = b"" if is_kept else line
            if is_kept:
                yield number, line


ROLES: Final = b'"roles":['
"""Part of a row that names roles: in most they are as in the rows before."""

EVALUATION: Final = "evaluation"
"""``kind`` of a row that is an evaluation while training; a snapshot has none."""

BLOCK: Final = 1 << 20
"""Bytes that are read at once: the metrics of a run of days are larger than what is worth holding."""

MOST_ROW_BYTES: Final = 16 << 20
"""A line that is longer is no row: one that names the roles of ten thousand processes has 2 MB."""

MOST_METRICS_BYTES: Final = 2 << 30
"""Ten days of a row a second have about half of it, of a few roles; it takes ten times as much memory."""

Roles = Sequence[Mapping[str, Any]]
Parsed = TypeVar("Parsed")


class Row(BaseModel):
    """A row of ``metrics.jsonl``: what has to be known of it, and everything else as it is.

    Attributes:
        elapsed_s: seconds since the start of its session.
        env_steps: environment steps so far, over all sessions.
        updates: gradient updates so far, likewise.
        busy: share of the last interval that each role worked, by its name.
        memory: bytes that the process of each role has taken for itself, likewise.
        stop: where the run stops, by rule.
        reached: where it is now.
        reached_in_s: when it will be there.
        roles: who carries which role, where and how; None if it is as in the rows before.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    elapsed_s: float
    env_steps: int = 0
    updates: int
    mean_100: float | None
    best_mean_100: float | None = None
    busy: dict[str, float | None] = {}
    memory: dict[str, int | None] = {}
    stop: dict[str, float] = {}
    reached: dict[str, float | None] = {}
    reached_in_s: dict[str, float | None] = {}
    roles: list[dict[str, Any]] | None = None

    def snapshot(self, roles: Roles) -> Snapshot:
        """Make the snapshot that was written.

        Args:
            roles: as the last row that names them names them.

        Raises:
            ValueError: the row is damaged, or of another version of this program.
        """
        stop = [
            {
                "rule": rule,
                "value": self.reached.get(rule),
                "target": target,
                "eta_s": self.reached_in_s.get(rule),
            }
            for rule, target in self.stop.items()
        ]
        by_name = [(f"{role.get('role')}-{role.get('rank')}", role) for role in roles]
        states = [
            {**role, "busy": self.busy.get(name), "memory": self.memory.get(name)} for name, role in by_name
        ]
        values = read_back(self.model_dump(), attrgetter("row"))
        return _SNAPSHOT.validate_python(_printable(values | {"stop": stop, "roles": states}))


class MetricsFollower(Generic[Parsed]):
    """Owns the place in ``metrics.jsonl`` up to which it was read.

    Args:
        parse: reads a line; None passes it over.
        position: where to begin, in bytes.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], Parsed | None], position: int = 0) -> None:
        self._path = path
        self._parse = parse
        self._position = position
        self._file: int | None = None
        self._in_long_line = False

    def rows(self) -> Iterator[Parsed]:
        """Read the rows that have come since the last call.

        Only whole lines count; those that are no rows, or longer than any, are passed over. A file that is
        another one than before, or has become shorter, is read from its beginning.

        Raises:
            TianjiError: the file is there and cannot be read.
        """
        try:
            yield from self._new_rows()
        except FileNotFoundError:
            return
        except OSError as cause:
            raise TianjiError(f"cannot read {self._path}: {cause.strerror}") from cause

    def _new_rows(self) -> Iterator[Parsed]:
        # Opened anew each time: network file systems only then look for what other hosts have written.
        with open(open_regular(self._path), "rb") as file:
            status = os.fstat(file.fileno())
            if self._file not in {None, status.st_ino} or status.st_size < self._position:
                self._position, self._in_long_line = 0, False
            self._file = status.st_ino
            file.seek(self._position)
            rest = b""
            while block := file.read(BLOCK):
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    self._position += len(line) + 1
                    row = None if self._in_long_line else self._parse(line)
                    self._in_long_line = False
                    if row is not None:
                        yield row
                if len(rest) > MOST_ROW_BYTES:
                    self._position, self._in_long_line, rest = self._position + len(rest), True, b""


def read_summary(path: Path) -> Summary | None:
    """Read ``summary.json``; None if there is none.

    Raises:
        TianjiError: it cannot be read, or is no summary.
    """
    try:
        document = _printable(read_json(path))
        if (schema := document["schema"]) != SUMMARY_SCHEMA:
            raise TianjiError(f"{path} is of schema {schema}: this version of tianji reads {SUMMARY_SCHEMA}")
        for key in SPREADS:
            if not any(value is not None for value in (document.get(key) or {}).values()):
                document[key] = None
        values = read_back(document, attrgetter("summary"))
        values["learner"]["time_to"] = document["time_to"]
        if document.get("frames") and document["env_steps"]:
            values["frames_per_step"] = document["frames"] // document["env_steps"]
        return _SUMMARY.validate_python(document | values)
    except FileNotFoundError:
        return None
    except OSError as cause:
        raise TianjiError(f"cannot read {path}: {cause.strerror}") from cause
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise TianjiError(f"{path} is no summary that this version of tianji can read") from cause


_SNAPSHOT: Final = TypeAdapter(Snapshot)
_SUMMARY: Final = TypeAdapter(Summary)


class EvaluationRow(BaseModel):
    """A row of ``metrics.jsonl`` that is an evaluation: what a chart shows of it."""

    kind: Literal["evaluation"]
    env_steps: int
    mean: float | None


def parsed_row(line: bytes) -> Row | None:
    """Read a snapshot's row; None of what is none."""
    try:
        return Row.model_validate(parse_json(line))
    except ValueError:
        return None


def parsed(line: bytes) -> Row | EvaluationRow | None:
    """Read a row, a snapshot's or an evaluation's; None of what is neither."""
    if not is_evaluation(line):
        return parsed_row(line)
    try:
        return EvaluationRow.model_validate(parse_json(line))
    except ValueError:
        return None


def is_evaluation(line: bytes) -> bool:
    """Whether a line would be an evaluation's, by how it begins."""
    return line.startswith(b'{"kind":')


def _printable(value: Any) -> Any:
    """Replace what a terminal would obey in every text of a JSON value: the run may be another user's."""
    match value:
        case str():
            return printable(value)
        case list():
            return [_printable(one) for one in value]
        case dict():
            return {_printable(key): _printable(one) for key, one in value.items()}
    return value
