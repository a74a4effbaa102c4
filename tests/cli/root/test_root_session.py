"""The beginning of a session that goes on with a run: whenever it ends, the run is as it was or has begun."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.errors import RunFailed
from tianji_cli.files.directories import replace_link
from tianji_cli.files.rundir import RunDirectory, write_whole
from tianji_cli.files.saved import BEST, EVALUATED, LAST
from tianji_cli.main import main
from tianji_cli.plan.plan import Host, make_plan
from tianji_cli.root import session
from tianji_cli.root.session import RunRequest, SessionRecord, _key_file, _production_file
from tianji_cli.telemetry.display import Display
from tianji_cli.telemetry.machine import last_session, note_session
from tianji_cli.telemetry.telemetry import Telemetry
from tianji_transports.zmq.door import borrowed, listening

EVALUATION = "experiment.evaluation={every_s=10, episodes=2}"
CHANGES_FILES = {"os.rename", "os.symlink", "os.mkdir", "os.remove", "os.truncate"}


def begin(run: RunDirectory, moment: int, *, full: bool) -> None:
    """Begin the second session of a run, and end at the given change of its files.

    Args:
        full: the disk takes nothing from then on; else the process is killed.
    """
    seen = 0

    def ends(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        writes = event == "open" and bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if not (writes or event in CHANGES_FILES) or not str(arguments[0]).startswith(str(run.path)):
            return
        seen += 1
        if seen > moment and full and event != "os.remove":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if seen > moment and not full:
            os.kill(os.getpid(), signal.SIGKILL)

    job = load_config("configs/ppo_cartpole.toml", [EVALUATION, "training.epochs=1"])
    telemetry = Telemetry(run, Display(), 100)
    request = RunRequest(job, run, resumed=True, changes=("its evaluations are others",))
    sys.addaudithook(ends)
    SessionRecord(request, 2, 100, telemetry).on_begin()


def contents(run: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(run)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in run.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("full", [False, True], ids=["killed", "full disk"])
def test_a_session_changes_a_run_as_a_whole_or_not_at_all_whenever_it_ends(
    tmp_path: Path, full: bool
) -> None:
    made = RunDirectory.create("run", tmp_path)
    made.write_config(dump_config(load_config("configs/ppo_cartpole.toml")))
    made.metrics.touch()
    for name, link in (("000000000100", LAST), ("best-000000000100", BEST)):
        (made.checkpoints / name).mkdir()
        (made.checkpoints / name / "model.safetensors").write_text(name)
        replace_link(made.checkpoints / link, name)
    note_session(made, 0, number=1)
    before, moment, status, begun = contents(made.path), 0, 1, []
    while status:
        run = RunDirectory(tmp_path / f"run/{moment + 2}")
        shutil.copytree(made.path, run.path, symlinks=True)
        child = multiprocessing.get_context("fork").Process(
            target=begin, args=(run, moment), kwargs={"full": full}
        )
        child.start()
        child.join(60)
        assert child.exitcode is not None
        status, after = child.exitcode, contents(run.path)
        begun.append(last_session(run) == 2)
        old = set(before) - ({"sessions.jsonl", f"checkpoints/{BEST}"} if begun[-1] else set())
        assert {name: after[name] for name in old} == {name: before[name] for name in old}, moment
        assert (run.checkpoints / BEST / "model.safetensors").is_file(), moment
        if not begun[-1]:
            assert run.config == run.path / "config.toml"
        moment += 1
    assert begun == sorted(begun)
    assert begun.count(False) > 5
    assert run.config.name == "config-2.toml"
    assert os.readlink(run.checkpoints / BEST) == f"{EVALUATED}/{BEST}"
    assert (run.checkpoints / "session-1/model.safetensors").read_text() == "best-000000000100"


def test_files_that_cannot_be_removed_hide_no_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory.create("run", tmp_path)
    plan = make_plan(load_config("configs/ppo_cartpole.toml"), [Host("here", (0, 1))])

    def refuse(path: Path, **_: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def fail() -> None:
        with _key_file(run), _production_file(run, plan):
            monkeypatch.setattr(Path, "unlink", refuse)
            raise RunFailed("the cause")

    with pytest.raises(RunFailed, match="the cause"):
        fail()
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(PermissionError) as refused:
        write_whole(tmp_path / "file", b"")
    assert refused.value.__context__ is None


def test_nobody_can_connect_to_a_root_that_tidies_up(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    refused = []
    of_others = listening()  # What this process has from other tests, or from its parent.

    def tidy_up(run: RunDirectory) -> None:
        for descriptor in listening() - of_others:
            with borrowed(descriptor) as listener, pytest.raises(TimeoutError):
                socket.create_connection(listener.getsockname(), 0.2)
            refused.append(run)

    monkeypatch.setattr(session, "_remove_lockstep_stores", tidy_up)
    with pytest.raises(SystemExit, match="0"):
        main(["train", config, "--out", str(tmp_path / "out"), "--quiet"])
    assert len(refused) == 1, "the control channel listens"
