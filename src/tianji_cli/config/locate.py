"""Finds config files: a path that exists, or else one of the configs that come with tianji."""

from __future__ import annotations

import os
from pathlib import Path

import tianji_cli
from tianji_cli.config.problems import Problem, nearest


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
    stem = nearest(path.name.removesuffix(".toml"), by_stem)
    near = by_stem[stem] if stem is not None else None
    remedy = f"did you mean {near!r}?" if near else "`configs/NAME.toml` finds the ones that come with tianji"
    return Problem(where, key, "no such file" if where == name else f"no such file: {name}", remedy)


def shown(path: Path) -> str:
    """Write a path as short as it can be read from the working directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
