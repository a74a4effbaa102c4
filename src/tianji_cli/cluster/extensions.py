"""The user's own files: found at the root, sent to hosts that join, and laid down there.

A config names modules, as ``module:attribute`` or by ``environment.id``, and data files in
``experiment.files``. What modules import from the same directories goes with them; installed packages do not.
All keep their places relative to the directories of ``experiment.extensions``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath
from typing import Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import UsageError
from tianji_cli.telemetry.quantities import memory

DIRECTORY: Final = "extensions"
"""Where they are on a host that has joined, below its own directory."""
MOST_BYTES: Final = 8_000_000
"""All files together: they go to a host in one message of the control channel, in base64."""
_ENTRY_POINT: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def collect_files(config: JobConfig) -> dict[str, bytes]:
    """Read every file of the user's that a config needs.

    Returns:
        Contents by path, relative to the directory that modules are imported from.

    Raises:
        UsageError: they cannot be read, are too large, or two of them would have the same place.
    """
    roots = [Path(directory).resolve() for directory in config.experiment.extensions]
    files: dict[str, bytes] = {}
    try:
        for place, file in _modules(config, roots):
            files.setdefault(place, file.read_bytes())  # As on Python's path, the first directory has it.
        for place, file in _data(config, roots):
            if files.setdefault(place, content := file.read_bytes()) != content:
                raise UsageError(
                    f"experiment.files: {file} and another file of experiment.extensions would both be "
                    f"{place} on hosts that join: name one of them otherwise"
                )
    except OSError as cause:
        raise UsageError(f"{cause.filename} cannot be sent to hosts that join: {cause.strerror}") from cause
    total = sum(map(len, files.values()))
    if total > MOST_BYTES:
        largest = max(files, key=lambda place: len(files[place]))
        raise UsageError(
            f"the modules and experiment.files for hosts that join have {memory(total)} ({largest} has "
            f"{memory(len(files[largest]))}), and {memory(MOST_BYTES)} is the most: put large files where "
            "all hosts see them"
        )
    return files


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
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for root in roots:
            if path.is_relative_to(root):  # The config's checks see to it that one of them has it.
                yield from ((file.relative_to(root).as_posix(), file) for file in files)


def _modules(config: JobConfig, roots: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the files of the modules that a config names, and of those that they import, by their places.

    A package goes as a whole: it may import its parts by names that nobody can foresee.
    """
    waiting = list(_modules_named(config))
    seen: set[str] = set()
    while waiting:
        name = waiting.pop().partition(".")[0]
        if name in seen or not name.isidentifier() or _is_installed(name, roots):
            continue
        seen.add(name)
        for root, file in _files_of(name, roots):
            yield file.relative_to(root).as_posix(), file
            waiting.extend(_imports(file.read_bytes()))


def _modules_named(config: JobConfig) -> Iterator[str]:
    transport = config.distribution.transport
    types = [
        config.environment.type,
        config.agent.type,
        config.model.type,
        config.training.type,
        *(role.type for role in config.roles.values()),
        transport.local,
        transport.remote,
    ]
    yield from (name.partition(":")[0] for name in types if ":" in name)
    # "module:Name-v0" of gymnasium, a module of PettingZoo; of any other id there is no such file.
    yield (config.environment.id or "").partition(":")[0]


def _is_installed(name: str, roots: Sequence[Path]) -> bool:
    """Say whether Python finds a module before it looks at the user's directories, which come last."""
    if name in sys.stdlib_module_names:
        return True
    found = PathFinder.find_spec(name, [entry for entry in sys.path if Path(entry).resolve() not in roots])
    return found is not None and found.origin is not None  # A directory without __init__.py has none.


def _files_of(name: str, roots: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Find a module, or all of a package, in the first directory that has it, and name it with each file."""
    for root in roots:
        if (root / name / "__init__.py").is_file():
            return [(root, file) for file in sorted((root / name).rglob("*.py"))]
        if (root / f"{name}.py").is_file():
            return [(root, root / f"{name}.py")]
    # A package without __init__.py may have parts in several.
    return [(root, file) for root in roots for file in sorted((root / name).rglob("*.py"))]


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
