"""A worker begins when the root knows of it, and never if the server has died before it could tell."""

from __future__ import annotations

import os

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
