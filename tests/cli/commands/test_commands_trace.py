"""`tianji trace` of runs that cannot be traced."""

import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli.commands.test_commands_runs import make_run

from tianji_cli.commands import trace as module
from tianji_cli.commands.trace import trace
from tianji_cli.errors import RunFailed, UsageError
from tianji_cli.files.traces import asked_for, take_request
from tianji_cli.telemetry.metrics import AppendOnlyFile


@pytest.mark.parametrize("seconds", [0.0, -1.0, 601.0, math.nan, math.inf])
def test_no_time_and_too_much_of_it_are_refused(tmp_path: Path, seconds: float) -> None:
    run = make_run(tmp_path, 1)
    with pytest.raises(UsageError, match="is no time to trace: more than 0, and 600 at most"):
        trace(str(run.path), seconds=seconds)


def test_a_run_that_is_over_is_not_traced(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1)
    with pytest.raises(UsageError, match=r"does not run: finished(.|\n)*tianji train \.\.\. --trace 5"):
        trace(str(run.path))


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1)
    for out in (tmp_path, tmp_path / "no/such.json"):
        with pytest.raises(UsageError, match="--out takes a file in a directory that is there"):
            trace(str(run.path), out=out)
    assert not (run.path / "trace").exists()


def test_a_root_that_says_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.3)
    here, elsewhere = make_run(tmp_path, 1, ends=False), make_run(tmp_path, 1, ends=False, host="far")
    for run, why in ((here, "its root is suspended"), (elsewhere, "its root is on far; trace it there")):
        held = AppendOnlyFile(run.metrics)  # As its root has it.
        with pytest.raises(RunFailed, match=f"nothing has come from {run.path} for 0.3 s.*{why}"):
            trace(str(run.path))
        held.close()
        assert not (run.path / "trace").exists(), "the request is taken back"


def test_a_run_that_is_removed_while_it_is_waited_for_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, 1, ends=False)
    held = AppendOnlyFile(run.metrics)
    looked_at = Path.stat

    def stat_and_remove(path: Path, **options: Any) -> os.stat_result:
        found = looked_at(path, **options)
        if path == run.metrics and (run.path / "trace").exists():
            shutil.rmtree(run.path)  # Between two looks of the same question.
        return found

    monkeypatch.setattr(Path, "stat", stat_and_remove)
    with pytest.raises(RunFailed, match="has ended before it was traced"):
        trace(str(run.path))
    held.close()


def test_a_run_of_another_user_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, 1, ends=False)
    held = AppendOnlyFile(run.metrics)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UsageError, match=f"is trained by user {owner}, who alone can trace it"):
        trace(str(run.path))
    held.close()
    assert not (run.path / "trace").exists()


def test_a_request_is_taken_once_and_one_that_is_none_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, ends=False)
    assert take_request(run) is None
    with asked_for(run, 2.0) as place:
        taken = take_request(run)
        assert taken is not None
        assert (taken[0], taken[1].seconds) == (place, 2.0)
        assert take_request(run) is None
        (place.path / "request.json").write_text('{"seconds": 1e9}')
        with pytest.raises(ValueError, match="is no request for a trace"):
            take_request(run)
        with pytest.raises(UsageError, match="is being traced by another process"), asked_for(run, 1.0):
            pass
