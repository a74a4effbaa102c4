"""Records of the machine and of the versions of a run's sessions."""

import json
from pathlib import Path

import pytest

from tianji_cli.files.rundir import RunDirectory, RunDirectoryError
from tianji_cli.telemetry.machine import gpus, note_session, read_sessions, versions


def test_each_session_is_a_line_with_its_machine_and_its_versions(run: RunDirectory) -> None:
    assert read_sessions(run) == []
    note_session(run, 0)
    note_session(run, 4096)
    first, second = read_sessions(run)
    assert (first.env_steps, second.env_steps) == (0, 4096)
    assert first.begun <= second.begun
    assert {"host", "kernel", "CPU", "cores", "memory"} <= first.machine.keys()
    assert first.versions == versions()
    assert {"python", "tianji", "torch", "numpy", "gymnasium"} <= first.versions.keys()


def test_a_line_that_is_torn_is_left_out_and_those_beside_it_are_not(run: RunDirectory) -> None:
    note_session(run, 1)
    whole = run.sessions.read_text()
    run.sessions.write_text(whole[:40] + "\n" + json.dumps({"begun": "once"}) + "\n" + whole)
    assert [one.env_steps for one in read_sessions(run)] == [1]


def test_a_place_that_cannot_be_written_is_named(run: RunDirectory) -> None:
    run.sessions.mkdir()
    with pytest.raises(RunDirectoryError, match=r"cannot write .*sessions.jsonl: Is a directory"):
        note_session(run, 0)


def test_gpus_are_those_that_the_driver_names(tmp_path: Path) -> None:
    assert gpus(tmp_path) == []
    for number, model in enumerate(("H100", "H100 \x1b[31m")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text(f"Model: \t\t {model}\nIRQ: 9\n")
    (tmp_path / "2").mkdir()
    (tmp_path / "2/information").write_text("")
    assert gpus(tmp_path) == ["H100", "H100 \N{REPLACEMENT CHARACTER}[31m"]
