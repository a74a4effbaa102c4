"""The user's own files: found at the root, sent to hosts that join, and written there.

A config names modules, as ``module:attribute`` or by ``environment.id``, and data files in
``experiment.files``. Modules that these import from the same directories go along; installed packages do not.
All keep their places relative to the directories of ``experiment.extensions``.
"""

from __future__ import annotations

import ast
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath
from typing import Final, NoReturn

from tianji_cli.config.loader import modules_named
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import UsageError
from tianji_cli.quantities import memory

DIRECTORY: Final = "extensions"
"""Folder of the files on a host that has joined, below its own directory."""
MOST_BYTES: Final = 8_000_000
"""Maximum bytes of all files with their paths: they go to a host in one message, in base64."""
AROUND_A_FILE: Final = 8
"""Bytes around a path and its content in that message."""
_ENTRY_POINT: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def collect_files(config: JobConfig) -> dict[str, bytes]:
    """Read all of the user's files that a config needs.

    Returns:
        Contents by path, relative to the directory that modules are imported from.

    Raises:
        UsageError: files cannot be read, are too large, or two of them would have the same place.
    """
    roots = [Path(directory).resolve() for directory in config.experiment.extensions]
    files = _Files()
    try:
        for place, file in _modules(config, roots):
            if place not in files.contents:  # As on Python's path, the first directory wins.
                files.add(place, file)
        for place, file in _data(config, roots):
            files.add(place, file)
    except OSError as cause:
        raise UsageError(f"{cause.filename} cannot be sent to hosts that join: {cause.strerror}") from cause
    return files.contents


class _Files:
    """Owns the files for hosts that join; checks the size of a file before it reads the file."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self._total = 0

    def add(self, place: str, file: Path) -> None:
        """Take a file for a place on the other hosts.

        Raises:
            UsageError: it is no file, exceeds the limit with the others, or another one has the place.
        """
        known, found = self.contents.get(place), file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"experiment.files: {file} is neither a file nor a directory")
        if known is None:
            self._total += found.st_size + len(os.fsencode(place)) + AROUND_A_FILE
            if self._total > MOST_BYTES:
                raise UsageError(self._too_much(file, found.st_size))
            self.contents[place] = file.read_bytes()
        elif found.st_size != len(known) or file.read_bytes() != known:
            raise UsageError(
                f"experiment.files: {file} and another file of experiment.extensions would both be "
                f"{place} on hosts that join: name one of them otherwise"
            )

    def _too_much(self, file: Path, size: int) -> str:
        return (
            f"the modules and experiment.files for hosts that join have {memory(self._total)} or more, "
            f"with their paths, and {memory(MOST_BYTES)} is the most (of {len(self.contents) + 1} files "
            f"{file} is the last, with {memory(size)}): put large or many files where all hosts see them"
        )


def lay_down(files: Mapping[str, bytes], directory: Path) -> None:
    """Write files below a directory.

    Raises:
        ValueError: a path leads out of it.
    """
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"{name!r} is no path below {DIRECTORY}")
        file = directory / DIRECTORY / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _data(config: JobConfig, roots: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the data files by their places; a directory stands for all files below it."""
    for name in config.experiment.files:
        path = Path(name)
        files = sorted(_below(path)) if path.is_dir() else [path]
        for root in roots:
            if path.is_relative_to(root):  # The config's checks ensure that one of them has it.
                yield from ((file.relative_to(root).as_posix(), file) for file in files)


def _below(directory: Path) -> Iterator[Path]:
    """Yield all files below a directory; links are followed, and one that leads back ends in an error.

    Raises:
        OSError: a directory cannot be read.
    """
    for place, _directories, names in os.walk(directory, onerror=_refuse, followlinks=True):
        yield from (Path(place, name) for name in names)


def _refuse(error: OSError) -> NoReturn:
    raise error


def _modules(config: JobConfig, roots: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the files of the modules that a config names, and of those that they import, by their places.

    A package goes as a whole: it may import its parts by names that only its code works out.
    """
    # Trackers stay with the root. An id may be a module's name whatever the environment's type is.
    waiting = [*modules_named(config.model_dump(mode="json", exclude={"experiment"}))]
    waiting.append(config.environment.id or "")
    seen: set[str] = set()
    while waiting:
        name = waiting.pop().partition(".")[0]
        if name in seen or not name.isidentifier() or _is_installed(name, roots):
            continue
        seen.add(name)
        for root, file in _files_of(name, roots):
            yield file.relative_to(root).as_posix(), file
            waiting.extend(_imports(file.read_bytes()))


def _is_installed(name: str, roots: Sequence[Path]) -> bool:
    """Whether Python finds a module before it looks at the user's directories, which come last."""
    if name in sys.stdlib_module_names:
        return True
    found = PathFinder.find_spec(name, [entry for entry in sys.path if Path(entry).resolve() not in roots])
    return found is not None and found.origin is not None  # A directory without __init__.py has none.


def _files_of(name: str, roots: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Find a module, or all of a package, in the first directory that has it, and name it with each file."""
    for root in roots:
        if (root / name / "__init__.py").is_file():
            return [(root, file) for file in _sources(root / name)]
        if (root / f"{name}.py").is_file():
            return [(root, root / f"{name}.py")]
    # A package without __init__.py may have parts in several.
    return [(root, file) for root in roots if (root / name).is_dir() for file in _sources(root / name)]


def _sources(package: Path) -> list[Path]:
    return sorted(file for file in _below(package) if file.suffix == ".py")


def _imports(source: bytes) -> Iterator[str]:
    """Yield the modules that a source names in imports, wherever they stand, and in entry points."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # Nothing can import it; if something tries, Python says what is wrong.
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(name), level=0):
                yield name
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name
            case ast.Constant(value=str(text)) if _ENTRY_POINT.fullmatch(text):
                yield text.partition(":")[0]
