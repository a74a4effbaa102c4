"""Metrics are read back as they were written, while a run writes them and after damage."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tianji_cli.errors import TianjiError
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.bottleneck import Bottleneck
from tianji_cli.telemetry.metrics import MetricsFollower, MetricsWriter, Row, parsed, read_summary
from tianji_cli.telemetry.snapshot import Snapshot, Summary
from tianji_cli.wire.reports import Evaluating, Evaluation


def line(snapshot: Snapshot) -> bytes:
    return json.dumps(snapshot.metrics() | {"roles": snapshot.standing()}).encode() + b"\n"


def elapsed(follower: MetricsFollower) -> list[float]:
    return [row.wall_s for row in follower.rows() if isinstance(row, Row)]


@pytest.mark.parametrize("second", [0, 5])
def test_a_snapshot_is_read_back_as_it_was(
    run: RunDirectory,
    snapshot: Callable[..., Snapshot],
    with_replay: dict[str, Any],
    of_groups: dict[str, Any],
    bottleneck: Bottleneck,
    second: int,
) -> None:
    late = {"bottleneck": bottleneck, "evaluating": Evaluating(37, 100, 5000, 12.5)}
    written = [snapshot(second), snapshot(second, **late, **with_replay, **of_groups)]
    writer = MetricsWriter(run, print)
    for one in written:
        writer.write(one)
    writer.close()
    first, then = MetricsFollower(run.metrics).rows()
    assert json.loads(run.metrics.read_text().splitlines()[1])["roles"] is None, "they are as before"
    assert [row.snapshot() for row in (first, then) if isinstance(row, Row)] == written


def test_what_was_not_finite_is_not_a_number_again(snapshot: Callable[..., Snapshot]) -> None:
    written = snapshot(losses={"value": math.inf, "policy": 0.5}, consumed_per_s=math.nan)
    row = Row.model_validate_json(line(written))
    found = row.snapshot()
    assert math.isnan(found.learner.losses["value"])
    assert math.isnan(found.consumed_per_s)
    assert found.learner.losses["policy"] == 0.5


def test_the_texts_of_a_row_cannot_command_a_terminal(snapshot: Callable[..., Snapshot]) -> None:
    row = Row.model_validate_json(line(snapshot(losses={"\x1b[2J": 0.5})))
    roles = [dict(role) | {"host": "\x1b]0;x"} for role in row.roles or ()]
    found = row.model_copy(update={"roles": roles}).snapshot()
    assert roles
    assert "\x1b" not in repr(found).replace("\\x1b", "\x1b")
    assert list(found.learner.losses) == ["\N{REPLACEMENT CHARACTER}[2J"]


def test_a_row_of_an_earlier_version_is_shown_without_what_it_does_not_have(
    snapshot: Callable[..., Snapshot],
) -> None:
    row = json.loads(line(snapshot()))
    for newer in ("roles", "reached", "reached_in_s", "bottleneck", "sample_age", "uses", "replay"):
        del row[newer]
    found = Row.model_validate(row).snapshot()
    assert (found.learner.env_steps, found.learner.mean_100, found.roles) == (226_000, 150.0, ())
    assert [(rule.rule, rule.value, rule.target) for rule in found.stop] == [
        ("mean_return", None, 475.0),
        ("env_steps", None, 1_000_000.0),
        ("wall_s", None, 600.0),
    ]


@pytest.mark.parametrize(
    "damage", [{"staleness": 3}, {"updates": None}, {"stop": {"wall_s": []}}, {"bottleneck": {"kind": "?"}}]
)
def test_a_damaged_row_is_an_error_or_none_and_never_a_crash(
    snapshot: Callable[..., Snapshot], damage: dict[str, Any]
) -> None:
    row = json.loads(line(snapshot())) | {"roles": [{"role": 1}]} | damage
    with pytest.raises(ValueError, match="validation error"):
        Row.model_validate(row).snapshot()


def test_rows_are_read_once_as_they_come(tmp_path: Path, snapshot: Callable[..., Snapshot]) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = MetricsFollower(path)
    assert elapsed(follower) == []
    path.write_bytes(line(snapshot(1)) + line(snapshot(2)))
    assert elapsed(follower) == [3.0, 4.0]
    assert elapsed(follower) == []
    with path.open("ab") as file:
        file.write(line(snapshot(3)))
    assert elapsed(follower) == [5.0]


def test_a_line_that_is_being_written_is_read_when_it_is_whole(
    tmp_path: Path, snapshot: Callable[..., Snapshot]
) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = line(snapshot(1))
    follower = MetricsFollower(path)
    for end in (1, 100, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert elapsed(follower) == []
    path.write_bytes(whole)
    assert elapsed(follower) == [3.0]


def test_a_torn_line_that_a_resumed_run_cuts_off_leaves_no_trace(
    run: RunDirectory, snapshot: Callable[..., Snapshot]
) -> None:
    run.metrics.write_bytes(line(snapshot(1)) + line(snapshot(2))[:300])
    follower = MetricsFollower(run.metrics)
    assert elapsed(follower) == [3.0]
    writer = MetricsWriter(run, print, resumed_at=0)
    writer.begin()
    writer.write(snapshot(3))
    writer.close()
    assert elapsed(follower) == [5.0]


@pytest.mark.parametrize(
    "garbage", [b"", b"garbage", b"{}", b"[1]", b"\0" * 100, b"\xff\xfe", b"17", b'{"a":']
)
def test_lines_that_are_no_rows_are_passed_over(
    tmp_path: Path, snapshot: Callable[..., Snapshot], garbage: bytes
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(snapshot(1)) + garbage + b"\n" + line(snapshot(2)))
    assert elapsed(MetricsFollower(path)) == [3.0, 4.0]


def test_another_file_in_its_place_is_read_from_its_beginning(
    tmp_path: Path, snapshot: Callable[..., Snapshot]
) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = MetricsFollower(path)
    path.write_bytes(line(snapshot(1)) + line(snapshot(2)))
    assert elapsed(follower) == [3.0, 4.0]
    os.truncate(path, 0)
    path.write_bytes(line(snapshot(3)))
    assert elapsed(follower) == [5.0]
    other = tmp_path / "other"
    other.write_bytes(line(snapshot(4)) + line(snapshot(5)) + line(snapshot(6)))
    other.replace(path)
    assert elapsed(follower) == [6.0, 7.0, 8.0]
    path.unlink()
    assert elapsed(follower) == []


def test_a_long_history_is_read_in_blocks(tmp_path: Path, snapshot: Callable[..., Snapshot]) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(line(snapshot(second)) for second in range(2000)))
    assert path.stat().st_size > 2 << 20
    assert elapsed(MetricsFollower(path)) == [second + 2.0 for second in range(2000)]


def test_metrics_that_cannot_be_read_are_an_error_with_a_name(tmp_path: Path) -> None:
    with pytest.raises(TianjiError, match=r"cannot read .*: Is a directory"):
        elapsed(MetricsFollower(tmp_path))


def written(run: RunDirectory, summary: Summary) -> dict[str, Any]:
    document = summary.document()
    run.summary.write_text(json.dumps(document, allow_nan=False))
    return document


def test_a_summary_is_read_back_as_it_was(
    run: RunDirectory,
    summary: Callable[..., Summary],
    with_replay: dict[str, Any],
    of_groups: dict[str, Any],
    bottleneck: Bottleneck,
) -> None:
    assert read_summary(run.summary) is None
    for one in (
        summary(),
        summary(**of_groups),
        summary(bottleneck=bottleneck, frames_per_step=4, **with_replay),
        summary(lag=None, evaluation=None, time_to={}),
    ):
        document = written(run, one)
        found = read_summary(run.summary)
        assert found == one
        assert found is not None
        assert found.document() == document


def test_a_summary_with_what_is_not_finite_is_read_back(
    run: RunDirectory, summary: Callable[..., Summary]
) -> None:
    of_team = Evaluation(3, math.nan, math.inf, agents={"left": math.nan, "right": 1.5})
    document = written(run, summary(produced_per_s=math.nan, evaluation=of_team))
    found = read_summary(run.summary)
    assert found is not None
    assert found.document() == document


def test_a_summary_of_an_earlier_version_has_no_bottleneck_and_no_groups(
    run: RunDirectory, summary: Callable[..., Summary]
) -> None:
    document = written(run, summary())
    of_a_replay = ("replay", "uses", "sample_age", "staleness_p", "stale_priorities")
    for newer in ("bottleneck", "averaging", "by_group", "extra", *of_a_replay):
        del document[newer]
    run.summary.write_text(json.dumps(document))
    assert read_summary(run.summary) == summary()


@pytest.mark.parametrize("content", ["", "{}", "[]", "7", '{"status": "finished"}', '{"uses": 3}'])
def test_a_file_that_is_no_summary_is_an_error_with_a_name(run: RunDirectory, content: str) -> None:
    run.summary.write_text(content)
    with pytest.raises(TianjiError, match=r"summary\.json is no summary that this version"):
        read_summary(run.summary)


def test_a_row_of_version_0_1_is_read_under_the_paths_of_today() -> None:
    spread = {"mean": 1.25, "p50": 1.0, "p95": 3.0, "max": 5.0}
    old = {"elapsed_s": 7.0, "env_steps": 900, "updates": 3, "mean_100": 20.5, "best_mean_100": 21.0}
    old |= {"lag": spread, "replay_ratio_target": 4.0, "replay_ratio_actual": 3.5, "produced": 900}
    old |= {"produced_per_s": 9.0, "received_per_s": 9.0, "consumed_per_s": 36.0}
    row = parsed(json.dumps(old).encode())
    assert row is not None
    found = row.snapshot()
    assert (found.elapsed_s, found.learner.mean_100, found.learner.best_mean_100) == (7.0, 20.5, 21.0)
    assert (found.learner.rho, found.replay_ratio) == (4.0, 3.5)
    assert found.learner.lag is not None
    assert found.learner.lag.mean == 1.25


def test_the_summary_of_version_0_1_counts_uses_of_its_session(
    tmp_path: Path, summary: Callable[..., Summary]
) -> None:
    document = summary(session=2, session_consumed=11_600, frames_per_step=4).document()
    old = document | {"schema": 1, "session": 2, "consumed": 11_600}
    del old["frames_per_step"]
    (tmp_path / "summary.json").write_text(json.dumps(old))
    found = read_summary(tmp_path / "summary.json")
    assert found is not None
    assert (found.session, found.learner.session_consumed, found.learner.consumed) == (2, 11_600, 0)
    assert found.frames_per_step == 4
