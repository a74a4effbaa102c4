"""A stream that is never waited for, on real pipes and terminals."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest

from tianji_cli.telemetry.display import MOST_KEPT_BYTES, nonblocking

LINE = "x" * 99
LINES = 10_000
"""More than a pipe and what is kept take together."""
NOTICE = re.compile(r"\.\.\. (\d+) writes were left out here: they were not read \.\.\.")


@pytest.fixture(params=["pipe", "terminal"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[int, TextIO]]:
    """A reader's descriptor, and a stream that writes to it."""
    reader, writer = os.pipe() if request.param == "pipe" else pty.openpty()
    if request.param == "terminal":
        attributes = termios.tcgetattr(writer)
        attributes[1] &= ~termios.OPOST  # Lines end as they were written.
        termios.tcsetattr(writer, termios.TCSANOW, attributes)
    with os.fdopen(writer, "w") as stream:
        yield reader, stream
    os.close(reader)


def read_on(reader: int, ours: TextIO, holds: Callable[[bytes], bool]) -> bytes:
    """Read until something holds of what was read, while the stream passes on what it has kept."""
    found = b""
    while not holds(found):
        ours.flush()
        assert select.select([reader], (), (), 10.0)[0], "nothing comes any more"
        found += os.read(reader, 1 << 16)
    return found


def test_what_is_not_read_is_kept_for_later(ends: tuple[int, TextIO]) -> None:
    reader, stream = ends
    with nonblocking(stream) as ours:
        assert ours.isatty() == stream.isatty()
        for i in range(640):
            print(f"{i:099}", file=ours, flush=True)
        found = read_on(reader, ours, lambda found: len(found) == 64_000)
    assert found == "".join(f"{i:099}\n" for i in range(640)).encode()


def test_what_is_not_read_for_long_is_left_out_in_whole_lines_and_that_is_said(
    ends: tuple[int, TextIO],
) -> None:
    reader, stream = ends
    with nonblocking(stream) as ours:
        for _ in range(LINES):
            ours.write(f"{LINE}\n")
        before = read_on(reader, ours, lambda found: len(found) > MOST_KEPT_BYTES // 2)
        ours.write("read again\n")
        after = read_on(reader, ours, lambda found: found.endswith(b"read again\n"))
    *lines, last = (before + after).decode().splitlines()
    assert last == "read again"
    # A terminal that is late takes some more in between, so there may be several notices.
    notices = [NOTICE.fullmatch(line) for line in lines if line != LINE]
    assert notices
    assert all(notices)
    assert lines.count(LINE) + sum(int(notice[1]) for notice in notices if notice) == LINES


def test_a_reader_that_is_gone_is_an_error_of_the_write_and_none_of_the_end() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, nonblocking(stream) as ours:
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            print("x", file=ours, flush=True)


def test_a_file_and_what_is_none_are_given_as_they_are(tmp_path: Path) -> None:
    memory = io.StringIO()
    with (tmp_path / "log").open("w") as file, nonblocking(file) as ours, nonblocking(memory) as same:
        assert (ours, same) == (file, memory)
