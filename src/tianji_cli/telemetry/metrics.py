"""``metrics.jsonl`` and TensorBoard events: every snapshot of a run, written as it comes, and read back.

Training is worth more than its metrics: when they cannot be written (the disk is full), the run goes on,
tells the user once, and counts the missing rows. Events are written in this thread and without TensorFlow or
torch. Readers turn rows back into snapshots, and ``summary.json`` into the summary, while the run writes
them: they skip a row that is damaged or incomplete, since the next one is a second away.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tianji_cli.errors import TianjiError, one_line, os_errors_as, printable
from tianji_cli.files.regular import open_regular, parse_json, read_json
from tianji_cli.files.rundir import RunDirectory, RunDirectoryError
from tianji_cli.telemetry.snapshot import (
    METRICS,
    SPREADS,
    SUMMARY_SCHEMA,
    Snapshot,
    Summary,
    in_rows,
    read_back,
    summary_with_paths,
    with_paths,
)


class InUseError(TianjiError):
    """Another process appends to the file."""


class AppendOnlyFile:
    """Owns one descriptor and appends records to it, unbuffered.

    Raises:
        InUseError: another process appends to the file.
        OSError: the file cannot be opened, is no regular file, or is a link.
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
            # Some network file systems have no locks; other writers cannot be detected there.
            pass
        self._size = os.fstat(self._descriptor).st_size

    def append(self, record: bytes) -> None:
        """Append a whole record.

        Raises:
            OSError: the record does not fit; the file is as it was before.
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
        """Return the position behind the last ``end`` of a record; a killed writer left the bytes after it.

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
        """Cut off the bytes behind a position.

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
        OSError: the file cannot be opened, or is no regular file.
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
    """Find the process on this host that has a file open for appending, with locks or without.

    Returns:
        Its process id; None if there is none, or none whose files this user may look at.

    Raises:
        OSError: there is no such file.
    """
    wanted = path.stat()
    found = []
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError, ValueError):  # Processes end, and other users' files are hidden.
            if os.path.samestat(opened.stat(), wanted):
                about = Path(f"{opened.parent}info", opened.name).read_text(encoding="ascii")
                flags = re.search(r"^flags:\s*([0-7]+)$", about, re.MULTILINE)
                if flags is not None and int(flags[1], 8) & os.O_APPEND:
                    found.append(int(opened.parts[2]))
    return min(found, default=None)


def load_tensorboard() -> tuple[Any, Any, Any, Any]:
    """Import TensorBoard's events, summaries, hyperparameters and CRC, which takes 0.2 s."""
    from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]  # noqa: PLC0415
    from tensorboard.compat.tensorflow_stub import pywrap_tensorflow  # type: ignore[import-untyped]  # noqa: PLC0415
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # type: ignore[import-untyped]  # noqa: PLC0415

    return event_pb2, summary_pb2.Summary, hparams_pb, pywrap_tensorflow.masked_crc32c


class EventFile:
    """Owns one event file; a resumed run adds a second one beside it, as TensorBoard expects.

    Args:
        directory: the directory that TensorBoard reads.
        hyperparameters: numbers and texts by name.
        resumed_at: step from which TensorBoard drops the events of earlier files.

    Raises:
        OSError: the file cannot be made or written.
    """

    def __init__(
        self, directory: Path, hyperparameters: Mapping[str, Any], resumed_at: int | None = None
    ) -> None:
        events, self._summary, hparams_pb, self._crc = load_tensorboard()
        self._event = events.Event
        now = time.time()
        # TensorBoard reads files in the order of their names and takes those with "tfevents" in them.
        path = directory / f"events.out.tfevents.{now:017.6f}.{socket.gethostname()}"
        self._file = AppendOnlyFile(path)
        try:
            self._write(self._event(wall_time=now, file_version="brain.Event:2"))
            if hyperparameters:
                self._write(self._event(wall_time=now, summary=hparams_pb(dict(hyperparameters))))
            if resumed_at is not None:
                start = events.SessionLog(status=events.SessionLog.START)
                self._write(self._event(wall_time=now, step=resumed_at, session_log=start))
        except OSError:
            path.unlink()
            raise

    def append(self, env_steps: int, tagged: Iterable[tuple[str, float]]) -> None:
        """Append scalars by their tags, over environment steps.

        Raises:
            OSError: the file cannot take them.
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
    """Yield the known numbers of a snapshot as (TensorBoard tag, value)."""
    for metric in METRICS:
        if metric.path == "stale_priorities" and snapshot.buffer.replay is None:
            continue
        value, tag = metric.value(snapshot) if metric.charted else None, metric.path.replace(".", "/")
        if is_dataclass(value):
            value = vars(value)
        elif isinstance(value, tuple):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            yield from ((f"{tag}/{name}", one) for name, one in value.items())
        elif value is not None:
            yield tag, value
    for group in snapshot.by_group:
        if group.mean_100 is not None:
            yield f"by_group/{group.group}/mean_100", group.mean_100
    for alike in in_rows(snapshot.roles, 0):
        if busy := [role.busy for role in alike if role.busy is not None]:
            yield f"busy/{alike[0].role}", statistics.median(busy)


def evaluation_scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the known numbers of an evaluation made during training, by TensorBoard tag."""
    names = ("mean", "std", "win_rate", "length")
    return {f"evaluated/{name}": row[name] for name in names if row.get(name) is not None}


