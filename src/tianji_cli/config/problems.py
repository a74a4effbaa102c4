"""What is wrong with a config, the name that was probably meant, and where configs are found."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tianji_cli
from tianji_plugins import nearest

LONGEST: Final = 200
"""Characters of a value in a message."""

_LONG: Final = re.compile(
    rf"""(?<!\w)(['"])(?:\\.|(?!\1)[^\\]){{{LONGEST - 1},}}\1(?!\w)|\S{{{LONGEST + 1},}}""", re.DOTALL
)

KeyPath = tuple[str, ...]
"""Where a value stands in a config: section, key, and whatever lies below the key."""


@dataclass(frozen=True)
class Problem:
    """One line of a ``ConfigError``: ``where: key: what; remedy``.

    Attributes:
        where: the file (or ``--set``) that set the value.
        key: dotted path of the value; empty if the file as a whole is meant.
        what: what is wrong.
        remedy: what would be right; may be empty.
    """

    where: str
    key: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        what = f"{self.what}; {self.remedy}" if self.remedy else self.what
        key = self.key if len(self.key) <= LONGEST else f"{self.key[: LONGEST - 3]}..."
        # What a user's own module raises may have several lines.
        return " ".join(": ".join(part for part in (self.where, key, cut(what)) if part).split())


def cut(text: str) -> str:
    """Shorten the values in a message: a value stands in quotes, or has no blank in it."""
    return _LONG.sub(lambda value: f"{value[0][: LONGEST - 4]}...{value[1] or ''}", text)


def dotted(path: Iterable[str]) -> str:
    """Write a path the way ``--set`` takes it.

    >>> dotted(("distribution", "actor", "num"))
    'distribution.actor.num'
    """
    return ".".join(path)


def shipped_directory() -> Path | None:
    """Find where the configs lie: beside the code in a wheel, at the repository's root otherwise."""
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

    Args:
        name: what the user wrote.
        base: directory that a relative path begins in.
    """
    path = base / Path(name).expanduser()
    if os.path.isfile(path):  # Unlike Path's own, it raises nothing where a name is too long.
        return path
    parts = Path(name).parts
    if len(parts) == 1 or (len(parts) == 2 and parts[0] == "configs"):
        return shipped_configs().get(f"configs/{parts[-1].removesuffix('.toml')}.toml")
    return None


def not_found(name: str, base: Path, where: str, key: str = "") -> Problem:
    """Say that a config is not there, and which one was probably meant."""
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
    """Write a path as short as it can be read from the working directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
