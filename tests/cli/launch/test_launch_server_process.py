"""A fork server that is started before anything is asked of it, and may be of no use after all."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tianji_cli.launch.node import LocalNode
from tianji_cli.launch.server_process import ServerProcess


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_server_of_no_use_is_gone_at_once_and_leaves_no_descriptor() -> None:
    before = set(os.listdir("/proc/self/fd"))
    began = time.monotonic()
    with ServerProcess(preload=True) as server:
        assert is_there(server.pid)
    assert time.monotonic() - began < 1.0, "its imports take longer"
    assert not is_there(server.pid)
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_node_takes_the_server_over_and_ends_it() -> None:
    with ServerProcess() as server:
        with LocalNode(server) as node:
            assert node.pid == server.pid
        assert not is_there(server.pid)


def test_a_server_that_cannot_be_started_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        ServerProcess()
    assert set(os.listdir("/proc/self/fd")) == before
