"""The live display, drawn by a real process on a real pseudo-terminal and read from the screen it leaves."""

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tianji_cli.telemetry.bottleneck import TRAINING_BOUND
from tianji_cli.telemetry.snapshot import Snapshot, StopProgress
from tianji_cli.telemetry.telemetry import LEVELS, LiveDisplay, render, sparkline
from tianji_cli.wire.reports import Evaluating

PROGRAM = """
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
from conftest import build_snapshot
from tianji_cli.telemetry.telemetry import choose_display
actors, seconds = int(sys.argv[2]), int(sys.argv[3])
display = choose_display("ppo_cartpole  experiments/ppo_cartpole/3", quiet=False, stream=sys.stderr)
display.event("4 processes started")
for second in range(seconds):
    display.show(build_snapshot(second, actors))
    if second == 2:
        display.event("actor 3 was killed by SIGKILL and restarted")
assert threading.active_count() == 1, threading.enumerate()
if sys.argv[4] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
display.close()
display.close()
print("the result", file=sys.stderr)
"""

ESCAPE = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])")


class Screen:
    """A terminal's screen: as much of a VT100 as a live display may use."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.height = columns, lines
        self.lines = [""] * lines
        self.scrolled: list[str] = []
        self.x = self.y = 0
        self.cursor_shown = True

    def feed(self, text: str) -> None:
        position = 0
        while position < len(text):
            if text[position] == "\x1b":
                escape = ESCAPE.match(text, position)
                assert escape, f"unknown sequence {text[position : position + 10]!r}"
                self._command(*escape.groups())
                position = escape.end()
            else:
                self._character(text[position])
                position += 1

    def _command(self, argument: str, letter: str) -> None:
        match argument, letter:
            case (_, "m"):
                pass
            case ("?25", "h" | "l"):
                self.cursor_shown = letter == "h"
            case (_, "A"):
                self.y = max(0, self.y - int(argument or 1))
            case ("2", "K"):
                self.lines[self.y] = ""
            case _:
                pytest.fail(f"the display sent a sequence that is not modelled: {argument}{letter}")

    def _character(self, character: str) -> None:
        if character == "\r":
            self.x = 0
        elif character == "\n":
            self._down()
        else:
            if self.x == self.columns:
                self.x = 0
                self._down()
            line = self.lines[self.y].ljust(self.x)
            self.lines[self.y] = line[: self.x] + character + line[self.x + 1 :]
            self.x += 1

    def _down(self) -> None:
        if self.y == self.height - 1:
            self.scrolled.append(self.lines.pop(0))
            self.lines.append("")
        else:
            self.y += 1

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in [*self.scrolled, *self.lines]).strip()


def show_live(
    columns: int, lines: int, actors: int, seconds: int = 6, end: str = "killed", **environment: str
) -> Screen:
    """Run a live display on a pseudo-terminal of this size and return its screen, as it was at the end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    plain = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "LINES", "NO_COLOR"}}
    arguments = [str(Path(__file__).parent), str(actors), str(seconds), end]
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=plain | {"TERM": "xterm-256color", "PYTHONUTF8": "1"} | environment,
    )
    os.close(theirs)
    screen = Screen(columns, lines)
    screen.feed(b"".join(_read_all(ours)).decode())
    assert program.communicate(timeout=60)[0] == b"", "progress belongs to stderr"
    assert program.returncode == (0 if end == "closed" else -signal.SIGKILL), screen.text
    return screen


def _read_all(descriptor: int) -> Iterable[bytes]:
    while True:
        try:
            data = os.read(descriptor, 1 << 16)
        except OSError:  # Linux answers EIO once the other side has closed
            data = b""
        if not data:
            os.close(descriptor)
            return
        yield data


NARROW = """\
4 processes started
4.0 s  actor 3 was killed by SIGKILL and restarted
ppo_cartpole  experiments/ppo_cartpole/3                                   7.0 s
return      150.0  mean of the last 100 of 185 episodes, best 150.0
            ▁▃▅▆█
steps       226 K env steps, 1.75 K updates, policy version 220
rates       produced 45.2 K/s, received 45.1 K/s, consumed 180 K/s
replay      ratio 3.98, target 4.00
policy lag  mean 1.25, p50 1, p95 3, max 5 versions
losses      policy -0.012, value 0.510
stops at    mean_return  150.0 of 475.0   12 s, 542 K steps left
            env_steps    226 K of 1.00 M  18 s, 774 K steps left
            wall_s       7.0 s of 10 min  9 min 53 s, 26.8 M steps left
role     rank  busy  restarts  state
root     0     1 %   0         running
learner  1     97 %  0         running
buffer   1     -     0         running
actor    2     80 %  0         running
actor    3     80 %  0         running"""


def test_a_terminal_of_80_by_24_shows_everything() -> None:
    screen = show_live(80, 24, actors=2)
    assert screen.text == NARROW
    assert screen.scrolled == []


def test_a_wide_terminal_has_room_for_process_ids() -> None:
    text = show_live(120, 40, actors=8).text
    assert "actor    9     4009  84 %  0         running" in text
    assert "ppo_cartpole  experiments/ppo_cartpole/3".ljust(115) + "7.0 s" in text


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40)])
def test_many_actors_are_summed_up(columns: int, lines: int) -> None:
    screen = show_live(columns, lines, actors=32)
    assert re.search(r"32 actors  2-33 .* 80-96 %, median 88 %  0         running", screen.text)
    assert screen.text.count("actor ") == 1, "only the event names an actor of its own"
    assert screen.scrolled == []


def test_roles_that_do_not_fit_in_the_height_are_summed_up() -> None:
    screen = show_live(80, 24, actors=9)
    assert "9 actors" in screen.text
    assert screen.scrolled == []


