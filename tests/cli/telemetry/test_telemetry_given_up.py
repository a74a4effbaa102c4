"""Steps of episodes that outlived their beginning in a replay: shown where there may be any."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.display import PlainDisplay, render
from tianji_cli.telemetry.metrics import read_summary, scalars
from tianji_cli.telemetry.report import print_result
from tianji_cli.telemetry.snapshot import Snapshot, Summary


def shown_of(snapshot: Snapshot) -> str:
    stream, console = io.StringIO(), Console(width=80, height=24, record=True, file=io.StringIO())
    PlainDisplay(stream).show(snapshot)
    console.print(render(snapshot, "qmix", None, console))
    return stream.getvalue() + console.export_text()


@pytest.mark.parametrize(("steps", "shown"), [(0, False), (1500, True)])
def test_what_is_given_up_is_in_every_row_of_sequences_and_shown_if_there_is_any(
    snapshot: Callable[..., Snapshot], with_replay: dict[str, Any], steps: int, shown: bool
) -> None:
    with_sequences = snapshot(5, steps_given_up=steps, **with_replay)
    assert with_sequences.metrics()["steps_given_up"] == steps
    assert dict(scalars(with_sequences))["steps_given_up"] == steps
    said = shown_of(with_sequences)
    assert ("given up    1.50 K steps of episodes that had lost their beginning" in said) is shown


def test_where_no_sequences_are_learnt_from_nothing_mentions_it(
    snapshot: Callable[..., Snapshot], summary: Callable[..., Summary], with_replay: dict[str, Any]
) -> None:
    without = snapshot(5, **with_replay)
    mentioned = {*without.metrics(), *dict(scalars(without)), *summary().document()}
    assert not any("given_up" in name for name in mentioned)
    assert "given" not in shown_of(without)


def test_the_result_says_what_to_do_about_it(
    run: RunDirectory, summary: Callable[..., Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary(steps_given_up=1500), RunDirectory(Path("experiments/x/3")))
    assert (
        "given up        1500 steps belonged to samples whose beginning had left the replay before they "
        "were complete: a larger distribution.buffer.capacity would be right\n"
    ) in capsys.readouterr().out
    print_result(summary(steps_given_up=0), RunDirectory(Path("experiments/x/3")))
    assert "given up" not in capsys.readouterr().out
    run.summary.write_text(json.dumps(summary(steps_given_up=0).document()))
    assert read_summary(run.summary) == summary(steps_given_up=0)
