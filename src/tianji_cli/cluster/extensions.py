"""The user's own modules: found at the root, sent to hosts that join, and laid down there.

A config names them as ``module:attribute``. What they import from the same directories goes with them;
installed packages and data files do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from modulefinder import ModuleFinder
from pathlib import Path, PurePosixPath
from typing import Final

from tianji_cli.config.schema import JobConfig

DIRECTORY: Final = "extensions"
"""Where they are on a host that has joined, below its own directory."""


def collect_modules(config: JobConfig) -> dict[str, str]:
    """Read the source of every module of the user's that a config needs.

    Returns:
        Source text by path, relative to the directory that modules are imported from.
    """
    sources: dict[str, str] = {}
    finder = ModuleFinder(path=list(config.experiment.extensions))
    for name in _modules_named(config):
        try:
            finder.import_hook(name)
        except ImportError:
            continue  # An installed package, which every host has to have.
    roots = [Path(directory).resolve() for directory in config.experiment.extensions]
    for module in finder.modules.values():
        source: str | None = getattr(module, "__file__", None)
        if source is None:
            continue
        file = Path(source).resolve()
        # A package may import its parts by names that nobody can foresee.
        files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
        for root in roots:
            for found in files:
                if found.is_relative_to(root):
                    sources.setdefault(found.relative_to(root).as_posix(), found.read_text(encoding="utf-8"))
    return sources


def lay_down(sources: Mapping[str, str], directory: Path) -> None:
    """Write modules below a directory.

    Raises:
        ValueError: a path leads out of it.
    """
    for name, source in sources.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or path.suffix != ".py":
            raise ValueError(f"{name!r} is no path of a module")
        file = directory / DIRECTORY / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source, encoding="utf-8")


def _modules_named(config: JobConfig) -> list[str]:
    transport = config.distribution.transport
    named = [
        config.environment.type,
        config.environment.id or "",
        config.agent.type,
        config.model.type,
        config.training.type,
        *(role.type for role in config.roles.values()),
        transport.local,
        transport.remote,
    ]
    return list(dict.fromkeys(name.partition(":")[0] for name in named if ":" in name))
