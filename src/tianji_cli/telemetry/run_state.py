"""State of a run, read from its files without waiting: for lists of many runs, and before one is removed.

A directory that is damaged or incomplete is described as such and causes no failure. Only the last rows of
the metrics are read, so a run of days costs as little as a short one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import AliasChoices, AliasPath, BaseModel, Field, ValidationError

from tianji_cli.errors import one_line
from tianji_cli.files.directories import is_occupied
from tianji_cli.files.regular import MOST_CONFIG_BYTES, open_regular, read_json, read_regular
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.plan.plan import this_host
from tianji_cli.quantities import exact
from tianji_cli.telemetry.machine import last_session
from tianji_cli.telemetry.metrics import MOST_ROW_BYTES, Row, first_problem, has_writer, parsed

SILENT_S: Final = 60.0
"""Seconds without a row after which a run counts as dead where locks tell nothing."""

FIRST_ROW_S: Final = 2.0
"""Seconds within which a process locks the metrics that it has just made, and writes the first row."""

TAIL_BYTES: Final = 1 << 16
"""Bytes read first, from the end: a row is seldom longer."""

State = Literal["running", "finished", "stopped", "failed", "killed", "waiting", "damaged"]
"""``killed``: the run has ended without a result; ``waiting``: no process has begun with it yet."""

_EVENTS: Final = re.compile(r"events\.out\.tfevents\.(\d+\.\d+)\.")
"""Name of a session's event file, which contains the time of its beginning."""


@dataclass(frozen=True)
class RunState:
    """State of a run.

    Attributes:
        reason: reason for the status, in words; empty while the run goes on.
        env_steps: steps of experience so far; None if unknown.
        best_mean_100: best mean return of 100 episodes so far; None if unknown, or none has ended.
        begun_s: beginning of its first session, in seconds since 1970; None if unknown.
        nbytes: total bytes of its files.
    """

    run: RunDirectory
    status: State
    reason: str = ""
    env_steps: int | None = None
    best_mean_100: float | None = None
    begun_s: float | None = None
    nbytes: int = 0

    @property
    def is_over(self) -> bool:
        """Whether no process works on the run, as far as its files tell."""
        return self.status not in {"running", "waiting"}


