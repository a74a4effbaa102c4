"""Reads back what a run writes about itself, while it writes it: the other side of ``Telemetry``.

Rows of ``metrics.jsonl`` become the snapshots that they were, ``summary.json`` the summary. A row that is
damaged or not whole yet is passed over: the next one is a second away.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from tianji_cli.errors import TianjiError, printable
from tianji_cli.files.regular import open_regular, read_json
from tianji_cli.telemetry.snapshot import SPREADS, Snapshot, Summary, read_back

BLOCK: Final = 1 << 20
"""Bytes that are read at once: the metrics of a run of days are larger than what is worth holding."""

MOST_ROW_BYTES: Final = 16 << 20
"""A line that is longer is no row: one that names the roles of ten thousand processes has 2 MB."""

Roles = Sequence[Mapping[str, Any]]


class Row(BaseModel):
    """A row of ``metrics.jsonl``: what has to be known of it, and everything else as it is.

    Attributes:
        elapsed_s: seconds since the start of its session.
        updates: gradient updates so far, over all sessions.
        mean_100: mean return of the last 100 episodes.
        busy: share of the last interval that each role worked, by its name.
        stop: where the run stops, by rule.
        reached: where it is now.
        reached_in_s: when it will be there.
        roles: who carries which role, where and how; None if it is as in the rows before.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    elapsed_s: float
    updates: int
    mean_100: float | None
    busy: dict[str, float | None] = {}
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
        busy = [{**role, "busy": self.busy.get(f"{role.get('role')}-{role.get('rank')}")} for role in roles]
        values = read_back(self.model_dump(), attrgetter("row"))
        return _SNAPSHOT.validate_python(_printable(values | {"stop": stop, "roles": busy}))


class MetricsFollower:
    """Owns the place in ``metrics.jsonl`` up to which it was read.

    Args:
        path: the file, which need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._file = 0
        self._in_long_line = False

    def rows(self) -> Iterator[Row]:
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

    def _new_rows(self) -> Iterator[Row]:
        # Opened anew each time: network file systems only then look for what other hosts have written.
        with open(open_regular(self._path), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._file or status.st_size < self._position:
                self._file, self._position, self._in_long_line = status.st_ino, 0, False
            file.seek(self._position)
            rest = b""
            while block := file.read(BLOCK):
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    self._position += len(line) + 1
                    row = None if self._in_long_line else _parsed(line)
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


def _parsed(line: bytes) -> Row | None:
    try:
        return Row.model_validate_json(line)
    except ValidationError:
        return None


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
