"""The directory of a run: ``<out>/<name>/<n>/`` with everything the run leaves behind.

``tianji train`` makes it; ``eval``, ``--resume`` and ``watch`` find it again. This module knows where files
go and how to write one whole; it does not know their contents.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

from tianji_cli.config.trust import check_trusted
from tianji_cli.errors import UsageError, cut, errors_as, os_errors_as, printable
from tianji_cli.files.regular import CONFIG, OF_A_RUN, open_regular
from tianji_cli.quantities import ranges, several
from tianji_plugins import nearest

DEFAULT_OUT: Final = Path("experiments")
SUBDIRECTORIES: Final = ("logs", "checkpoints", "plots")
VIDEOS: Final = "videos"
"""Subdirectory of runs that film their evaluations."""
TRACE: Final = "trace"
"""Subdirectory while a run is traced; ``trace.json`` is the result."""
STALE_S: Final = 60.0
"""Age in seconds from which a file under a temporary name counts as left by a killed process."""
MAX_LISTED: Final = 10
"""Most experiments or runs named in an error message."""
SEVERAL: Final = {"base.toml": "*", "trial.toml": "*", "sweep.toml": "trials/*/*"}
"""Globs of the runs below a directory of seeds, of a trial or of a sweep, by the file that marks its kind."""


def steps_name(env_steps: int | str) -> str:
    """Name a checkpoint by its env steps: such names sort as the numbers do.

    >>> steps_name(81_920)
    '000000081920'
    """
    return str(env_steps).zfill(12)


class RunDirectoryError(UsageError):
    """A run directory cannot be made, found or used; the message gives the reason and a remedy."""


class NoSuchRunError(RunDirectoryError):
    """A name that the user gave belongs to no run; the message lists the existing runs."""


class NoSuchCheckpointError(RunDirectoryError):
    """A run has no such checkpoint; the message lists its checkpoints."""


class Within:
    """A file or directory of a fixed name in the ``path`` of the object that has this attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, directory: Any, _: object = None) -> Path:
        path: Path = directory.path
        return path / self._name


