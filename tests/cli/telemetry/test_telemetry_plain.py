import io
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from tianji_cli.telemetry.plain import PlainDisplay, QuietDisplay
from tianji_cli.telemetry.snapshot import Snapshot
from tianji_cli.throughput.bottleneck import Bottleneck, Kind


def fields(line: str) -> dict[str, str]:
    """Take a logfmt line apart."""
    return dict(pair.split("=", 1) for pair in shlex.split(line))


def test_a_line_says_what_the_metrics_say_under_the_same_names(snapshot: Callable[..., Snapshot]) -> None:
    stream = io.StringIO()
    PlainDisplay(stream).show(snapshot(5))
    assert fields(stream.getvalue()) == {
        "elapsed_s": "7.0",
        "env_steps": "226000",
        "episodes": "185",
        "mean_100": "150",
        "episodes_in_mean": "100",
        "produced_per_s": "45200",
        "received_per_s": "45100",
        "consumed_per_s": "180400",
        "replay_ratio_target": "4",
        "replay_ratio_actual": "3.98",
        "lag_mean": "1.25",
        "lag_p95": "3",
        "lag_max": "5",
        "next_stop": "mean_return",
        "eta_s": "12",
    }


def test_frames_are_told_where_a_step_takes_several(snapshot: Callable[..., Snapshot]) -> None:
    stream = io.StringIO()
    PlainDisplay(stream).show(snapshot(5, frames_per_step=4))
    line = fields(stream.getvalue())
    assert (line["env_steps"], line["frames"], line["frames_per_s"]) == ("226000", "904000", "180800")


def test_a_line_of_a_run_with_a_replay_says_how_old_and_how_used_its_samples_are(
    snapshot: Callable[..., Snapshot], with_replay: dict[str, Any]
) -> None:
    stream = io.StringIO()
    PlainDisplay(stream).show(snapshot(5, **with_replay))
    line = fields(stream.getvalue())
    assert (line["replay_size"], line["replay_capacity"]) == ("34048", "50048")
    assert (line["age_p50"], line["age_p95"], line["age_max"]) == ("12000", "40100", "49900")
    assert (line["uses_mean"], line["uses_max"]) == ("3.96", "13")
    assert line["stale_priorities"] == "12"


def test_a_line_of_a_run_of_groups_says_how_averaging_goes(
    snapshot: Callable[..., Snapshot], of_groups: dict[str, Any]
) -> None:
    stream = io.StringIO()
    PlainDisplay(stream).show(snapshot(5, **of_groups))
    line = fields(stream.getvalue())
    assert (line["averaging_rounds"], line["averaging_missed"], line["averaging_lost"]) == ("12", "0,3", "1")


@pytest.mark.parametrize("kind", ["training-bound", "in step"])
def test_a_line_names_the_bottleneck_once_it_is_known(snapshot: Callable[..., Snapshot], kind: Kind) -> None:
    stream = io.StringIO()
    PlainDisplay(stream).show(snapshot(5, bottleneck=Bottleneck(kind, "more actors will not help")))
    assert fields(stream.getvalue())["bottleneck"] == kind


def test_before_the_first_episode_has_ended_a_line_says_so(snapshot: Callable[..., Snapshot]) -> None:
    stream = io.StringIO()
    PlainDisplay(stream).show(snapshot(0))
    assert fields(stream.getvalue())["mean_100"] == "no episode has ended yet"
    assert "nan" not in stream.getvalue().lower()


def test_there_is_at_most_one_line_a_second_and_the_last_state_is_among_them(
    snapshot: Callable[..., Snapshot],
) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    for tenth in range(96):
        display.show(snapshot(5, elapsed_s=tenth / 10))
    display.close()
    display.close()
    shown_s = [float(fields(line)["elapsed_s"]) for line in stream.getvalue().splitlines()]
    assert shown_s == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9.5]


def test_a_day_leaves_a_log_that_can_be_read(snapshot: Callable[..., Snapshot]) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    for second in range(86_400):
        display.show(snapshot(5, elapsed_s=float(second)))
    lines = stream.getvalue().splitlines()
    assert 1440 < len(lines) < 1800
    last_s, end_s = (float(fields(line)["elapsed_s"]) for line in lines[-2:])
    assert end_s - last_s == 60


def test_an_event_is_one_line_at_once(snapshot: Callable[..., Snapshot]) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    display.event("starting")
    display.show(snapshot(5))
    display.event('actor 3 said "no\nmore"')
    lines = stream.getvalue().splitlines()
    assert lines[0] == 'event="starting"'
    assert lines[2] == 'elapsed_s=7.0 event="actor 3 said \\"no\\nmore\\""'
    assert len(lines) == 3


def test_quiet_shows_nothing(snapshot: Callable[..., Snapshot], capfd: pytest.CaptureFixture[str]) -> None:
    display = QuietDisplay()
    display.remember(1.0)
    display.show(snapshot())
    display.event("starting")
    display.close()
    assert capfd.readouterr() == ("", "")
