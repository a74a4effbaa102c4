"""Messages about the end of a tracker's process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tianji_cli.files.rundir import RunDirectory
from tianji_cli.root.observers.trackers import TrackerProcesses

SOURCE = """
import os, signal, sys
from tianji_cli.telemetry.trackers import Tracker

class Quiet(Tracker):
    def log(self, env_steps, values): ...
    def finish(self, summary, files): ...

class Falls(Quiet):
    def __init__(self, tracked):
        sys.stderr.write("all is well\\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSEGV)

class Raises(Quiet):
    def __init__(self, tracked):
        raise OSError("the server is down")
"""


@pytest.mark.parametrize(
    ("name", "cause"),
    [("my_trackers:Falls", "was killed by SIGSEGV"), ("my_trackers:Raises", "server is down")],
)
def test_a_tracker_that_a_signal_ends_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, cause: str
) -> None:
    (tmp_path / "my_trackers.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    run, said = RunDirectory.create("run", tmp_path), list[str]()
    run.write_config("[experiment]\n")
    trackers = TrackerProcesses([name], run, 0, said.append)
    trackers.begin()
    trackers.finish(cast("Any", SimpleNamespace(count=0)))
    trackers.close()
    assert len(said) == 1
    assert cause in said[0]
    assert "all is well" not in said[0]