@dataclass(frozen=True)
class RunDirectory:
    """The directory of one run, and the places of its files."""

    path: Path

    @classmethod
    def next(cls, name: str, out: Path = DEFAULT_OUT) -> RunDirectory:
        """Return the directory that ``create`` would make now, without making it.

        Raises:
            RunDirectoryError: the name is no single path component.
        """
        if not name or name != Path(name).name or name.startswith("."):
            raise RunDirectoryError(
                f"experiment name {name!r} cannot name a directory: use letters, digits, '_' and '-'"
            )
        parent = out / name
        if any("\ud800" <= sign <= "\udfff" for sign in str(parent)):
            raise RunDirectoryError(f"--out: {printable(str(parent))} is not UTF-8; another would be right")
        return cls(parent / str(max(_numbers(parent), default=0) + 1))

    @classmethod
    def create(cls, name: str, out: Path = DEFAULT_OUT) -> RunDirectory:
        """Make ``out/name/n`` for the next free n, with its subdirectories.

        Runs that start at the same moment get different numbers: making the directory is the reservation.

        Raises:
            RunDirectoryError: the name is no single path component, or the directory cannot be made.
            UntrustedPlaceError: others may change what is there.
        """
        first = cls.next(name, out).path
        parent = first.parent
        check_trusted(parent)
        what, remedy = f"cannot make a run directory in {parent}", "--out DIR chooses another place"
        with os_errors_as(RunDirectoryError, what, remedy):
            parent.mkdir(parents=True, exist_ok=True)
            for number in count(int(first.name)):
                with contextlib.suppress(FileExistsError):
                    return cls.make(parent / str(number))
            raise AssertionError("numbers do not end")

    @classmethod
    def make(cls, path: Path) -> RunDirectory:
        """Make a directory with the subdirectories that ``adopt`` expects.

        Raises:
            FileExistsError: it exists; OSError: it cannot be made.
        """
        path.mkdir()
        for subdirectory in SUBDIRECTORIES:
            (path / subdirectory).mkdir()
        return cls(path)

    def begin_anew(self) -> None:
        """Remove the contents and restore the state after ``make``; the directory itself exists all the time.

        Raises:
            RunDirectoryError: the contents cannot be removed.
        """
        with errors_as(RunDirectoryError, f"cannot begin {self.path} anew", OSError):
            for entry in list(self.path.iterdir()):
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            for subdirectory in SUBDIRECTORIES:
                (self.path / subdirectory).mkdir()

    def complete(self) -> None:
        """Make the subdirectories that are missing, as in a copy without those that were empty.

        Raises:
            OSError: one cannot be made.
        """
        for subdirectory in SUBDIRECTORIES:
            (self.path / subdirectory).mkdir(exist_ok=True)

    @classmethod
    def adopt(cls, path: Path) -> RunDirectory:
        """Take a directory that ``create`` made in another process, and that no run has used yet.

        Raises:
            RunDirectoryError: it is no such directory, or a run has used it.
            UntrustedPlaceError: other users may change its contents.
        """
        run = cls(path)
        run.check()
        if not run.checkpoints.is_dir():
            raise RunDirectoryError(f"{path} is no run directory that `tianji launch` has made")
        if run.metrics.exists() or run.summary.exists():
            raise RunDirectoryError(f"{path} belongs to a run that has begun: --resume goes on with one")
        return run

    @classmethod
    def find(cls, run: str, out: Path = DEFAULT_OUT) -> RunDirectory:
        """Find the run that a user names: by a path, ``name/n``, or ``name`` for its newest run.

        Raises:
            NoSuchRunError: there is no such run; the message lists the existing runs.
            RunDirectoryError: the name fits several seeds or trials, and chooses none of them.
        """
        for place in (Path(run), out / run):
            if _is_run(place):
                return cls(place)
            found = _several(place)
            if len(found) > 1 or (found and (place / "sweep.toml").is_file()):
                names = [str(Path(run) / one.relative_to(place)) for one in found[:MAX_LISTED]]
                more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
                has = f"{Path(run)} has {several(len(found), 'run')}"
                raise RunDirectoryError(printable(f"{has}: name one of {', '.join(names)}{more}"))
            runs = found or [place / str(number) for number in _runs_of(place)]
            if runs and _is_run(runs[-1]):
                return cls(runs[-1])
        raise NoSuchRunError(_no_such_run(run, out))

    def check(self) -> list[str]:
        """Check that no other user can change the contents of the directory, or the path to it.

        Returns:
            Warnings: a group could.

        Raises:
            UntrustedPlaceError: other users could.
            RunDirectoryError: a subdirectory or the config is a link to another place.
        """
        warnings = list(dict.fromkeys([*check_trusted(self.config), *check_trusted(self.checkpoints)]))
        for subdirectory in (CONFIG, *OF_A_RUN):
            place = self.path / subdirectory
            if place.is_symlink():
                raise RunDirectoryError(f"{place} is a link, and must not be: link the whole run instead")
        return warnings

    def checkpoint(self, name: str) -> str:
        """Find a checkpoint by ``best``, ``last`` or env steps; returns its name.

        Raises:
            NoSuchCheckpointError: there is none; the message lists the existing checkpoints.
        """
        found = steps_name(name.lstrip("0")) if name.isdecimal() else name
        if os.path.isfile(self.checkpoints / found / "model.safetensors"):
            return found
        kept = self.checkpoint_names
        raise NoSuchCheckpointError(
            f"{self.path} has no checkpoint {cut(repr(name))}; there are {', '.join(kept)}"
            if kept
            else f"{self.path} has no checkpoints yet"
        )

    @property
    def checkpoint_names(self) -> tuple[str, ...]:
        """Names that ``checkpoint`` finds: ``best``, ``last``, and the env steps of all that are kept."""
        kept = [path.name for path in sorted(self.checkpoints.glob("*")) if path.name.isdecimal()]
        links = [name for name in ("best", "last") if (self.checkpoints / name).is_dir()]
        return (*links, *(name.lstrip("0") or "0" for name in kept))

    @property
    def config(self) -> Path:
        """Resolved config of the newest session; the config of the first session makes a directory a run."""
        return self.config_of(None)

    def config_of(self, session: int | None) -> Path:
        """Return the path of the resolved config of a session, from 1 on, or of the last one before it."""
        numbers = [path.stem.removeprefix("config-") for path in self.path.glob("config-*.toml")]
        known = [int(number) for number in numbers if number.isascii() and number.isdecimal()]
        own = max((number for number in known if session is None or number <= session), default=1)
        return self.path / (CONFIG if own == 1 else f"config-{own}.toml")

    metrics = Within("metrics.jsonl")
    """Snapshots as JSON, one a line."""

    sessions = Within("sessions.jsonl")
    """Sessions as JSON, one a line: time of the beginning, machine, and versions."""

    summary = Within("summary.json")
    """Result of the run, once it is over."""

    checkpoints = Within("checkpoints")
    """Directory of the checkpoints, by name or step."""

    plots = Within("plots")
    """Learning curves and throughput as PNG."""

    @property
    def videos(self) -> tuple[Path, ...]:
        """Finished films of evaluations, oldest policy first."""
        return tuple(sorted((self.path / VIDEOS).glob("[!.]*")))

    trace = Within("trace.json")
    """Last trace of the run, unless another path was named for it."""

    def log(self, role: str, rank: int) -> Path:
        """Return the path of the log of a role's process."""
        return self.path / "logs" / f"{role}-{rank}.log"

    def write_config(self, toml: str) -> None:
        """Write the resolved config of the first session.

        Raises:
            RunDirectoryError: the file cannot be written.
        """
        place = self.path / CONFIG
        with os_errors_as(RunDirectoryError, f"cannot write {place}"):
            write_whole(place, toml.encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it: readers see all of it or the older file.

    A device or a pipe is written to directly: root could otherwise replace ``/dev/null`` by a file.

    Raises:
        OSError: the file cannot be written; nothing is left of it, and the older file is still there.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)  # A killed process with the same id may have left it.
        with open(open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            now_s = os.fstat(file.fileno()).st_mtime
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    remove_leftovers(path.parent, rf"\.{re.escape(path.name)}\.\d+", now_s)


def remove_leftovers(place: Path, names: str, now_s: float) -> None:
    """Remove files that killed processes have left under temporary names, if they are older than ``STALE_S``.

    Args:
        names: a regular expression that matches temporary names, and no others: an editor's have dots, too.
        now_s: present time by the clock of the file system, to which processes of other hosts may write.
    """
    found: list[Path] = []
    with contextlib.suppress(OSError):  # A directory may be writable, but not readable.
        found = [path for path in place.iterdir() if re.fullmatch(names, path.name)]
    for leftover in found:
        with contextlib.suppress(OSError):
            if now_s - leftover.lstat().st_mtime > STALE_S:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _is_run(place: Path) -> bool:
    return os.path.isfile(place / CONFIG)  # Unlike Path.is_file, it raises nothing for a long name.


def _numbers(parent: Path) -> list[int]:
    """List the run numbers taken in ``parent``, in order; empty if it is no directory."""
    names = os.listdir(parent) if os.path.isdir(parent) else []
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def _no_such_run(run: str, out: Path) -> str:
    named = cut(f"no run {run!r}")
    if run and (other := next((place for place in (Path(run), out / run) if os.path.isdir(place)), None)):
        named += f" ({cut(printable(str(other)))} is a directory without a config.toml)"
    places = [*sorted(out.iterdir()), *sorted(out.glob("*/seeds-*"))] if out.is_dir() else []
    existing = {str(place.relative_to(out)): _runs_of(place) for place in places}
    existing = {name: runs for name, runs in existing.items() if runs}
    if not existing:
        return f"{named}: there are no runs in {out}{os.sep} (one that is elsewhere is named by its path)"
    near = nearest(run.split("/", maxsplit=1)[0], existing)
    hint = f" (did you mean {near[0]!r}?)" if near and near[0] != run else ""
    listed = [f"{name} ({ranges(runs)})" for name, runs in existing.items()]
    more = f" and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    return f"{named}{hint}\n{out}{os.sep} has {', '.join(listed[:MAX_LISTED])}{more}"


def _several(place: Path) -> list[Path]:
    """List the runs of several seeds, of a trial or of a sweep, begun or not; empty for other directories."""
    kinds = [runs for file, runs in SEVERAL.items() if os.path.isfile(place / file)]
    found = (path for runs in kinds for path in place.glob(runs) if path.name.isdecimal() and path.is_dir())
    return sorted(found, key=lambda path: (len(str(path)), path))


def _runs_of(place: Path) -> list[int]:
    """List the numbers of the runs of one experiment, in order."""
    return [number for number in _numbers(place) if _is_run(place / str(number))]