def test_a_screen_too_narrow_loses_ends_of_lines_and_stays_in_order() -> None:
    screen = show_live(40, 24, actors=2)
    assert screen.text.count("return ") == 1
    assert screen.text.count("policy lag") == 1
    assert max(len(line) for line in screen.lines) <= 40


def test_the_result_takes_the_place_of_the_last_state() -> None:
    assert show_live(80, 24, actors=2, end="closed").text == (
        "4 processes started\n4.0 s  actor 3 was killed by SIGKILL and restarted\nthe result"
    )


def test_before_there_is_anything_to_say_the_display_does_not_say_it() -> None:
    text = show_live(80, 24, actors=2, seconds=1).text
    assert "return      no episode has ended yet" in text
    for word in ("ratio", "not in sight", "policy lag", "nan"):
        assert word not in text.lower().replace("env", "")


def shown(one: Snapshot) -> str:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(render(one, "ppo", (), console))
    return "".join(line.rstrip() + "\n" for line in console.export_text().splitlines())


def test_a_goal_is_out_of_sight_only_once_it_was_looked_for(snapshot: Callable[..., Snapshot]) -> None:
    stop = (StopProgress("mean_return", 20.0, 475.0, None), StopProgress("env_steps", 9.0, 9.0, 0.0))
    # A run that is resumed has trained before, and its pace is not known yet.
    early, late = (
        shown(snapshot(5, stop=stop, elapsed_s=elapsed_s, train_s=500.0)) for elapsed_s in (3.0, 30.0)
    )
    assert "stops at    mean_return  20.0 of 475.0\n" in early
    assert "stops at    mean_return  20.0 of 475.0  not in sight\n" in late
    assert "env_steps    9 of 9         reached\n" in late


def test_an_evaluation_is_shown_in_place_of_the_pace(snapshot: Callable[..., Snapshot]) -> None:
    text = shown(snapshot(5, evaluating=Evaluating(37, 100, 5000, 12.2), bottleneck=TRAINING_BOUND))
    assert "evaluating  37 of 100 episodes, 12 s, 5.00 K env steps\nreturn      150.0" in text
    for label in ("rates", "bottleneck", "stops at"):
        assert label not in text


def test_a_replay_is_shown_in_80_columns(
    snapshot: Callable[..., Snapshot], with_replay: dict[str, Any]
) -> None:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(render(snapshot(5, **with_replay), "dqn", (), console))
    assert (
        "replay      34.0 K of 50.0 K env steps (2.14 MB), ratio 3.98, target 4.00\n"
        "sample age  mean 13.0 K, p50 12.0 K, p95 40.1 K, max 49.9 K env steps\n"
        "uses        mean 3.96, p50 4, p95 8, max 13 of each sample\n"
        "priorities  12 came after their samples had made room\n"
    ) in "".join(line.rstrip() + "\n" for line in console.export_text().splitlines())


def test_frames_are_shown_where_a_step_takes_several(snapshot: Callable[..., Snapshot]) -> None:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(render(snapshot(5, frames_per_step=4), "ppo", (), console))
    shown = "".join(line.rstrip() + "\n" for line in console.export_text().splitlines())
    assert "steps       226 K env steps, 904 K frames, 1.75 K updates, policy version 220\n" in shown


def test_averaging_over_groups_is_shown(snapshot: Callable[..., Snapshot], of_groups: dict[str, Any]) -> None:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(render(snapshot(5, **of_groups), "ppo", (), console))
    shown = console.export_text()
    assert "averaging   12 rounds; group 1 missed 3; group 1 is lost" in shown
    assert "mean of the last 100 of 185 episodes in 2 groups" in shown


def test_the_bottleneck_is_named_in_plain_words(snapshot: Callable[..., Snapshot]) -> None:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(render(snapshot(5, bottleneck=TRAINING_BOUND), "ppo", (), console))
    shown = "".join(line.rstrip() + "\n" for line in console.export_text().splitlines())
    assert (
        "bottleneck  training-bound: more actors will not help; a faster learner would:\n"
        "            more cores where its network uses them, or another group\n"
    ) in shown


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_curve_has_what_was_remembered_before_what_is_shown(
    snapshot: Callable[..., Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    console = Terminal()
    display = LiveDisplay("ppo", console)
    for mean in (70.0, 0.0, 35.0):
        display.remember(mean)
    display.show(snapshot(5, mean_100=70.0))
    display.close()
    assert sparkline([70.0, 0.0, 35.0, 70.0], 10) in console.getvalue()


@pytest.mark.parametrize("end", ["killed", "closed"])
def test_however_a_run_ends_the_shell_has_a_cursor(end: str) -> None:
    assert show_live(80, 24, actors=2, end=end).cursor_shown


def test_a_dumb_terminal_gets_plain_lines() -> None:
    text = show_live(200, 24, actors=2, TERM="dumb").text
    assert "event=" in text
    assert "elapsed_s=7.0 env_steps=226000" in text


def test_a_terminal_without_unicode_gets_no_blocks() -> None:
    text = show_live(80, 24, actors=2, PYTHONUTF8="0", PYTHONIOENCODING="ascii:backslashreplace").text
    assert "150.0  mean of the last 100 of 185 episodes" in text
    assert text.isascii()


def test_the_sparkline_spans_low_to_high_in_the_columns_it_has() -> None:
    assert sparkline([0.0, 7.0], 10) == LEVELS[0] + LEVELS[-1]
    assert sparkline([float(i) for i in range(1000)], 8) == LEVELS
    assert sparkline([-5.0, -5.0], 10) == LEVELS[0] * 2
