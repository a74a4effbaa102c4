"""With ``environment.metrics``, everything that shows a run shows them; without, nothing does."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.display import render
from tianji_cli.telemetry.metrics import MetricsFollower, MetricsWriter, read_summary, scalars
from tianji_cli.telemetry.report import print_result
from tianji_cli.telemetry.snapshot import Snapshot, Summary
from tianji_cli.wire.reports import Evaluation

MEANS = {"success": 0.25, "steps": 12.5}
MEASURED: dict[str, Any] = {
    "episodes": 170,
    "episodes_in_mean": 100,
    "metrics": MEANS,
    "evaluation": Evaluation(100, 12.0, 2.3, metrics={"success": 0.5, "steps": 9.0}),
}


def test_a_row_and_the_events_have_them_or_do_not_mention_them(snapshot: Callable[..., Snapshot]) -> None:
    assert snapshot(metrics=MEANS).metrics()["returns.metrics"] == MEANS
    told = dict(scalars(snapshot(metrics=MEANS)))
    assert (told["returns/metrics/success"], told["returns/metrics/steps"]) == (0.25, 12.5)
    assert "returns.metrics" not in snapshot().metrics()
    assert not any(tag.startswith("returns/metrics/") for tag in dict(scalars(snapshot())))


def test_so_it_is_with_the_summary(summary: Callable[..., Summary]) -> None:
    document = summary(**MEASURED).document()
    assert document["returns"]["metrics"] == MEANS
    assert document["evaluation"]["metrics"] == {"success": 0.5, "steps": 9.0}
    assert '"metrics"' not in json.dumps(summary().document())


def test_they_are_read_back_as_they_were(
    run: RunDirectory, snapshot: Callable[..., Snapshot], summary: Callable[..., Summary]
) -> None:
    writer = MetricsWriter(run, print)
    writer.write(snapshot(metrics=MEANS))
    writer.close()
    (row,) = MetricsFollower(run.metrics).rows()
    assert row.snapshot() == snapshot(metrics=MEANS)
    run.summary.write_text(json.dumps(summary(**MEASURED).document()))
    assert read_summary(run.summary) == summary(**MEASURED)


def test_the_live_display_shows_them(snapshot: Callable[..., Snapshot]) -> None:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(render(snapshot(metrics=MEANS), "ppo", None, console))
    shown = [line.rstrip() for line in console.export_text().splitlines()]
    assert "metrics     success 0.250, steps 12.5, means of the last 100 episodes" in shown


def test_the_result_tells_them(summary: Callable[..., Summary], capsys: pytest.CaptureFixture[str]) -> None:
    print_result(summary(**MEASURED), RunDirectory(Path("experiments/x/3")))
    shown = capsys.readouterr().out
    assert "metrics         success 0.250, steps 12.5, means of the last 100 episodes\n" in shown
    assert (
        "evaluation      12.0  mean of 100 greedy episodes, standard deviation 2.30\n"
        "its metrics     success 0.500, steps 9.00\n"
    ) in shown
