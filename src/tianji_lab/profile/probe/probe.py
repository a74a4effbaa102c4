"""A probe: a process that builds the parts of a job and runs them, as lines of JSON on its stdin ask it to.

Started by ``pool``; see ``protocol``. It ends at the end of its stdin, and the kernel kills it with its
parent, which alone acts on a Ctrl-C.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from typing import IO, TYPE_CHECKING

import setproctitle
from pydantic import ValidationError

from tianji_cli.errors import describe
from tianji_cli.launch.children import end_with_parent
from tianji_cli.launch.fork_server import preload
from tianji_cli.roles.role import RoleError
from tianji_lab.profile.probe.protocol import STEP, Answer, Failed

if TYPE_CHECKING:
    from tianji_lab.profile.probe.server import ProbeServer


def main() -> None:
    """Answer until no question comes any more."""
    end_with_parent(signal.SIGKILL)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    setproctitle.setproctitle("tianji: probe")
    steps, answers = _take("rb", 0, os.open(os.devnull, os.O_RDONLY)), _take("wb", 1, os.dup(2))
    # As in every process of a job, before the libraries that read them.
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    preload()
    # Only now may numpy and torch be imported.
    server = importlib.import_module("tianji_lab.profile.probe.server").ProbeServer()
    try:
        for line in steps:
            answers.write(_answer(server, line).model_dump_json().encode() + b"\n")
            answers.flush()
    except BrokenPipeError:  # The command that asked is gone.
        sys.exit(1)
    finally:
        server.close()


def _take(mode: str, descriptor: int, instead: int) -> IO[bytes]:
    """Keep a standard stream for the protocol: what libraries read and print there goes elsewhere."""
    own = os.dup(descriptor)
    os.dup2(instead, descriptor)
    os.close(instead)
    return open(own, mode)


def _answer(server: ProbeServer, line: bytes) -> Answer:
    """Do what a line asks for; whatever goes wrong is the answer."""
    try:
        return server.do(STEP.validate_json(line))
    except ValidationError as error:
        return Failed(cause=f"no step of the protocol: {error.errors()[0]['msg']}")
    except RoleError as failure:
        return _failed(failure.error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - users' own classes raise what they like
        return _failed(error)


def _failed(error: BaseException) -> Failed:
    """Say in a line what was raised, and where on stderr."""
    traceback.print_exception(error)
    return Failed(cause=describe(error))


if __name__ == "__main__":
    main()