class MetricsWriter:
    """Owns the metric files of one run.

    Args:
        run: directory of the files. Rows are appended to those that a resumed run already has.
        warn: called once, with the reason, when rows cannot be written.
        resumed_at: environment steps that a resumed run begins with; rows past them are superseded.
        hyperparameters: values with dotted names, for TensorBoard; None writes no TensorBoard events.

    Attributes:
        position: byte position where the rows of this session begin.

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
        """Begin a session: open TensorBoard's file if it gets events, then cut off a torn row.

        Raises:
            RunDirectoryError: the files cannot be written.
        """
        with os_errors_as(RunDirectoryError, f"cannot write metrics to {self._run.path}"):
            if self._hyperparameters is not None:
                self._events = EventFile(self._run.path, self._hyperparameters, self._resumed_at)
            self._rows.cut(self.position)

    def write(self, snapshot: Snapshot) -> None:
        """Write one snapshot to both files, or count it as lost.

        A row names the roles, with their processes and states, only if these have changed: rows are many, and
        stay short however many actors there are.
        """
        roles = snapshot.standing()
        row = snapshot.metrics() | {"roles": None if roles == self._written_roles else roles}
        self._write(row, scalars(snapshot))

    def write_evaluation(self, row: Mapping[str, Any]) -> None:
        """Write an evaluation made during training to both files, or count it as lost."""
        self._write(row, evaluation_scalars(row).items())

    def _write(self, row: Mapping[str, Any], tagged: Iterable[tuple[str, float]]) -> None:
        try:
            self._rows.append(json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n")
            if row.get("roles") is not None:
                self._written_roles = row["roles"]
            if self._events is not None:
                self._events.append(row["env_steps"], tagged)
        except OSError as cause:
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
    """Read ``metrics.jsonl`` as one history: snapshots, and evaluations made during training.

    A run that was resumed from a checkpoint has rows from before the interruption that lie past the
    checkpoint; the resumed run repeats those steps, so the old rows are left out.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is no JSON object; the message says which.
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
            row = with_paths(parse_json(line))
            of_evaluation = isinstance(row, dict) and row.get("kind") == EVALUATION
            (EvaluationRow if of_evaluation else Row).model_validate(row)
        except ValueError as cause:
            problem = first_problem(cause) if isinstance(cause, ValidationError) else cause
            raise ValueError(f"{path}, line {number}: not a JSON object of a run's ({problem})") from cause
        yield row


def first_problem(cause: ValidationError) -> str:
    """Describe the first problem of a document in one line, with its place in the document."""
    wrong = cause.errors()[0]
    where = ".".join(map(str, wrong["loc"]))
    return one_line(f"{where}: {wrong['msg']}" if where else wrong["msg"])


