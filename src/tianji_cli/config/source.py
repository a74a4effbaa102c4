"""Reads a config's TOML: the file, the files it extends, and ``--set``; remembers which of them set a value.

Sections are merged key by key; a key's value is replaced as a whole. This module knows which tables are
sections, and nothing else of the keys' meaning.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import tianji_cli
from tianji_cli.errors import ConfigError, Problem
from tianji_plugins import nearest

KeyPath = tuple[str, ...]
"""Path of a value in a config: section, key, and the keys below it."""

SECTIONS: Final[frozenset[KeyPath]] = frozenset(
    {
        ("experiment",),
        ("experiment", "evaluation"),
        ("experiment", "init"),
        ("environment",),
        ("agent",),
        ("model",),
        ("training",),
        ("distribution",),
        ("distribution", "learner"),
        ("distribution", "actor"),
        ("distribution", "buffer"),
        ("roles",),
        ("graph",),
        ("graph", "channels"),
        ("graph", "slots"),
        ("population",),
        ("population", "perturb"),
        ("sweep",),
        ("sweep", "parameters"),
    }
)
"""Tables whose keys are inherited one by one; tables of user roles are others."""

COMPONENTS: Final = ("agent", "model", "training")
"""Sections whose keys depend on their ``type``; the keys of user roles do, too."""

MAX_DEPTH: Final = 32
"""Maximum depth of tables and lists inside one another; a shipped config has four."""

WHOLE_NUMBERS: Final = "whole numbers have 64 bits here, as TOML's have"

_BRACKETS: Final = re.compile(r"""("{3}|'{3}|["'])(?:\\.|.)*?\1|#[^\n]*|[][{}]""", re.DOTALL)
"""Brackets of TOML, and the strings and comments that may have brackets in them."""


def is_section(path: KeyPath) -> bool:
    """Whether the keys of a table are inherited one by one."""
    below = len(path) == 3 and path[:2] in {("sweep", "parameters"), ("population", "perturb")}
    return below or path in SECTIONS or is_role(path)


def is_role(path: KeyPath) -> bool:
    """Whether a table belongs to a user role."""
    return len(path) == 2 and path[0] == "roles"


def path_part(key: str | int) -> str:
    """Write one part of a path: a key, or a place in a list as ``[0]``."""
    return f"[{key}]" if isinstance(key, int) else key


def dotted(path: KeyPath) -> str:
    """Write a path in the form of messages.

    >>> dotted(("environment", "wrappers", "[0]", "type"))
    'environment.wrappers[0].type'
    """
    return ".".join(path).replace(".[", "[")


def flat(table: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a table and of the tables inside it with their dotted keys.

    >>> dict(flat({"a": {"b": 1, "c": None}}))
    {'a.b': 1, 'a.c': None}
    """
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Find the dotted keys in which two tables differ, with both values; None where a table has none."""
    first, second = dict(flat(one)), dict(flat(other))
    return {
        key: (first.get(key), second.get(key))
        for key in dict.fromkeys([*first, *second])
        if first.get(key) != second.get(key)
    }


class Conflict(NamedTuple):
    """Values that do not fit one another.

    Attributes:
        keys: dotted. The key that was set last is at fault; the first of them if several were set together.
    """

    keys: Sequence[str]
    what: str
    remedy: str = ""


@dataclass
class Tree:
    """The merged TOML of a config.

    Attributes:
        origins: the file or option that set a key, by its path; other paths are inside a value, or not set.
        files: the files read, the one that was asked for first.
        former: values of a section before it named another type, each with its origin, by section; the
            newest last.
        notes: remarks for the user on a config that can be run.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    former: dict[KeyPath, list[dict[str, tuple[Any, str]]]] = field(default_factory=dict)
    notes: list[Problem] = field(default_factory=list)

    def origin(self, path: Sequence[str]) -> str:
        """Name the file or option that set a value; the config that was asked for if none did."""
        for length in range(len(path), 0, -1):
            found = self.origins.get(tuple(path[:length]))
            if found is not None:
                return found
        below = (origin for known, origin in self.origins.items() if known[: len(path)] == tuple(path))
        return next(below, shown(self.files[0]))

    def was_set(self, path: KeyPath) -> bool:
        """Whether a file or an option sets a value; naming its section alone does not."""
        return any(
            path[:length] in self.origins
            for length in range(len(path), 0, -1)
            if not is_section(path[:length])
        )

    def problem(self, path: str | KeyPath, what: str, remedy: str = "") -> None:
        """Note that a value is wrong, by its path, or by its dotted path."""
        path = tuple(path.split(".")) if isinstance(path, str) else path
        self.problems.append(Problem(self.origin(path), dotted(path), what, remedy))

    def report(self, conflicts: Iterable[Conflict]) -> None:
        """Note each conflict at the key that was set last.

        An option is later than all files, and a file is later than the one it extends.
        """
        order = [shown(file) for file in self.files]

        def layer(key: str) -> int:
            origin = self.origin(key.split("."))
            return order.index(origin) if origin in order else -1

        for keys, what, remedy in conflicts:
            written = [key for key in keys if self.was_set(tuple(key.split(".")))] or keys
            self.problem(min(written, key=layer), what, remedy)

    def merge(self, table: Mapping[str, Any], origin: str, at: KeyPath = ()) -> None:
        """Lay a table over the present values.

        A section that names another ``type`` begins anew: settings of the former type do not belong to the
        new one, unless it derives from the former (``inherit``).
        """
        target = self._table(at)
        typed = is_role(at) or (len(at) == 1 and at[0] in COMPONENTS)
        if target and typed and table.get("type", target.get("type")) != target.get("type"):
            settings = {key: (value, self.origin((*at, key))) for key, value in target.items()}
            self.former.setdefault(at, []).append(settings)
            target.clear()
            self._forget(at)
        for key, value in table.items():
            path = (*at, key)
            if is_section(path) and isinstance(value, dict):
                if not isinstance(target.get(key), dict):
                    target[key] = {}
                self.origins[path] = origin
                self.merge(value, origin, path)
            else:
                if key in target:
                    self._forget(path)
                target[key] = value
                self.origins[path] = origin

    def inherit(self, at: KeyPath, known: Collection[str], derives: Callable[[object], bool]) -> None:
        """Take over the values of a section from before it named its type, if this derives from the former.

        Args:
            known: keys of the type; other keys become notes.
            derives: whether the type derives from another, by the other's name.
        """
        target = self._table(at)
        for former in reversed(self.former.pop(at, [])):
            if not derives(former.pop("type", (None, ""))[0]):
                return
            for key, (value, origin) in former.items():
                if key in known and key not in target:
                    target[key], self.origins[*at, key] = value, origin
                elif key not in known:
                    what = f"is not inherited: {target['type']!r} has no such key"
                    self.notes.append(Problem(origin, dotted((*at, key)), what))

    def assign(self, path: KeyPath, value: object, origin: str) -> None:
        """Replace one value, and make the tables that lead to it."""
        target = self.values
        for depth, key in enumerate(path[:-1], start=1):
            below = target.setdefault(key, {})
            if not isinstance(below, dict):
                what = f"{'.'.join(path[:depth])} is {below!r}, which has no keys"
                self.problems.append(Problem(origin, ".".join(path), what, "set the whole of it"))
                return
            target = below
        self._forget(path)
        target[path[-1]] = value
        self.origins[path] = origin

    def _table(self, path: KeyPath) -> dict[str, Any]:
        table = self.values
        for key in path:
            table = table[key]
        return table

    def _forget(self, path: KeyPath) -> None:
        for known in [known for known in self.origins if known[: len(path)] == path and known != path]:
            del self.origins[known]


def read(name: str, overrides: Sequence[str] = ()) -> Tree:
    """Read a config with all files that it extends, and lay ``--set`` over it; see ``load_config``.

    Raises:
        ConfigError: a file is missing, is not TOML, or extends itself.
    """
    found = find_config(name, Path.cwd())
    if found is None:
        raise ConfigError([not_found(name, Path.cwd(), where=name)])
    tree = Tree()
    layers = list(_chain(found, tree.files))
    for path, table in reversed(layers):
        tree.merge(table, shown(path))
    return _overridden(tree, overrides)


def lay_over(tables: Sequence[Mapping[str, Any]], origin: str, overrides: Sequence[str] = ()) -> Tree:
    """Merge tables that come from no file, later ones over earlier ones, and lay ``--set`` over them.

    Args:
        origin: name for messages in place of a file, such as an option of the command.

    Raises:
        ConfigError: ``--set`` has a value that is too large or lies too deep.
    """
    tree = Tree(files=[Path(origin)])
    for table in tables:
        tree.merge(table, origin)
    return _overridden(tree, overrides)


def _overridden(tree: Tree, overrides: Sequence[str]) -> Tree:
    for override in overrides:
        apply_override(tree, override)
    _check_values(tree)
    return tree


def _check_values(tree: Tree) -> None:
    """Refuse values that lie too deep, and whole numbers that are too large, for the code that reads them.

    Raises:
        ConfigError: names the first such value.
    """
    below: list[tuple[KeyPath, Any]] = [((), tree.values)]
    while below:
        path, value = below.pop()
        wrong = None
        if isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                wrong = f"a whole number of {value.bit_length() + 1} bits with its sign", WHOLE_NUMBERS
        elif len(path) > MAX_DEPTH:
            wrong = f"is nested more than {MAX_DEPTH} deep", "make it flatter"
        else:
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            below += [
                ((*path, path_part(key)), item) for key, item in inner if isinstance(item, dict | list | int)
            ]
        if wrong is not None:
            raise ConfigError([Problem(tree.origin(path), dotted(path), *wrong)])


def _chain(path: Path, files: list[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield a config and the configs it extends, nearest first; add their paths to ``files``."""
    while True:
        files.append(path)
        table = _parse(path)
        base = table.pop("extends", None)
        yield path, table
        if base is None:
            return
        if not isinstance(base, str):
            raise ConfigError(
                [Problem(shown(path), "extends", f"{base!r} is not a string", 'write extends = "other.toml"')]
            )
        found = find_config(base, path.parent)
        if found is None:
            raise ConfigError([not_found(base, path.parent, where=shown(path), key="extends")])
        if any(found.samefile(seen) for seen in files):
            cycle = " -> ".join(shown(seen) for seen in [*files, found])
            raise ConfigError(
                [Problem(shown(path), "extends", f"goes in a circle: {cycle}", "remove one of them")]
            )
        path = found


def _parse(path: Path) -> dict[str, Any]:
    where = shown(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")  # Editors on Windows begin a file with a mark.
    except UnicodeDecodeError as error:
        what = f"byte {error.start} is not UTF-8"
        raise ConfigError([Problem(where, "", what, "a config is TOML, which is UTF-8 text")]) from error
    except OSError as error:
        raise ConfigError([Problem(where, "", f"cannot be read: {error.strerror}")]) from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([_syntax_problem(where, text, str(error))]) from error
    except (ValueError, RecursionError) as error:
        at, what, remedy = _too_much(text)
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        raise ConfigError([Problem(f"{where}:{line}:{column}", "", what, remedy)]) from error


def _too_much(text: str) -> tuple[int, str, str]:
    """Find a part of valid TOML that Python cannot read; returns its offset, a description and a remedy."""
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(bracket[0], 0)
        if depth > MAX_DEPTH:
            return bracket.start(), f"is nested more than {MAX_DEPTH} deep", "make it flatter"
    number = max(re.finditer(r"[\d_]+", text), key=lambda digits: len(digits[0]))
    return number.start(), f"a number of {len(number[0])} digits", WHOLE_NUMBERS


def _syntax_problem(where: str, text: str, message: str) -> Problem:
    position = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if position is None:  # tomllib says "(at end of document)"
        return Problem(where, "", f"not TOML: {message}")
    what, line = message[: position.start()], text.split("\n")[int(position[1]) - 1]
    key, _, value = (part.strip() for part in line.partition("="))
    remedy = f'text stands in quotes: {key} = "{value}"' if re.fullmatch(r"[A-Za-z][\w.-]*", value) else ""
    at = key if re.fullmatch(r"[\w.-]+", key) else ""
    return Problem(f"{where}:{position[1]}:{position[2]}", at, f"not TOML: {what}", remedy)


def apply_override(tree: Tree, override: str) -> None:
    """Lay one ``SECTION.KEY=VALUE`` over the tree; a VALUE that is not TOML is a string."""
    key, equals, text = override.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        tree.problems.append(
            Problem("--set", override, "is not SECTION.KEY=VALUE", "for example --set training.gamma=0.98")
        )
        return
    if len(path) > MAX_DEPTH:
        what = f"is nested more than {MAX_DEPTH} deep"
        tree.problems.append(Problem("--set", key, what, "no setting is"))
        return
    try:
        tree.assign(path, _parse_value(text.strip()), "--set")
    except (ValueError, RecursionError):
        _, what, remedy = _too_much(text)
        tree.problems.append(Problem("--set", key, what, remedy))


def _parse_value(text: str) -> object:
    """Read a TOML value; returns other text as a string.

    Raises:
        ValueError: a number has too many digits.
        RecursionError: the value is nested too deeply.
    """
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text


def shipped_directory() -> Path | None:
    """Find the directory of the shipped configs: beside the code in a wheel, else at the checkout's root."""
    package = Path(tianji_cli.__file__).resolve().parent
    installed = package / "configs"
    if installed.is_dir():
        return installed
    checkout = package.parents[1]
    if (checkout / "configs").is_dir() and (checkout / "pyproject.toml").is_file():
        return checkout / "configs"
    return None


def shipped_configs() -> dict[str, Path]:
    """List the shipped configs by the name that finds them from anywhere, ``configs/NAME.toml``."""
    directory = shipped_directory()
    if directory is None:
        return {}
    return {f"configs/{path.name}": path for path in sorted(directory.glob("*.toml"))}


def find_config(name: str, base: Path) -> Path | None:
    """Find a config by its path, or a shipped one as ``configs/NAME.toml``, ``NAME.toml`` or ``NAME``.

    A relative path begins in ``base``.
    """
    path = base / Path(name).expanduser()
    # Unlike Path's methods, os.path raises nothing if a name is too long. A pipe is read like a file.
    if os.path.exists(path) and not os.path.isdir(path):
        return path
    parts = Path(name).parts
    if len(parts) == 1 or (len(parts) == 2 and parts[0] == "configs"):
        return shipped_configs().get(f"configs/{parts[-1].removesuffix('.toml')}.toml")
    return None


def not_found(name: str, base: Path, where: str, key: str = "") -> Problem:
    """Describe a config that does not exist, and name the one that was probably meant."""
    path = base / Path(name).expanduser()
    if os.path.isdir(path):
        return Problem(
            where, key, "is a directory" if where == name else f"{name} is a directory", "name a TOML file"
        )
    beside = sorted(path.parent.glob("*.toml")) if os.path.isdir(path.parent) else []
    candidates = [str(Path(name).parent / found.name) for found in beside] + list(shipped_configs())
    by_stem = {Path(candidate).stem: candidate for candidate in reversed(candidates)}
    stem = next(iter(nearest(path.name.removesuffix(".toml"), by_stem)), None)
    near = by_stem[stem] if stem is not None else None
    remedy = f"did you mean {near!r}?" if near else "`configs/NAME.toml` finds the ones that come with tianji"
    return Problem(where, key, "no such file" if where == name else f"no such file: {name}", remedy)


def shown(path: Path) -> str:
    """Write a path relative to the working directory if it lies below it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
