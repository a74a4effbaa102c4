"""Keeps the user's modules as they were when a session of a run began, even if their files change later.

The first build reports the modules that it has imported. Processes that start later import the same sources,
under the names and paths of the files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

TIANJI: Final = {
    f"tianji{part}" for part in ("", "_cli", "_lab", "_algos", "_envs", "_transports", "_plugins")
}
INSTALLED: Final = {"site-packages", "dist-packages"}


class KeptModule(NamedTuple):
    """Path of a module's file, and its bytes as Latin-1 text."""

    file: str
    source: str


def read_modules(names: Iterable[str]) -> dict[str, KeptModule]:
    """Read the modules that are the user's: not installed, not Python's, not TianJi's. Imports none."""
    found: dict[str, KeptModule] = {}
    for name in names:
        module = sys.modules.get(name)
        spec = _spec_of(name) if module is None else getattr(module, "__spec__", None)
        if spec is None or spec.origin is None:
            continue
        if TIANJI & {name.partition(".")[0], spec.name.partition(".")[0]}:
            continue
        file = Path(spec.origin)
        of_python = file.is_relative_to(sysconfig.get_path("stdlib")) or not INSTALLED.isdisjoint(file.parts)
        if file.suffix == ".py" and not of_python:
            with suppress(OSError):
                found[name] = KeptModule(str(file), file.read_bytes().decode("latin-1"))
    return found


def _spec_of(name: str) -> ModuleSpec | None:
    """Find the spec by which a module would be imported; the name in the spec is the last part alone."""
    spec, path = None, None
    for part in name.split("."):  # A namespace package would look up its parent by the whole name.
        if (spec := PathFinder.find_spec(part, path)) is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return spec


def digests(modules: Mapping[str, KeptModule]) -> dict[str, str]:
    """Return the SHA-256 of modules' sources, by name."""
    return {name: hashlib.sha256(kept.source.encode("latin-1")).hexdigest() for name, kept in modules.items()}


class KeptModules(MetaPathFinder):
    """Lets a process import modules as they were kept, when it is the first entry of ``sys.meta_path``."""

    def __init__(self, modules: Mapping[str, KeptModule]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module that was kept."""
        del path, target
        if (kept := self._modules.get(fullname)) is None:
            return None
        loader = _Loader(fullname, kept.file)
        loader.source = kept.source.encode("latin-1")
        return importlib.util.spec_from_file_location(fullname, kept.file, loader=loader)


class _Loader(SourceFileLoader):
    source: bytes

    def path_stats(self, path: str) -> Mapping[str, float]:
        """Raise FileNotFoundError, so that byte code, perhaps of another source, is not read or written."""
        raise FileNotFoundError(path)

    def get_data(self, path: str) -> bytes:
        """Return the source that was kept, or a data file of the module."""
        return self.source if path == self.path else super().get_data(path)
