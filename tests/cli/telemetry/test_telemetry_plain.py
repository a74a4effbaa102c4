import io
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from tianji_cli.telemetry.bottleneck import Bottleneck, Kind
from tianji_cli.telemetry.display import Display, PlainDisplay
from tianji_cli.telemetry.snapshot import Snapshot, StopProgress
from tianji_cli.wire.reports import Evaluating


def fields(line: str) -> dict[str, str]:
    """Take a logfmt line apart."""
    return dict(pair.split("=", 1) for pair in shlex.split(line))


def line_of(one: Snapshot) -> dict[str, str]:
    stream = io.StringIO()
    PlainDisplay(stream).show(one)
    return fields(stream.getvalue())


def test_a_line_says_in_eight_pairs_what_the_metrics_say_under_the_same_names(
    snapshot: Callable[..., Snapshot], bottleneck: Bottleneck
) -> None:
    assert line_of(snapshot(5, bottleneck=bottleneck)) == {
        "wall_s": "7.0",
        "env_steps": "226000",
        "returns.mean_100": "150",
        "produced_per_s": "45200",
        "consumed_per_s": "180400",
        "eta_s": "12",
        "bottleneck.kind": "sample-bound",
        "staleness.mean": "1.25",
    }


def test_no_line_has_more_than_eight_pairs(
    snapshot: Callable[..., Snapshot],
    with_replay: dict[str, Any],
    of_groups: dict[str, Any],
    bottleneck: Bottleneck,
) -> None:
    everything = {"win_rate": 0.5, "bottleneck": bottleneck, "frames_per_step": 4, "steps_given_up": 3}
    line = line_of(snapshot(5, **with_replay, **of_groups, **everything))
    assert len(line) == 8
    assert (line["returns.win_rate"], line["bottleneck.kind"]) == ("0.5", "sample-bound")


def test_during_the_evaluation_a_line_says_how_far_it_is(snapshot: Callable[..., Snapshot]) -> None:
    line = line_of(snapshot(5, evaluating=Evaluating(37, 100, 5000, 12.2)))
    assert list(line) == ["wall_s", "env_steps", "returns.mean_100", "evaluating"]
    assert line["evaluating"] == "37 of 100 episodes, 12 s"


@pytest.mark.parametrize("kind", ["training-bound", "in step"])
def test_a_line_names_the_bottleneck_once_it_is_known(snapshot: Callable[..., Snapshot], kind: Kind) -> None:
    assert (
        line_of(snapshot(5, bottleneck=Bottleneck(kind, "more actors will not help")))["bottleneck.kind"]
        == kind
    )


def test_before_there_is_anything_to_say_a_line_does_not_say_it(snapshot: Callable[..., Snapshot]) -> None:
    assert list(line_of(snapshot(0, stop=()))) == [
        "wall_s",
        "env_steps",
        "produced_per_s",
        "consumed_per_s",
    ]


def test_there_is_at_most_one_line_a_second_and_the_last_state_is_among_them(
    snapshot: Callable[..., Snapshot],
) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    for tenth in range(96):
        display.show(snapshot(5, elapsed_s=tenth / 10, env_steps=tenth))
    display.close()
    display.close()
    shown_s = [float(fields(line)["wall_s"]) for line in stream.getvalue().splitlines()]
    assert shown_s == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9.5]


def test_while_nothing_changes_there_is_no_line(snapshot: Callable[..., Snapshot]) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    for second, steps in enumerate([0, 0, 0, 5, 5, 5, 9, 9]):
        stop = (StopProgress("wall_s", float(second), 60.0, 60.0 - second),)
        display.show(snapshot(5, elapsed_s=float(second), env_steps=steps, stop=stop))
    display.close()
    shown_s = [float(fields(line)["wall_s"]) for line in stream.getvalue().splitlines()]
    assert shown_s == [0, 3, 6]


def test_while_no_episode_of_an_evaluation_ends_there_is_no_line(snapshot: Callable[..., Snapshot]) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    for second, episodes in enumerate([0, 0, 0, 1, 1, 1, 2]):
        evaluating = Evaluating(episodes, 2, 100 * second, float(second))
        display.show(snapshot(5, elapsed_s=float(second), evaluating=evaluating))
    display.close()
    shown = [fields(line)["evaluating"] for line in stream.getvalue().splitlines()]
    assert shown == ["0 of 2 episodes, 0 s", "1 of 2 episodes, 3 s", "2 of 2 episodes, 6 s"]


def test_a_day_leaves_a_log_that_can_be_read(snapshot: Callable[..., Snapshot]) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    for second in range(86_400):
        display.show(snapshot(5, elapsed_s=float(second), env_steps=second))
    lines = stream.getvalue().splitlines()
    assert 1440 < len(lines) < 1800
    last_s, end_s = (float(fields(line)["wall_s"]) for line in lines[-2:])
    assert end_s - last_s == 60


def test_an_event_is_one_line_at_once(snapshot: Callable[..., Snapshot]) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    display.event("starting")
    display.show(snapshot(5))
    display.event('actor 3 said "no\nmore"')
    lines = stream.getvalue().splitlines()
    assert lines[0] == 'event="starting"'
    assert lines[2] == 'wall_s=7.0 event="actor 3 said \\"no\\nmore\\""'
    assert len(lines) == 3


def test_quiet_shows_nothing(snapshot: Callable[..., Snapshot], capfd: pytest.CaptureFixture[str]) -> None:
    display = Display()
    display.remember_evaluation(100, 1.0)
    display.doing("nothing")
    display.show(snapshot())
    display.event("starting")
    display.close()
    assert capfd.readouterr() == ("", "")
