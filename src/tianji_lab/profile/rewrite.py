"""Writes a config anew with another split, and keeps comments, order, ``extends`` and all other keys."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import tomlkit
from tomlkit.exceptions import TOMLKitError

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.config.source import SECTIONS, KeyPath, Tree, find_config, read, shown
from tianji_cli.errors import ConfigError, UsageError, os_errors_as
from tianji_cli.files.rundir import write_whole
from tianji_lab.profile.split import ACTORS, PINNED

EXTENDS: Final = "extends"
PLACES: Final = ("extensions", "files")
"""Keys of ``[experiment]`` whose paths are relative to the config's directory."""
SET: Final = "--set"
OF_MACHINE: Final = tuple(tuple(key.split(".")) for key in (ACTORS, PINNED))
"""Keys whose default values depend on the machine."""


def _check_place(config: str, to: Path) -> None:
    """Refuse a file that cannot be written, or that is the config itself or one that it extends."""
    place = f"--write {to}"
    if to.is_dir():
        raise UsageError(f"{place}: is a directory; name a file, such as {to / 'split.toml'}")
    if not to.parent.is_dir():
        raise UsageError(f"{place}: there is no directory {to.parent}")
    if not os.access(to if to.exists() else to.parent, os.W_OK):
        raise UsageError(f"{place}: it may not be written to; name another file")
    own, *bases = read(config).files
    if to.exists() and own.samefile(to):
        raise UsageError(f"{place}: is the config itself; name another file, which may be beside it")
    if to.exists() and any(base.samefile(to) for base in bases):
        raise UsageError(f"{place}: {config} extends it; name another file, which may be beside it")


def rewritten(config: str, overrides: Sequence[str], settings: Sequence[str], to: Path) -> bytes:
    """Make the text of a config with other settings, for a file in another place; checks that place.

    The text does not repeat values that the config, or one that it extends, sets already.

    Raises:
        UsageError: the config cannot be written there.
    """
    changes: dict[KeyPath, object] = {}
    before, after = read(config), read(config, [*overrides, *settings])
    meant = load_config(config, [*overrides, *settings])
    try:
        with os_errors_as(UsageError, f"--write {to}: cannot be written"):
            _check_place(config, to)
            changes |= _changes(before, after, load_config(config).model_dump(mode="json"))
            if changes:
                changes |= _of_machine(before, after)
            changes |= _of_place(before, after, meant, to.parent)
            content = _changed(before, changes)
            if _means(content, to.parent) != _nameless(meant):
                raise UsageError(_not_expressible(before, changes))
    except (TOMLKitError, ConfigError, TypeError) as cause:
        raise UsageError(_not_expressible(before, changes)) from cause
    return content


def write(config: str, overrides: Sequence[str], settings: Sequence[str], to: Path) -> None:
    """Write a config with other settings; replaces another file in its place.

    Raises:
        UsageError: the config cannot be written there.
    """
    content = rewritten(config, overrides, settings, to)
    with os_errors_as(UsageError, f"--write {to}: cannot be written"):
        write_whole(to, content)


def _changed(before: Tree, changes: Mapping[KeyPath, object]) -> bytes:
    document = tomlkit.parse(before.files[0].read_bytes().decode("utf-8-sig"))
    for path, value in changes.items():
        _replace(document, path, value)
    return tomlkit.dumps(document).encode()


def _changes(before: Tree, after: Tree, means: Mapping[str, Any]) -> Iterator[tuple[KeyPath, object]]:
    """Yield the overrides whose values differ from those of the config and its bases, or from defaults."""
    own = shown(before.files[0])
    for path in [path for path, origin in after.origins.items() if origin == SET]:
        value = _value(after.values, path)
        if value == _value(before.values, path, _value(means, path)):
            continue
        # A config inherits a table that is no section as a whole, so the table is written as a whole.
        key = next((path[:end] for end in range(1, len(path)) if path[:end] not in SECTIONS), path)
        yield (path, value) if before.origin(key) == own else (key, _value(after.values, key))


def _of_machine(before: Tree, after: Tree) -> dict[KeyPath, object]:
    """Return the values of keys that the config leaves to the machine; another machine may choose others."""
    values = {path: _value(after.values, path) for path in OF_MACHINE if _value(before.values, path) is None}
    return {path: value for path, value in values.items() if value is not None}


def _of_place(
    before: Tree, after: Tree, meant: JobConfig, directory: Path
) -> Iterator[tuple[KeyPath, object]]:
    """Yield the paths that have to change so that a config means the same in another directory."""
    own, *bases = before.files
    moved = own.resolve().parent != directory.resolve()
    if bases:
        extends = tomlkit.parse(own.read_bytes().decode("utf-8-sig"))[EXTENDS]
        found = find_config(str(extends), directory)
        if found is None or not found.samefile(bases[0]):
            yield (EXTENDS,), _from(directory, bases[0].resolve())
    for key in PLACES:
        origin = after.origins.get(("experiment", key))
        paths = getattr(meant.experiment, key)
        if paths and (origin == SET or (moved and origin in {None, shown(own)})):
            yield ("experiment", key), [_from(directory, Path(path)) for path in paths]


def _from(directory: Path, path: Path) -> str:
    return os.path.relpath(path, directory.resolve())


def _means(content: bytes, directory: Path) -> JobConfig:
    """Load a config as a file of a directory."""
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".", suffix=".toml") as file:
        file.write(content)
        file.flush()
        return _nameless(load_config(file.name))


def _nameless(job: JobConfig) -> JobConfig:
    """Leave out the experiment's name, which may come from the file's name."""
    return job.model_copy(update={"experiment": job.experiment.model_copy(update={"name": ""})})


def _not_expressible(before: Tree, changes: Mapping[KeyPath, object]) -> str:
    keys = ", ".join(".".join(key) for key in changes)
    return (
        f"{shown(before.files[0])} with another {keys} cannot be written so that it means what was asked; "
        "--set each key of a section by itself, or write the config by hand"
    )


def _value(values: Mapping[str, Any], path: KeyPath, default: object = None) -> object:
    """Find a value in nested tables; returns ``default`` if there is none."""
    found: object = values
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            return default
        found = found[key]
    return found


def _replace(document: MutableMapping[str, Any], path: KeyPath, value: object) -> None:
    table = document
    for key in path[:-1]:
        table = cast("MutableMapping[str, Any]", table.setdefault(key, {}))
    table[path[-1]] = value
