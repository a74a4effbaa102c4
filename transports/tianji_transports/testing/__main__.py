"""Runs the contract over an engine: ``python -m tianji_transports.testing ENGINE [OPTION OF PYTEST ...]``.

ENGINE is a registered name or ``module:Class``. The tests of ``mpi`` run under mpiexec.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tianji_transports.errors import TransportError
from tianji_transports.registry import load
from tianji_transports.testing.peer import STATIONS

PEERS: Final = 16
"""Peers of the largest test."""
MODULE: Final = """
from tianji_transports.testing import {contract}

class TestEngine({contract}):
    engine = {engine!r}
"""
OF_MPI: Final = """
    most_idle = 0.05  # it has nothing to sleep on
    left_unclaimed = 31  # MPICH lets 64 lie unread at a process before it sends nothing more to any other
"""


def run_contract(engine: str, options: Sequence[str], folder: Path) -> int:
    """Run the part of the contract that an engine's capabilities select; returns pytest's exit status."""
    can = load(engine).capabilities
    contract = "TransportContract" if can.peer_restart else "LivingTransportContract"
    if not can.cross_process:
        contract = "OneProcessContract"
    text = MODULE.format(contract=contract, engine=engine) + (OF_MPI if engine == "mpi" else "")
    (folder / "test_contract.py").write_text(text)
    own = ["--rootdir", str(folder), "--import-mode=importlib", "-p", "no:cacheprovider"]
    return int(pytest.main([str(folder), *own, *options]))


def run_under_mpiexec(options: Sequence[str], folder: Path) -> int:
    """Run this command as one process of an MPI job, with its peers as the others."""
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if mpiexec is None:
        raise TransportError("there is no mpiexec: load a cluster's MPI, or pip install mpich")
    module = [sys.executable, "-m", "tianji_transports.testing"]
    peers = ["-n", str(PEERS), *module[:2], f"{module[2]}.stations"]
    environment = {**os.environ, STATIONS: f"{PEERS}:{folder / 'stations'}"}
    command = [mpiexec, "-n", "1", *module, "mpi", *options, ":", *peers]
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    if not arguments or arguments[0].startswith("-"):
        raise SystemExit(__doc__)
    engine, *options = arguments
    with tempfile.TemporaryDirectory(prefix="tianji-") as folder:
        if engine != "mpi":
            return run_contract(engine, options, Path(folder))
        load(engine)  # If it is not installed, this is the error, and not one of every process.
        if STATIONS not in os.environ:
            return run_under_mpiexec(options, Path(folder))
        from tianji_transports.testing.stations import dismiss, invite  # noqa: PLC0415 - needs MPI

        invite()
        try:
            return run_contract(engine, options, Path(folder))
        finally:
            dismiss()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TransportError as error:
        sys.exit(f"tianji_transports.testing: error: {error}")
