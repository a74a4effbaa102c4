"""Progress goes to stderr: a line a second at most, or one that is drawn anew."""

from __future__ import annotations

import re
import threading
import time

import pytest
from cli.screen import Screen, on_terminal

from tianji_cli.telemetry.progress import Progress, status


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


WAITING = """
import os, signal, sys, threading, time
from tianji_cli.telemetry import progress
from tianji_cli.telemetry.progress import Progress, status

progress.FIRST_S = progress.TICK_S = 0.05
drawn = threading.Event()
draw = progress.Progress._draw
progress.Progress._draw = lambda self: (draw(self), drawn.set())[0]
sys.stderr.write("before\\n")
try:
    line = status("slow") if sys.argv[1] == "status" else Progress(40, False, ticks=True)
    with line as shown:
        shown.begin("importing what is slow")
        shown.at(7, "importing what is slow")
        assert drawn.wait(60)
        sys.stderr.write("a warning of another\\n")
        drawn.clear()
        assert drawn.wait(60)
        match sys.argv[2]:
            case "held back":
                came = []
                signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
                os.kill(os.getpid(), signal.SIGUSR1)
                drawn.clear()
                assert drawn.wait(60)
                for _ in range(1000):
                    pass
                assert not came
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
                assert came
            case "interrupted":
                os.write(2, b"^C")  # As a terminal does.
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(5)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
except KeyboardInterrupt:
    sys.stderr.write("interrupted\\n")
assert threading.active_count() == 1, threading.enumerate()
sys.stderr.write("the result\\n")
"""


@pytest.mark.parametrize(
    ("kind", "end", "said"),
    [
        ("status", "over", ["the result"]),
        ("bar", "held back", ["the result"]),
        ("status", "interrupted", ["interrupted", "the result"]),
        ("bar", "interrupted", ["interrupted", "the result"]),
    ],
)
def test_a_line_that_ticks_is_gone_at_the_end_and_its_thread_too(
    kind: str, end: str, said: list[str]
) -> None:
    written, status, _ = on_terminal(WAITING, kind, end, PYTHONUTF8="1")
    screen = Screen(80, 24)
    screen.feed(written.decode())
    assert status == 0, screen.text
    assert "importing what is slow" in written.decode()
    assert screen.text.splitlines() == ["before", "a warning of another", *said]
    assert screen.cursor_shown


@pytest.mark.parametrize("columns", [30, 80, 120])
@pytest.mark.parametrize("environment", [{"PYTHONUTF8": "1"}, {"NO_COLOR": "1", "PYTHONUTF8": "1"}])
def test_a_bar_has_its_numbers_beside_it_and_room_for_what_a_terminal_writes(
    columns: int, environment: dict[str, str]
) -> None:
    written, _, _ = on_terminal(WAITING, "bar", "killed", columns=columns, **environment)
    screen = Screen(columns, 24)
    screen.feed(written.decode())
    assert screen.cursor_shown
    line = screen.text.splitlines()[-1]
    assert "7/40" in line
    assert len(line) <= columns - 4
    assert columns < 80 or "7/40 importing what is slow" in line
    assert ("━" in written.decode()) == (columns >= 60)
    # After a second there is the time, in a colour too.
    without_time = re.sub(r"\S+\d+ s\S*", "", written.decode())
    assert bool(re.search(r"\x1b\[[\d;]*38;5;", without_time)) == (
        columns >= 60 and "NO_COLOR" not in environment
    )


def test_a_terminal_that_can_draw_nothing_anew_is_written_to_as_a_pipe() -> None:
    written, _, _ = on_terminal(
        "from tianji_cli.telemetry.progress import Progress, status\n"
        "with status('slow'): pass\n"
        "with Progress(2, False) as shown: shown.begin('one'); shown.done()\n",
        TERM="dumb",
    )
    assert written == b"0/2 done one\r\n1/2 done\r\n"


def test_a_pipe_gets_no_status(capfd: pytest.CaptureFixture[str]) -> None:
    with status("slow") as shown:
        shown.begin("still slow")
    assert capfd.readouterr() == ("", "")
