"""Runs that are watched from elsewhere: in a pipe, on a terminal, to their end and beyond."""

import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import termios
import threading
from pathlib import Path
from typing import Any, Self

import pytest
from cli.lifecycle.conftest import ENDLESS, TIANJI
from cli.sessions import PATIENCE_S, kill_session

import tianji

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command on a terminal of 150 columns and 40 lines, both of its outputs there."""

    def __init__(self, place: Path, *arguments: str, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))
        without = {"COLUMNS", "LINES", "NO_COLOR", "LC_ALL", "LC_CTYPE", "LANG", "PYTHONUTF8"}
        self.process = subprocess.Popen(
            [TIANJI, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=place,
            env={key: value for key, value in os.environ.items() if key not in without}
            | {"TERM": "xterm-256color"}
            | (environment or {"PYTHONUTF8": "1"}),
            start_new_session=True,
        )
        os.close(theirs)
        self._written = bytearray()
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        kill_session(self.process.pid)
        self._reader.join()
        self.process.wait()
        os.close(self._ours)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # Linux answers EIO once the other side has closed
            while data := os.read(self._ours, 1 << 16):
                self._written += data

    @property
    def screen(self) -> str:
        """The output so far."""
        return self._written.decode(errors="ignore")

    @property
    def text(self) -> str:
        """The same without escape sequences."""
        return ESCAPE.sub("", self.screen)

    def read_to_end(self, status: int = 0) -> str:
        """Wait for the end of the command; gives what it has written."""
        self._reader.join(PATIENCE_S)
        assert self.process.wait(PATIENCE_S) == status, self.screen
        return self.screen


def fields(line: str) -> dict[str, str]:
    """Take a logfmt line apart."""
    return dict(pair.split("=", 1) for pair in shlex.split(line))


def test_a_run_is_watched_in_a_pipe_and_on_a_terminal_and_does_not_mind(workplace: Any) -> None:
    run = workplace.train(workplace.with_goal())
    workplace.until((run.path / "config.toml").exists, "the run begins")
    piped = workplace.command("watch", "run", "--out", "out", "--json", "watched.json")
    left = workplace.command("watch", "out/run/1")
    run.train_until(1000)
    workplace.until(lambda: left.stderr, "something is shown")
    os.kill(left.pid, signal.SIGINT)
    left.wait(130)
    assert left.last_words == "tianji: interrupted"
    with Terminal(workplace.place, "watch", "out/run/1") as terminal:
        named_one = re.compile(r"bottleneck  \S+: ")
        workplace.until(lambda: named_one.search(terminal.text), "a bottleneck is shown")
        workplace.until(lambda: piped.stderr, "something is shown in a pipe")
        run.reach_goal()
        screen = terminal.read_to_end()
    piped.wait(0)
    summary = run.finish()

    assert summary["status"] == "finished"
    assert piped.stdout == run.command.stdout
    assert json.loads((workplace.place / "watched.json").read_text()) == summary | {"run": str(run.path)}
    rows = run.rows
    lines = [fields(line) for line in piped.stderr.splitlines()]
    assert {line["env_steps"] for line in lines} <= {str(row["env_steps"]) for row in rows}
    assert lines[-1]["env_steps"] == str(rows[-1]["env_steps"])
    named = [row["bottleneck"] and row["bottleneck"]["kind"] for row in rows]
    assert named[0] is None
    assert summary["bottleneck"] is not None
    assert lines[-1]["bottleneck.kind"] == named[-1]

    text = ESCAPE.sub("", screen)
    last = text[text.rindex("run (out/run/1)") :]
    for shown in ("mean of the last 100", "stops at    mean_return", "pid", "learner"):
        assert shown in last
    # The newest row may be too young to be drawn, and may name another one.
    assert any(f"bottleneck  {kind}: " in last for kind in named if kind)
    assert run.command.stdout.split("\n", 1)[0] in last
    assert screen.rindex("\x1b[?25h") > screen.rfind("\x1b[?25l"), "the cursor is given back"


def test_training_and_watching_show_one_chart_in_the_characters_of_their_terminals(workplace: Any) -> None:
    evaluation = {"every_s": 0.5, "episodes": 2}
    config = workplace.config({"experiment": {"stop": {"wall_s": 3600.0}, "evaluation": evaluation}})
    # They are warm no more than a user's: what takes long before there is a run is to be seen.
    with Terminal(workplace.place, "train", str(config), "--out", "out") as train:
        workplace.until((workplace.place / "out/run/1/config.toml").exists, "the run begins")
        with Terminal(workplace.place, "watch", "out/run/1", LANG="C") as watch:
            workplace.until(lambda: "o evaluation" in watch.text, "an evaluation is shown")
            run = tianji.Run(workplace.place / "out/run/1")
            workplace.until(lambda: len(run.evaluations["mean"]) > 3, "more are shown at the end")
            os.kill(train.process.pid, signal.SIGINT)
            trained, watched = (ESCAPE.sub("", end) for end in (train.read_to_end(130), watch.read_to_end()))
    assert "importing torch, building environment and model once" in trained
    assert "starting" in trained
    for shown, tick, mark in ((trained, "┤", "◆"), (watched, "+", "o")):
        last = shown[shown.rindex("run (out/run/1)") :]
        chart = last[last.index("stops at") : last.index("env steps\r")]
        # Which numbers stand at the ticks depends on the returns so far.
        assert len(re.findall(rf"\d(?: [KM])? {re.escape(tick)}", chart)) >= 2
        assert f"{mark} evaluation" in chart
        assert chart.count(mark) >= 3, "its line in the legend has an o of its own"
    assert watched.isascii()


def test_of_a_run_whose_root_is_killed_the_command_that_goes_on_with_it_is_told(workplace: Any) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(1000)
    learner = run.command.kill("buffer and learner", signal.SIGSTOP)
    watch = workplace.command("watch", "out/run/1")
    workplace.until(lambda: watch.stderr, "something is shown")
    os.kill(run.command.pid, signal.SIGKILL)
    run.command.wait()
    with pytest.raises(subprocess.TimeoutExpired):  # Its learner has not saved yet: nobody could go on.
        watch.process.wait(2.0)
    os.kill(learner, signal.SIGCONT)
    watch.wait(1)
    assert watch.stdout == ""
    assert "tianji: error: out/run/1 has ended without a result" in watch.stderr
    assert watch.last_words == "go on with it: tianji train --resume out/run/1"
    assert run.saved_env_steps > 0
