"""Where episodes are won, everything that shows a run shows the win rate; elsewhere nothing mentions it."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.display import PlainDisplay, render
from tianji_cli.telemetry.metrics import MetricsFollower, MetricsWriter, read_summary, scalars
from tianji_cli.telemetry.plots import draw_plots
from tianji_cli.telemetry.report import print_result
from tianji_cli.telemetry.snapshot import Snapshot, StopProgress, Summary
from tianji_cli.wire.reports import Evaluation

WON: dict[str, Any] = {
    "episodes": 170,
    "episodes_in_mean": 120,
    "win_rate": 0.825,
    "evaluation": Evaluation(100, 12.0, 2.3, 0.9, {"scout": 4.0, "tank": 8.0}),
}


def keys(value: Any) -> Iterator[str]:
    """Names of all that is in a JSON document."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield name
            yield from keys(below)


def test_a_row_and_the_events_have_the_win_rate_or_do_not_mention_it(
    snapshot: Callable[..., Snapshot],
) -> None:
    assert snapshot(win_rate=0.25).metrics()["returns.win_rate"] == 0.25
    assert dict(scalars(snapshot(win_rate=0.25)))["returns/win_rate"] == 0.25
    assert not any("win" in name for name in snapshot().metrics())
    assert not any("win" in name for name in dict(scalars(snapshot())))


def test_the_summary_has_wins_and_agents_or_does_not_mention_them(summary: Callable[..., Summary]) -> None:
    document = summary(**WON).document()
    assert document["returns"]["win_rate"] == 0.825
    assert document["evaluation"] == {
        "episodes": 100,
        "mean": 12.0,
        "std": 2.3,
        "win_rate": 0.9,
        "agents": {"scout": 4.0, "tank": 8.0},
        "left_out": 0,
        "cut_off": None,
    }
    assert not {"win_rate", "agents"} & set(keys(summary().document()))
    assert not {"win_rate", "agents"} & set(keys(summary(evaluation=None).document()))


def test_a_win_rate_is_read_back_as_it_was(
    run: RunDirectory, snapshot: Callable[..., Snapshot], summary: Callable[..., Summary]
) -> None:
    written = snapshot(
        win_rate=0.75, stop=(StopProgress("win_rate", 0.75, 0.8, 3.0), StopProgress("wall_s", 5.0, 9.0, 4.0))
    )
    writer = MetricsWriter(run, print)
    writer.write(written)
    writer.close()
    (row,) = MetricsFollower(run.metrics).rows()
    assert row.snapshot() == written
    run.summary.write_text(json.dumps(summary(**WON).document()))
    assert read_summary(run.summary) == summary(**WON)


def test_a_plain_line_tells_the_win_rate(snapshot: Callable[..., Snapshot]) -> None:
    stream = io.StringIO()
    PlainDisplay(stream).show(snapshot(win_rate=0.75))
    assert " returns.mean_100=150 returns.win_rate=0.75 " in stream.getvalue()


def test_the_live_display_shows_the_win_rate_and_how_far_the_goal_is(
    snapshot: Callable[..., Snapshot],
) -> None:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    stop = (StopProgress("win_rate", 0.75, 0.8, 12.0),)
    console.print(render(snapshot(win_rate=0.75, stop=stop), "qmix", None, console))
    shown = [line.rstrip() for line in console.export_text().splitlines()]
    assert "win rate    75 % of the last 100 episodes" in shown
    assert "stops at    win_rate  75 % of 80 %  12 s, 542 K steps left" in shown


def test_the_result_tells_wins_and_what_each_agent_got(
    summary: Callable[..., Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary(**WON), RunDirectory(Path("experiments/x/3")))
    shown = capsys.readouterr().out
    assert "win rate        82 % of the last 120 episodes\n" in shown
    assert (
        "evaluation      12.0  mean of 100 greedy episodes, standard deviation 2.30, 90 % won\n"
        "of each agent   scout 4.00, tank 8.00\n"
    ) in shown


@pytest.mark.parametrize("target", [None, 0.8])
def test_a_win_rate_is_drawn_from_the_metrics(
    run: RunDirectory, snapshot: Callable[..., Snapshot], target: float | None
) -> None:
    stop = () if target is None else (StopProgress("win_rate", 0.1, target),)
    writer = MetricsWriter(run, print)
    for second in range(12):
        writer.write(snapshot(second, win_rate=second / 12 if second > 3 else None, stop=stop))
    writer.close()
    draw_plots(run)
    for over in ("steps", "time"):
        with Image.open(run.plots / f"win_rate_over_{over}.png") as image:
            pixels = {colour: n for n, colour in image.convert("RGB").getcolors(maxcolors=1 << 20)}
        assert (0x00, 0x72, 0xB2) in pixels
        # Letters have a few such pixels at their edges.
        assert (pixels.get((0x66, 0x66, 0x66), 0) > 500) == (target is not None)