def read_state(run: RunDirectory) -> RunState:
    """Read the state of a run. Never raises an error about the contents of its directory."""
    try:
        state = _standing(run)
    except (OSError, ValueError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
        state = RunState(run, "damaged", one_line(reason))
    files = dict(_files(run.path))
    return replace(state, begun_s=_begun_s(run, files), nbytes=sum(files.values()))


def is_of_last_session(run: RunDirectory, session: int | None) -> bool:
    """Whether a session is a run's newest one; a session without a number counts as the newest.

    Raises:
        OSError: the sessions cannot be read.
    """
    return session is None or session >= last_session(run)


def is_running(run: RunDirectory) -> bool:
    """Whether a process works on a run; where locks tell nothing, new rows are the sign of one.

    Raises:
        OSError: its files cannot be looked at.
    """
    try:
        return _is_running(run)
    except FileNotFoundError:  # The run has not begun, or was removed, perhaps just now.
        return False


def _is_running(run: RunDirectory) -> bool:
    written = run.metrics.stat()
    age_s = time.time() - written.st_mtime
    if written.st_size == 0 and age_s < FIRST_ROW_S:
        return True  # Its owner may be about to lock it, and must find it free.
    held = has_writer(run.metrics)
    if held or is_occupied(run.checkpoints):  # A learner that has outlived its root still saves.
        return True
    if age_s >= SILENT_S or (held is False and root_host(run) in {None, this_host().name}):
        return False
    return not run.summary.exists() or run.summary.stat().st_mtime < written.st_mtime


def root_host(run: RunDirectory) -> str | None:
    """Return the host of the root in the run's first session; None if the metrics do not name it."""
    try:
        with open(open_regular(run.metrics), "rb") as file:
            first = parsed(file.readline(MOST_ROW_BYTES))
    except OSError:
        return None
    return first.root_host if isinstance(first, Row) else None


def last_row(path: Path) -> Row | None:
    """Read the newest complete row of ``metrics.jsonl``; None if there is none.

    Raises:
        OSError: the file cannot be read.
    """
    with open(open_regular(path), "rb") as file:
        end = file.seek(0, os.SEEK_END)
        tail = TAIL_BYTES
        while True:
            start = max(0, end - tail)
            file.seek(start)
            lines = file.read(end - start).split(b"\n")
            for line in reversed(lines):  # The first and the last may be torn, and are no rows then.
                row = parsed(line)
                if isinstance(row, Row):
                    return row
            if start == 0 or tail > MOST_ROW_BYTES:
                return None
            tail *= 4


def summarise_config(config: Mapping[str, Any]) -> dict[str, str]:
    """Summarise a run's config in four lines at most; a key that the config lacks is left out."""

    def setting(*path: str) -> Any:
        value: Any = config
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def group(*path: str) -> str:
        return str(setting("distribution", *path))

    def members(role: str) -> str:
        return f"{group(role, 'num')} {role}{'' if group(role, 'num') == '1' else 's'}"

    stop = setting("experiment", "stop")
    rules = stop.items() if isinstance(stop, Mapping) else ()
    stops = [f"{rule} {exact(value)}" for rule, value in rules if isinstance(value, int | float)]
    environment = " ".join(
        str(setting("environment", key)) for key in ("type", "id") if setting("environment", key)
    )
    found = {
        "environment": environment and f"{environment}, {setting('environment', 'num_envs')} in each actor",
        "agent": f"{setting('agent', 'type')}, {setting('model', 'type')}"
        if setting("agent", "type")
        else "",
        "stops at": ", ".join(stops) and f"{', '.join(stops)}; seed {setting('experiment', 'seed')}",
        "job": f"{group('groups')} x ({members('learner')}, {members('actor')}), "
        f"{group('mode')}, on {group('device')}"
        if setting("distribution")
        else "",
    }
    return {label: text for label, text in found.items() if text}


SESSION: Final = AliasChoices(AliasPath("session", "number"), "session")
"""Places of a session's number in a summary: ``session.number``, or ``session`` in version 0.1."""


class _Result(BaseModel):
    """A summary: the fields that tell how a run ended."""

    status: Literal["finished", "stopped", "failed"]
    reason: str
    env_steps: int
    updates: int
    session: int | None = Field(None, validation_alias=SESSION)
    best_mean_100: float | None = Field(None, validation_alias=AliasPath("returns", "best_mean_100"))


def _standing(run: RunDirectory) -> RunState:
    """Read the state of a run, without the size and the age of its directory.

    Raises:
        OSError, ValueError: a file is damaged; the message says which and how.
    """
    try:
        read_regular(run.config, MOST_CONFIG_BYTES)
    except FileNotFoundError as cause:
        raise ValueError("it has no config.toml") from cause
    except OSError as cause:
        raise ValueError(f"{run.config.name}: {cause.strerror}") from cause
    running = is_running(run)
    if not run.metrics.exists():
        return RunState(run, "waiting", "no process has begun with it")
    row = last_row(run.metrics)
    so_far = (None, None) if row is None else (row.env_steps, row.best_mean_100)
    if running:
        return RunState(run, "running", "", *so_far)
    try:
        result = _Result.model_validate(read_json(run.summary))
    except FileNotFoundError:
        result = None
    except ValidationError as cause:
        raise ValueError(f"summary.json is no summary of a run: {first_problem(cause)}") from cause
    except ValueError as cause:
        raise ValueError(f"summary.json is no JSON that a run writes: {cause}") from cause
    # A resumed run keeps the summary of the session before until it has its own.
    is_of_last = result is not None and is_of_last_session(run, result.session)
    if result is None or not is_of_last or (row is not None and result.updates != row.updates):
        return RunState(run, "killed", "it has ended without a result", *so_far)
    reason = one_line(result.reason)
    return RunState(run, result.status, reason, result.env_steps, result.best_mean_100)


def _files(place: Path) -> Iterator[tuple[str, int]]:
    """Yield path and bytes of all files below a directory; links are not followed."""
    ahead = [os.fspath(place)]
    while ahead:
        with suppress(OSError), os.scandir(ahead.pop()) as entries:  # It was removed, or is too deep.
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    ahead.append(entry.path)
                else:
                    with suppress(OSError):
                        yield entry.path, entry.stat(follow_symlinks=False).st_size


def _begun_s(run: RunDirectory, files: Mapping[str, int]) -> float | None:
    times = [float(found[1]) for path in files if (found := _EVENTS.match(Path(path).name))]
    if times:
        return min(times)
    try:
        return run.path.stat().st_mtime
    except OSError:
        return None
