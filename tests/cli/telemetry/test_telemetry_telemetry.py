import contextlib
import io
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tianji_cli.files.rundir import RunDirectory, write_whole
from tianji_cli.telemetry.display import Display, PlainDisplay, choose_display
from tianji_cli.telemetry.metrics import has_writer
from tianji_cli.telemetry.snapshot import Snapshot, Summary
from tianji_cli.telemetry.telemetry import Telemetry


def test_a_run_leaves_metrics_events_plots_log_and_summary(
    run: RunDirectory, snapshot: Callable[..., Snapshot], summary: Callable[..., Summary]
) -> None:
    stream = io.StringIO()
    telemetry = Telemetry(run, PlainDisplay(stream))
    for second in range(4):
        telemetry.update(snapshot(second))
    telemetry.event("actor 2 was restarted")
    assert telemetry.close(summary()) == summary()
    left = {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}
    events = {name for name in left if name.startswith("events.out.tfevents.")}
    assert len(events) == 1
    plots = {
        f"plots/{name}.png" for name in ("return_over_steps", "return_over_time", "throughput", "policy_lag")
    }
    assert left - events - plots == {"config.toml", "metrics.jsonl", "summary.json", "logs/root-0.log"}
    assert json.loads(run.summary.read_text()) == summary().document()
    assert run.log("root", 0).read_text().endswith(" actor 2 was restarted\n")
    assert stream.getvalue().count("\n") == 5


def test_the_roots_log_keeps_its_beginning_and_its_end(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tianji_cli.files.regular.LOG_BYTES", 1000)
    telemetry = Telemetry(run, Display())
    for number in range(500):
        telemetry.event(f"actor 0 was restarted for the {number}. time")
    log = run.log("root", 0)
    assert log.stat().st_size <= 2100
    first, *_, last = log.read_text().splitlines()
    assert first.endswith(" the 0. time")
    assert last.endswith(" the 499. time")


def test_whoever_finds_that_nobody_writes_metrics_any_more_finds_the_summary(
    run: RunDirectory, summary: Callable[..., Summary], monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = Telemetry(run, Display())
    written: list[bool | None] = []

    def write(path: Path, content: bytes) -> None:
        written.append(has_writer(run.metrics))
        write_whole(path, content)

    monkeypatch.setattr("tianji_cli.telemetry.telemetry.write_whole", write)
    telemetry.close(summary(), plots=False)
    assert written == [True]
    assert has_writer(run.metrics) is False
    assert run.summary.exists()


def test_the_root_stays_light(tmp_path: Path) -> None:
    program = """
import sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import build_snapshot, build_summary
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.display import choose_display
from tianji_cli.telemetry.telemetry import Telemetry
from tianji_cli.telemetry.report import print_result
heavy = {"torch", "tensorflow", "gymnasium", "matplotlib"}
run = RunDirectory.create("x", Path(sys.argv[2]))
telemetry = Telemetry(run, choose_display("x", quiet=False, stream=sys.stderr))
telemetry.update(build_snapshot())
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert threading.active_count() == 1
print_result(telemetry.close(build_summary()), run)
assert heavy & set(sys.modules) == {"matplotlib"}
assert "matplotlib.pyplot" not in sys.modules
"""
    directory = Path(__file__).parent
    subprocess.run([sys.executable, "-c", program, str(directory), str(tmp_path)], check=True)


def test_a_full_disk_ends_no_run_and_is_in_the_result(
    small_disk: Path, snapshot: Callable[..., Snapshot], summary: Callable[..., Summary]
) -> None:
    run = RunDirectory.create("x", small_disk)
    stream = io.StringIO()
    telemetry = Telemetry(run, PlainDisplay(stream))
    for second in range(200):
        telemetry.update(snapshot(second))
    result = telemetry.close(summary())
    assert stream.getvalue().count("metrics cannot be written (No space left on device)") == 1
    assert result.status == "failed"
    assert "snapshots are missing from the metrics (No space left on device)" in result.reason
    assert f"{run.summary} could not be written (No space left on device)" in result.reason
    assert not run.summary.exists()
    assert "the plots could not be drawn" in stream.getvalue()
    assert list(run.plots.iterdir()) == []


def test_a_disk_that_was_full_for_a_while_costs_snapshots_only(
    small_disk: Path, snapshot: Callable[..., Snapshot], summary: Callable[..., Summary]
) -> None:
    run = RunDirectory.create("x", small_disk)
    telemetry = Telemetry(run, Display())
    for second in range(200):
        telemetry.update(snapshot(second))
    os.truncate(run.metrics, 0)
    result = telemetry.close(summary(), plots=False)
    assert result.status == "finished"
    assert json.loads(run.summary.read_text())["reason"] == result.reason
    assert result.reason.startswith("mean_return 475 reached; ")


def test_a_terminal_that_goes_away_ends_no_run(
    run: RunDirectory,
    snapshot: Callable[..., Snapshot],
    summary: Callable[..., Summary],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    before = sys.stderr
    with os.fdopen(theirs, "w") as terminal:
        telemetry = Telemetry(run, choose_display("x", quiet=False, stream=terminal))
        telemetry.update(snapshot(1))
        os.close(ours)
        for second in range(2, 5):
            telemetry.update(snapshot(second))
        telemetry.event("checkpoint written")
        assert sys.stderr is before
        assert telemetry.close(summary(), plots=False).status == "finished"
    assert len(run.metrics.read_text().splitlines()) == 4
    assert "the display has gone" in run.log("root", 0).read_text()


def test_a_pipe_that_nobody_reads_any_more_ends_no_run(
    run: RunDirectory, snapshot: Callable[..., Snapshot], summary: Callable[..., Summary]
) -> None:
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    telemetry = Telemetry(run, choose_display("x", quiet=False, stream=stream))
    os.close(reader)
    for second in range(1, 5):
        telemetry.update(snapshot(second))
    assert telemetry.close(summary(), plots=False).status == "finished"
    with contextlib.suppress(BrokenPipeError):
        stream.close()
    assert len(run.metrics.read_text().splitlines()) == 4


def test_quiet_runs_write_everything_and_show_nothing(
    run: RunDirectory,
    snapshot: Callable[..., Snapshot],
    summary: Callable[..., Summary],
) -> None:
    stream, threads = io.StringIO(), threading.active_count()
    telemetry = Telemetry(run, choose_display("x", quiet=True, stream=stream))
    telemetry.update(snapshot())
    telemetry.event("actor 2 was restarted")
    telemetry.close(summary(), plots=False)
    assert stream.getvalue() == ""
    assert run.summary.exists()
    assert len(run.metrics.read_text().splitlines()) == 1
    assert threading.active_count() == threads