def whole_lines(path: Path, most_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the complete rows of a file with their numbers, which begin at 1.

    Args:
        most_bytes: of a larger file only every second snapshot, or third, is read, so that about so many
            bytes remain; the first snapshot, the last, and those that name roles are always read.

    Raises:
        OSError: the file cannot be read.
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
                # The file ends here, or a writer was killed in the line, or is still writing it.
                if left_out:
                    yield number - 1, left_out
                return
            is_kept = number % every == 0 or number == 1 or is_evaluation(line) or ROLES in line
            left_out = b"" if is_kept else line
            if is_kept:
                yield number, line


ROLES: Final = b'"roles":['
"""Part of a row that names roles; most rows have null there, since the roles are unchanged."""

EVALUATION: Final = "evaluation"
"""``kind`` of a row that is an evaluation made during training; a snapshot has no ``kind``."""

BLOCK: Final = 1 << 20
"""Bytes read at once: the metrics of a run of days are too large to be held in memory."""

MOST_ROW_BYTES: Final = 16 << 20
"""Most bytes of a row; a longer line is no row. A row with the roles of ten thousand processes has 2 MB."""

MOST_METRICS_BYTES: Final = 2 << 30
"""Bytes above which rows are left out. Ten days of a row a second with a few roles have about half of these;
in memory they take ten times as much.
"""


class Row(BaseModel):
    """A row of ``metrics.jsonl``: the fields that readers need, and all others unchecked.

    Attributes:
        wall_s: seconds since the start of its session.
        env_steps: environment steps so far, over all sessions.
        updates: gradient updates so far, likewise.
        busy: busy share of each role in the last interval, by the role's name.
        memory: bytes of own memory of each role's process, likewise.
        stop: targets of the stop rules.
        reached: present values of the stop rules.
        reached_in_s: seconds until each stop rule holds.
        roles: the roles with their processes and states; None if they are as in the rows before, and no
            ``MetricsFollower`` has read these.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    wall_s: float
    env_steps: int = 0
    updates: int
    mean_100: float | None = Field(alias="returns.mean_100")
    best_mean_100: float | None = Field(None, alias="returns.best_mean_100")
    busy: dict[str, float | None] = {}
    memory: dict[str, int | None] = {}
    stop: dict[str, float] = {}
    reached: dict[str, float | None] = {}
    reached_in_s: dict[str, float | None] = {}
    roles: list[dict[str, Any]] | None = None

    @property
    def root_host(self) -> str | None:
        """Host of the root; None if the row does not name it."""
        return next((str(role.get("host")) for role in self.roles or () if role.get("role") == "root"), None)

    def snapshot(self) -> Snapshot:
        """Rebuild the snapshot that was written.

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
        by_name = [(f"{role.get('role')}-{role.get('rank')}", role) for role in self.roles or ()]
        states = [
            {**role, "busy": self.busy.get(name), "memory": self.memory.get(name)} for name, role in by_name
        ]
        values = read_back(self.model_dump(by_alias=True))
        return _SNAPSHOT.validate_python(_printable(values | {"stop": stop, "roles": states}))


class EvaluationRow(BaseModel):
    """A row of ``metrics.jsonl`` that is an evaluation: the fields that all readers need, and all others."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: Literal["evaluation"]
    env_steps: int
    mean: float | None


def parsed(line: bytes) -> Row | EvaluationRow | None:
    """Parse the row of a snapshot or of an evaluation; None if the line is neither."""
    kind: type[Row | EvaluationRow] = EvaluationRow if is_evaluation(line) else Row
    try:
        return kind.model_validate(with_paths(parse_json(line)))
    except ValueError:
        return None


def is_evaluation(line: bytes) -> bool:
    """Whether a line would be the row of an evaluation, judged by its first bytes."""
    return line.startswith(b'{"kind":')


class MetricsFollower:
    """Owns the position in ``metrics.jsonl`` up to which it was read, and the roles that it has read of.

    Args:
        position: first byte to read.
    """

    def __init__(self, path: Path, position: int = 0) -> None:
        self._path = path
        self._position = position
        self._roles: list[dict[str, Any]] | None = None
        self._file: int | None = None
        self._in_long_line = False

    def rows(self) -> Iterator[Row | EvaluationRow]:
        """Yield the rows that were written since the last call; each row of a snapshot has its roles.

        Only complete lines count; lines that are no rows, or longer than any, are skipped. A file that was
        replaced or has become shorter is read from its beginning.

        Raises:
            TianjiError: the file is there and cannot be read.
        """
        try:
            yield from self._new_rows()
        except FileNotFoundError:
            return
        except OSError as cause:
            raise TianjiError(f"cannot read {self._path}: {cause.strerror}") from cause

    def _new_rows(self) -> Iterator[Row | EvaluationRow]:
        # Opened anew each time: only then do network file systems show what other hosts have written.
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
                    row = None if self._in_long_line else parsed(line)
                    self._in_long_line = False
                    if isinstance(row, Row):
                        self._roles = self._roles if row.roles is None else row.roles
                        row = row.model_copy(update={"roles": self._roles})
                    if row is not None:
                        yield row
                if len(rest) > MOST_ROW_BYTES:
                    self._position, self._in_long_line, rest = self._position + len(rest), True, b""


def read_summary(path: Path) -> Summary | None:
    """Read ``summary.json``; None if there is none.

    Raises:
        TianjiError: the file cannot be read, or is no summary.
    """
    try:
        document = _printable(read_json(path))
        if (schema := document["schema"]) not in {1, SUMMARY_SCHEMA}:
            raise TianjiError(f"{path} is of schema {schema}: this version of tianji reads {SUMMARY_SCHEMA}")
        document = summary_with_paths(document)
        for key in SPREADS:
            if not any(value is not None for value in (document.get(key) or {}).values()):
                document[key] = None
        values = read_back(document) | {"session": document["session"]["number"]}
        values["learner"]["time_to"] = document["time_to"]
        return _SUMMARY.validate_python(document | values)
    except FileNotFoundError:
        return None
    except OSError as cause:
        raise TianjiError(f"cannot read {path}: {cause.strerror}") from cause
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise TianjiError(f"{path} is no summary that this version of tianji can read") from cause


_SNAPSHOT: Final = TypeAdapter(Snapshot)
_SUMMARY: Final = TypeAdapter(Summary)


def _printable(value: Any) -> Any:
    """Replace terminal control characters in every text of a JSON value: the run may be another user's."""
    match value:
        case str():
            return printable(value)
        case list():
            return [_printable(one) for one in value]
        case dict():
            return {_printable(key): _printable(one) for key, one in value.items()}
    return value
