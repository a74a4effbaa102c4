"""Progress goes to stderr: a line a second at most, or one that is drawn anew."""

from __future__ import annotations

import threading
import time

import pytest

from tianji_cli.telemetry.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("step_s", "quiet", "shown"),
    [
        (
            1.0,
            False,
            [
                "0/4 done case 0",
                "1/4 done case 1 (last: case 0: 0.5 s)",
                "2/4 done case 2 (last: case 1: 1.5 s)",
                "3/4 done case 3 (last: case 2: 2.5 s)",
                "4/4 done (last: case 3: 3.5 s)",
            ],
        ),
        (
            0.4,
            False,
            ["0/4 done case 0", "3/4 done case 3 (last: case 2: 2.5 s)", "4/4 done (last: case 3: 3.5 s)"],
        ),
        (2.0, True, []),
    ],
)
def test_a_pipe_gets_a_line_a_second_at_most_and_the_last_state_unless_it_is_to_be_quiet(
    clock: list[float], capsys: pytest.CaptureFixture[str], step_s: float, quiet: bool, shown: list[str]
) -> None:
    progress = Progress(4, quiet=quiet)
    for number in range(4):
        progress.begin(f"case {number}")
        clock[0] += step_s
        progress.done(f"{number}.5 s")
    progress.close()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == shown


def test_an_error_closes_it_and_the_total_may_be_known_later(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(0, quiet=False)

    def fail() -> None:
        with progress:
            progress.begin("first")
            progress.total = 9
            progress.done("1 s")
            raise ValueError("of the caller")

    with pytest.raises(ValueError, match="of the caller"):
        fail()
    progress.close()
    assert capsys.readouterr().err.splitlines() == ["0 done first", "1/9 done (last: first: 1 s)"]


def test_a_terminal_gets_a_live_line_without_a_thread(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    before = threading.active_count()
    with Progress(3, quiet=False) as progress:
        progress.begin("shm, [512 KB]")
        assert threading.active_count() == before
        progress.done("1.5 s")
        progress.begin("zmq, [512 KB]")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "1/3" in shown.err
    assert "zmq, [512 KB] (last: 1.5 s)" in shown.err
