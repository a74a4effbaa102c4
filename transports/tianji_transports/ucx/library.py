"""Loads UCX the way this project needs it, without touching the user's settings in the environment.

``import ucxx`` puts settings of its own into the environment, which child processes would take for the
user's; this module removes them again once the library has read them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

from tianji_transports.errors import TransportError

SETTINGS: Final = {
    # UCX would print the variables that it did not read, ours and ucxx's among them.
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    # Rendezvous lets a receiver read a sender's memory (CMA, RDMA). UCX aborts the whole process if that
    # sender was killed meanwhile, and over TCP a rendezvous moves only while both sides are inside UCX.
    # Eager messages do neither, and are the faster ones through shared memory and over TCP alike.
    "UCX_RNDV_THRESH": "inf",
    # Standard output is for the results of a command, such as --json -.
    "UCX_LOG_FILE": "stderr",
}
"""Defaults of this engine, where the user has set nothing."""
READ_AT_IMPORT: Final = ("UCX_WARN_UNUSED_ENV_VARS", "UCX_LOG_FILE")
"""Settings that UCX reads while it is imported, and that no context takes."""


def _load() -> tuple[Any, Any]:
    """Import ucxx's core and its arrays with ``SETTINGS``, and leave the environment as it was."""
    before = {name: value for name, value in os.environ.items() if name.startswith("UCX_")}
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        from ucxx._lib import libucxx  # noqa: PLC0415 - reads the environment while it is imported
        from ucxx._lib.arr import Array  # noqa: PLC0415
    finally:
        for name in [name for name in os.environ if name.startswith("UCX_") and name not in before]:
            del os.environ[name]
    return libucxx, Array


_USERS: Final = frozenset(name for name in os.environ if name.startswith("UCX_"))
"""Variables that were set before this module was imported: the user's."""
libucxx, Array = _load()


def new_context() -> Any:
    """Open UCX with tags and wake-ups.

    Raises:
        TransportError: UCX cannot be initialised, most often because of a ``UCX_`` variable.
    """
    settings = {
        name.removeprefix("UCX_"): value
        for name, value in SETTINGS.items()
        if name not in _USERS and name not in os.environ and name not in READ_AT_IMPORT
    }
    users = ", ".join(f"{name}={os.environ[name]}" for name in sorted(_USERS) if name in os.environ)
    with translated(f"UCX cannot start with {users}" if users else "UCX cannot start"):
        return libucxx.UCXContext(settings, (libucxx.Feature.TAG, libucxx.Feature.WAKEUP))


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn errors of ucxx into ``TransportError``."""
    try:
        yield
    except (libucxx.UCXError, RuntimeError, OSError) as error:
        raise TransportError(f"{what}: {error}") from error


@dataclass(frozen=True)
class Fabric:
    """Transports and devices of UCX on this machine, under the settings of the environment.

    Attributes:
        version: version of UCX.
        ucxx: version of the Python package.
        local: transports that messages take inside a host.
        remote: transports and devices that messages take between hosts.
        infiniband: InfiniBand and RoCE devices.
    """

    version: str
    ucxx: str
    local: tuple[str, ...]
    remote: tuple[str, ...]
    infiniband: tuple[str, ...]


def describe() -> Fabric:
    """Query UCX's transports and devices.

    Raises:
        TransportError: UCX cannot be initialised.
    """
    lanes = re.findall(r"flags \S+ (\w+)/(\S+)", new_context().info)
    remote = [(kind, device) for kind, device in lanes if kind not in _INSIDE]
    devices = sorted({device for kind, device in remote if kind not in ("tcp", *_COPIES)})
    return Fabric(
        version=".".join(map(str, libucxx.get_ucx_version())),
        ucxx=_ucxx_version(),
        local=tuple(sorted({kind for kind, _ in lanes if kind in _INSIDE and kind != "self"})),
        remote=tuple(f"{kind}/{device}" for kind, device in remote if kind not in _COPIES and device != "lo"),
        infiniband=tuple(devices),
    )


def _ucxx_version() -> str:
    """Find the version of ucxx; the name of its distribution depends on the CUDA version."""
    for name in ("ucxx-cu12", "ucxx-cu13", "ucxx"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "of unknown version"


_INSIDE: Final = ("self", "sysv", "posix", "cma", "xpmem", "knem")
_COPIES: Final = ("cuda_copy", "cuda_ipc", "gdr_copy", "rocm_copy", "rocm_ipc")
