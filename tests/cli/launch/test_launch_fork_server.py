"""A worker begins when the root knows of it, and never if the server has died before it could tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tianji_cli.launch.fork_server import _once_known


@pytest.mark.parametrize("said", [b"!", b""])
def test_a_process_that_the_root_was_not_told_of_does_nothing(said: bytes) -> None:
    told, tell = os.pipe()
    os.write(tell, said)
    os.close(tell)
    begun: list[int] = []
    _once_known(told, begun.append, 7)
    assert begun == ([7] if said else [])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(told)


FORKED = """
import os
from pydantic._internal import _generate_schema
from tianji_cli.config.schema import Distribution
from tianji_cli.launch.fork_server import build_shared_validators, preload
from tianji_cli.wire.messages import Register, decode_from_root, encode

preload()
build_shared_validators()
pid = os.fork()
if pid:
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
built = []
generate = _generate_schema.GenerateSchema.__init__
def noted(self, *arguments, **keywords):
    built.append(arguments)
    generate(self, *arguments, **keywords)
_generate_schema.GenerateSchema.__init__ = noted
decode_from_root(b'{"kind": "stop"}')
encode(Register(rank=1, incarnation=0, pid=2, address="there"))
Distribution.model_validate({})
assert not built, "a worker builds validators of its own"
"""


def test_forked_workers_share_what_reads_and_writes_their_messages() -> None:
    """Each would build 6 MB of its own, which with a thousand actors is a quarter of a machine's memory."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


ENDS = """
import atexit, os, socket, sys, weakref
from tianji_cli.launch.fork_server import ForkServer, _end

class Thing: pass
inherited, own = Thing(), Thing()
weakref.finalize(inherited, print, "the server's")
server = ForkServer(socket.socketpair()[0])
if pid := server._fork(print):
    print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sys.exit()
weakref.finalize(own, print, "the worker's")
atexit.register(print, "at its end")
print("not flushed yet", end="; ")
gone = weakref.proxy(Thing())
kept = open("kept", "w")
kept.write("written")
_end(3)
"""


def test_a_forked_process_ends_with_its_own_exit_handlers_files_and_status(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (tmp_path / "kept").read_text() == "written"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "not flushed yet; at its end",
        "the worker's",
        "status 3",
        "the server's",
    ]
