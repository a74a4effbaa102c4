import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tianji_cli.files.rundir import RunDirectory, RunDirectoryError
from tianji_cli.telemetry import metrics
from tianji_cli.telemetry.metrics import AppendOnlyFile, MetricsWriter, has_writer, read_metrics
from tianji_cli.telemetry.snapshot import Snapshot


def write(run: RunDirectory, snapshots: list[Snapshot], resumed_at: int | None = None) -> list[str]:
    warnings: list[str] = []
    writer = MetricsWriter(run, warnings.append, resumed_at)
    writer.begin()
    for snapshot in snapshots:
        writer.write(snapshot)
    writer.close()
    return warnings


def test_every_snapshot_is_one_line_of_json(run: RunDirectory, snapshot: Callable[..., Snapshot]) -> None:
    snapshots = [snapshot(second) for second in range(3)]
    assert write(run, snapshots) == []
    lines = run.metrics.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [{key: row[key] for key in row if key != "roles"} for row in rows] == [
        one.metrics() for one in snapshots
    ]
    assert json.loads(lines[0])["returns.mean_100"] is None


def test_roles_are_in_the_first_row_of_a_session_and_where_they_have_changed(
    run: RunDirectory, snapshot: Callable[..., Snapshot]
) -> None:
    one, other = snapshot(1), snapshot(1, actors=3)
    write(run, [one, one, other, other])
    write(run, [other], resumed_at=1)
    roles = [json.loads(line)["roles"] for line in run.metrics.read_text().splitlines()]
    assert [found if found is None else len(found) for found in roles] == [5, None, 6, None, 6]
    assert roles[0][3] == {
        "rank": 2,
        "role": "actor",
        "group": 0,
        "host": "node1",
        "pid": 4002,
        "restarts": 0,
        "state": "running",
    }


def test_tensorboard_reads_the_events(run: RunDirectory, snapshot: Callable[..., Snapshot]) -> None:
    write(run, [snapshot(second) for second in range(3)])
    events = EventAccumulator(str(run.path)).Reload()
    assert [(point.step, point.value) for point in events.Scalars("returns/mean_100")] == [
        (45_200, 30),
        (90_400, 60),
    ]
    assert {"consumed_per_s", "staleness/p95", "losses/value", "busy/actor"} <= set(events.Tags()["scalars"])


def test_tensorboard_has_the_replay(
    run: RunDirectory, snapshot: Callable[..., Snapshot], with_replay: dict[str, Any]
) -> None:
    write(run, [snapshot(1, **with_replay)])
    events = EventAccumulator(str(run.path)).Reload()
    values = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
    assert values["sample_age/p95"] == 40_100
    assert values["uses/max"] == 13
    assert values["replay/size"] == 34_048
    assert values["stale_priorities"] == 12


def test_a_resumed_run_appends_and_supersedes_what_lay_past_its_checkpoint(
    run: RunDirectory, snapshot: Callable[..., Snapshot]
) -> None:
    write(run, [snapshot(second) for second in range(1, 6)])
    resumed = [snapshot(second, mean_100=1000.0, env_steps=45_200 * second - 1) for second in (4, 5, 6)]
    write(run, resumed, resumed_at=45_200 * 3 + 1)
    assert len(run.metrics.read_text().splitlines()) == 8
    history = read_metrics(run.metrics)
    assert [row["returns.mean_100"] for row in history] == [30, 60, 90, 1000, 1000, 1000]
    points = EventAccumulator(str(run.path)).Reload().Scalars("returns/mean_100")
    assert [point.value for point in points] == [30, 60, 90, 1000, 1000, 1000]


def test_a_line_torn_by_a_kill_is_cut_off_when_the_run_is_resumed(
    run: RunDirectory, snapshot: Callable[..., Snapshot]
) -> None:
    write(run, [snapshot(1), snapshot(2)])
    with run.metrics.open("a") as file:
        file.write('{"elapsed_s": 3.0, "env_st')
    assert len(read_metrics(run.metrics)) == 2
    write(run, [snapshot(3)])
    assert [row["train_s"] for row in read_metrics(run.metrics)] == [1, 2, 3]


