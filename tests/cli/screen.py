"""A terminal to start programs on: a real pseudo-terminal, and the screen that what they write leaves."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterable
from pathlib import Path

import pytest

ESCAPE = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])")


class Screen:
    """A terminal's screen: as much of a VT100 as a live display may use.

    Args:
        cleared: columns and lines that it has from when it is cleared.
    """

    def __init__(self, columns: int, lines: int, cleared: tuple[int, int] | None = None) -> None:
        self.columns, self.height = columns, lines
        self.cleared = cleared or (columns, lines)
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
            case ("", "H"):
                self.x = self.y = 0
            case ("2", "J"):
                self.columns, self.height = self.cleared
                self.lines = [""] * self.height
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


def on_terminal(
    program: str, *arguments: str, columns: int = 80, lines: int = 24, **environment: str
) -> tuple[bytes, int, bytes]:
    """Run a Python program with a terminal of this size as its stdin and stderr.

    Returns:
        What it wrote there, its exit status, and its stdout.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    hidden = {"COLUMNS", "LINES", "NO_COLOR", "LC_ALL", "LC_CTYPE", "LANG"}
    plain = {key: value for key, value in os.environ.items() if key not in hidden}
    started = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=plain | {"TERM": "xterm-256color"} | environment,
        cwd=Path(__file__).parents[1],
    )
    os.close(theirs)
    written = b"".join(_read_all(ours))
    out, _ = started.communicate(timeout=120)
    return written, started.returncode, out


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
