"""Lengths of episodes are shown wherever their returns are."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.display import render
from tianji_cli.telemetry.metrics import (
    MetricsFollower,
    MetricsWriter,
    evaluation_scalars,
    read_summary,
    scalars,
)
from tianji_cli.telemetry.report import print_result
from tianji_cli.telemetry.snapshot import Snapshot, Summary
from tianji_cli.wire.reports import Evaluation, EvaluatorReport

LENGTHS = {"mean_length": 152.5, "evaluation": Evaluation(100, 12.0, 2.3, length=9.5)}


def test_rows_events_and_the_summary_have_lengths_and_are_read_back(
    run: RunDirectory, snapshot: Callable[..., Snapshot], summary: Callable[..., Summary]
) -> None:
    written = snapshot(mean_length=152.5)
    assert dict(scalars(written))["returns/mean_length"] == 152.5
    writer = MetricsWriter(run, print)
    writer.write(written)
    writer.close()
    (row,) = MetricsFollower(run.metrics).rows()
    assert row.snapshot() == written
    document = summary(**LENGTHS).document()
    assert (document["returns"]["mean_length"], document["evaluation"]["length"]) == (152.5, 9.5)
    run.summary.write_text(json.dumps(document))
    assert read_summary(run.summary) == summary(**LENGTHS)
    assert "length" not in json.dumps(summary().document()), "earlier runs know none"


def test_the_display_and_the_result_say_how_long_episodes_are(
    snapshot: Callable[..., Snapshot], summary: Callable[..., Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(render(snapshot(mean_length=152.5), "ppo", None, console))
    assert "of 185 episodes, 152.5 steps, best" in console.export_text()
    print_result(summary(**LENGTHS), RunDirectory(Path("experiments/x/3")))
    shown = capsys.readouterr().out
    assert "mean of the last 100 of 412 episodes, 152.5 steps, best 476.1" in shown
    assert "mean of 100 greedy episodes, standard deviation 2.30, 9.50 steps" in shown


def test_an_evaluation_that_came_to_nothing_is_shown_as_0() -> None:
    evaluation = Evaluation.of(EvaluatorReport(returns=(0.0, 0.0), length=12.0), 2)
    row = vars(evaluation) | {"env_steps": 7}
    assert evaluation_scalars(row) == {
        "evaluated/mean": 0.0,
        "evaluated/std": 0.0,
        "evaluated/length": 12.0,
    }
