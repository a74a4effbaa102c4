"""Which other package has an environment that gymnasium lacks: its files say so, and it need not be imported.

gymnasium knows an environment once the module that registers it was imported, and ids that begin with that
module's name (``"minigrid:MiniGrid-Empty-5x5-v0"``) have it imported.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from typing import Final

_KNOWN: Final[Mapping[str, tuple[str, str]]] = {
    "AdroitHand": ("gymnasium_robotics", "gymnasium-robotics"),
    "AntMaze": ("gymnasium_robotics", "gymnasium-robotics"),
    "BabyAI-": ("minigrid", "minigrid"),
    "Fetch": ("gymnasium_robotics", "gymnasium-robotics"),
    "FrankaKitchen": ("gymnasium_robotics", "gymnasium-robotics"),
    "HandManipulate": ("gymnasium_robotics", "gymnasium-robotics"),
    "Meta-World/": ("metaworld", "metaworld"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "MiniWorld-": ("miniworld", "miniworld"),
    "Panda": ("panda_gym", "panda-gym"),
    "PointMaze": ("gymnasium_robotics", "gymnasium-robotics"),
    "highway-": ("highway_env", "highway-env"),
}
"""Module and distribution of well-known environments, by how their ids begin."""


def well_known(name: str) -> str:
    """Say which package has ids that begin so, as the end of a sentence; empty if none is known."""
    module, distribution = next(
        (known for prefix, known in _KNOWN.items() if name.startswith(prefix)), ("", "")
    )
    if not module:
        return ""
    if find_spec(module) is None:
        return f'; {distribution} has such ones: pip install {distribution}, then id = "{module}:{name}"'
    return f'; {distribution} is installed and has such ones: id = "{module}:{name}" imports it'


def registered_elsewhere(name: str) -> str:
    """Say which installed package registers an id, as the end of a sentence; empty if none does."""
    module = next(_registering(name), None) if name else None
    return "" if module is None else f'; {module} is installed and has it: id = "{module}:{name}" imports it'


def how_to_install(module: str) -> str:
    """Say how to install a module, as the end of a sentence; empty if that is not known."""
    found = next((distribution for known, distribution in _KNOWN.values() if known == module), None)
    return f"; pip install {found}" if found else ""


def _registering(name: str) -> Iterator[str]:
    """Find modules of installed packages whose sources register an id with gymnasium."""
    call = re.compile(rb"""\bregister\(\s*(?:id\s*=\s*)?["']%b["']""" % re.escape(name.encode()))
    for distribution in distributions():
        for source, module in _sources(distribution) if _needs_gymnasium(distribution) else ():
            if b"gymnasium" in source and call.search(source):
                yield module


def _needs_gymnasium(distribution: Distribution) -> bool:
    needed = any(re.match(r"gymnasium\b", required) for required in distribution.requires or ())
    return needed and distribution.name != "gymnasium"  # Its extras need itself.


def _sources(distribution: Distribution) -> Iterator[tuple[bytes, str]]:
    """Read the source files of a distribution, each with the name of the module that it is in or of."""
    for file in distribution.files or ():
        if file.suffix == ".py":
            with contextlib.suppress(OSError):  # It is listed, and gone.
                yield file.read_binary(), file.parts[0].removesuffix(".py")
