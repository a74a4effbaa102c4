"""The error of a bed that cannot be made."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence


class BedUnavailableError(Exception):
    """This machine cannot carry the bed; the message says why."""


def require_root(what: str) -> None:
    """Make sure that we may make namespaces at all.

    Raises:
        BedUnavailableError: we are not root.
    """
    if os.geteuid() != 0:
        raise BedUnavailableError(f"only root may make {what}")


def require_programs(programs: Sequence[str], packages: str) -> None:
    """Make sure that programs are installed.

    Raises:
        BedUnavailableError: some are not; the message names the Debian packages that have them.
    """
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise BedUnavailableError(f"no {', '.join(missing)} here: apt-get install {packages}")


def attempt(*command: str) -> None:
    """Run a command that makes a part of a bed.

    Raises:
        BedUnavailableError: it failed; the message is its output.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BedUnavailableError(f"{' '.join(command)}: {done.stderr.strip()}")