def test_of_a_very_large_file_every_third_snapshot_is_read(
    run: RunDirectory, snapshot: Callable[..., Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, [snapshot(second) for second in range(1, 9)])
    monkeypatch.setattr(metrics, "MOST_METRICS_BYTES", run.metrics.stat().st_size * 2 // 5)
    rows = read_metrics(run.metrics)
    assert [row["train_s"] for row in rows] == [1, 3, 6, 8], "and the first and the last"
    assert rows[0]["roles"]


@pytest.mark.parametrize("tail", [b"", b"torn", b"t" * 200_000])
@pytest.mark.parametrize("whole", [b"", b"a\n", b"a" * 100_000 + b"\nb\n"])
def test_only_a_torn_tail_is_cut_off(tmp_path: Path, whole: bytes, tail: bytes) -> None:
    path = tmp_path / "records"
    path.write_bytes(whole + tail)
    file = AppendOnlyFile(path)
    file.cut(file.end_of_last(b"\n"))
    file.append(b"next\n")
    file.close()
    assert path.read_bytes() == whole + b"next\n"


def test_damage_in_the_middle_is_reported_with_its_line(
    run: RunDirectory, snapshot: Callable[..., Snapshot]
) -> None:
    write(run, [snapshot(1)])
    run.metrics.write_text(run.metrics.read_text() + "garbage\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: not a JSON object"):
        read_metrics(run.metrics)


def test_a_run_that_is_still_going_cannot_be_resumed(
    run: RunDirectory, snapshot: Callable[..., Snapshot]
) -> None:
    first = MetricsWriter(run, print)
    with pytest.raises(RunDirectoryError, match="belongs to a run that is still going"):
        MetricsWriter(run, print, resumed_at=5)
    first.write(snapshot())
    first.close()
    MetricsWriter(run, print, resumed_at=5).close()
    assert len(read_metrics(run.metrics)) == 1


def test_a_run_directory_that_is_gone_is_an_error_with_a_name(run: RunDirectory) -> None:
    with pytest.raises(RunDirectoryError, match=r"cannot write metrics to .*/gone: No such file"):
        MetricsWriter(RunDirectory(run.path / "gone"), print)


def test_a_full_disk_is_told_once_and_leaves_whole_records(
    small_disk: Path, snapshot: Callable[..., Snapshot]
) -> None:
    run = RunDirectory(small_disk)
    warnings: list[str] = []
    writer = MetricsWriter(run, warnings.append)
    for second in range(200):
        writer.write(snapshot(second))
    assert warnings == ["metrics cannot be written (No space left on device); the run goes on without them"]
    kept = len(read_metrics(run.metrics))
    assert 10 < kept < 200
    assert run.metrics.read_bytes().endswith(b"}\n")
    # TensorBoard stops at a torn record with a warning; there must be none.
    points = EventAccumulator(str(run.path)).Reload().Scalars("produced_per_s")
    assert len(points) == 200 - writer.lost_rows
    writer.close()


def test_roles_that_did_not_fit_on_the_disk_are_in_the_next_row(
    small_disk: Path, snapshot: Callable[..., Snapshot]
) -> None:
    ballast = small_disk / "ballast"
    writer = MetricsWriter(RunDirectory(small_disk), print)
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(1 << 20))
    writer.write(snapshot(1, actors=100))
    assert writer.lost_rows == 1
    ballast.unlink()
    writer.write(snapshot(2, actors=100))
    writer.close()
    (row,) = read_metrics(small_disk / "metrics.jsonl")
    assert len(row["roles"]) == 103


def test_who_writes_metrics_is_seen_from_outside_and_not_disturbed(
    run: RunDirectory, snapshot: Callable[..., Snapshot]
) -> None:
    writer = MetricsWriter(run, print)
    assert has_writer(run.metrics) is True
    assert has_writer(run.metrics) is True
    writer.write(snapshot())
    writer.close()
    assert has_writer(run.metrics) is False
    with pytest.raises(FileNotFoundError):
        has_writer(run.path / "nothing")


def test_metrics_go_on_once_there_is_room_again(small_disk: Path, snapshot: Callable[..., Snapshot]) -> None:
    ballast = small_disk / "ballast"
    writer = MetricsWriter(RunDirectory(small_disk), print)
    writer.write(snapshot(1))
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(1 << 20))
    for second in range(2, 40):
        writer.write(snapshot(second))
    assert writer.lost_rows
    ballast.unlink()
    writer.write(snapshot(40))
    writer.close()
    seconds = [row["train_s"] for row in read_metrics(small_disk / "metrics.jsonl")]
    assert seconds[0] == 1
    assert seconds[-1] == 40
    assert len(seconds) < 40
