"""`tianji join`: this host takes part in another host's job."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tianji_cli.conditions import check_machine
from tianji_cli.config.trust import check_trusted
from tianji_cli.files.directories import remove_stale, temporary_directory
from tianji_cli.launch.host import JoinedHost
from tianji_cli.plan.plan import this_host
from tianji_cli.signals import INTERRUPTED, StopSignals
from tianji_cli.telemetry.progress import say, status
from tianji_cli.wire.address import JobKey, RootAddress, address_towards, parse_address, resolve


def join(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="tcp://HOST:PORT of the job's root.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="The job's key, job.key of its run directory.")],
    *,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
) -> int:
    """Join a job and take part until it is over.

    Example: tianji join 10.0.0.1:5555 --key job.key

    Returns:
        The exit status; that of an interruption if the user has ended the job from here.

    Raises:
        UsageError: the address or the key is wrong, or others may change what this host would use.
        RunFailed: the root is gone or was never there, or sends what makes no sense.
        Interruption: the user stops it.
    """
    tell = (lambda _what: None) if quiet else say
    remove_stale()
    check_machine()
    host, port = parse_address(address)
    root_host = resolve(host)
    # A user who could put another key there could have this host join a job of their own.
    warnings = check_trusted(key, "copy it to a directory of your own")
    root = RootAddress(f"tcp://{root_host}:{port}", JobKey.read(key))
    warnings += check_trusted(Path(tempfile.gettempdir()), "set TMPDIR to a directory of your own")
    for warning in warnings:
        tell(warning)
    with StopSignals() as signals:
        interface, takes_part = address_towards(root_host), True
        with status(f"taking part in the job at {root.address}", quiet=quiet):
            while takes_part:
                with temporary_directory("tianji-host-") as directory:
                    takes_part = JoinedHost(root, this_host(), interface, directory, signals, tell).run()
    remove_stale()
    return INTERRUPTED if signals.count else 0
