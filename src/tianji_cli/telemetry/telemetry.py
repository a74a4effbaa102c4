"""The one object through which a run shows itself: metrics files, display, plots and summary.

The root calls it from its loop; nothing here starts a thread. Neither a full disk, nor a closed terminal,
nor one that is not read ends a run or holds it up.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Final, TextIO, cast

from tianji_cli.files.regular import open_to_append
from tianji_cli.files.rundir import RunDirectory, write_whole
from tianji_cli.telemetry.display import Display
from tianji_cli.telemetry.metrics import MetricsWriter
from tianji_cli.telemetry.snapshot import Snapshot, Summary

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


MOST_KEPT_BYTES: Final = 64 << 10
"""What is not read is kept up to this size. Events are in the root's log besides."""
CLOSE_LIMIT_S: Final = 1.0
"""How long the end waits for a reader."""


@contextmanager
def unwaited(stream: TextIO) -> Iterator[TextIO]:
    """Give a stream that writes where another one does, and never waits.

    What the reader does not take is kept for later. If too much is kept already, a write is left out as a
    whole, and the next one that is not says how many were.

    Args:
        stream: the other one. A file is always ready, and is given as it is.
    """
    descriptor = _opened_anew(stream)
    if descriptor is None:
        yield stream
        return
    # Unbuffered between the two: what is printed is kept or left out as a whole.
    taker = cast(IO[bytes], _Unwaited(descriptor))
    with io.TextIOWrapper(taker, stream.encoding, stream.errors, newline="", write_through=True) as ours:
        yield ours


def _opened_anew(stream: TextIO) -> int | None:
    """Open a terminal or a pipe once more: whether writing waits is shared by all that have it open."""
    try:
        stream.flush()
        number = stream.fileno()
        if not stream.isatty() and not stat.S_ISFIFO(os.fstat(number).st_mode):
            return None
        return os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # No file at all, or a terminal of another user's.
        return None


class _Unwaited(io.RawIOBase):
    """Owns a descriptor that does not block, and what its reader has not taken yet.

    What is written is passed on or kept, or left out as a whole and counted; closing waits for the reader.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._kept = bytearray()
        self._left_out = 0

    def writable(self) -> bool:
        """It is for writing only."""
        return True

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """The descriptor, which is not the stream's own."""
        return self._descriptor

    def write(self, data: ReadableBuffer) -> int:
        """Pass text on, keep it, or leave it out as a whole; never waits."""
        text = bytes(data)
        self._pass_on()
        if len(self._kept) + len(text) > MOST_KEPT_BYTES:
            self._left_out += 1
            return len(text)
        if self._left_out:
            self._kept += f"... {self._left_out} writes were left out here: they were not read ...\n".encode()
            self._left_out = 0
        self._kept += text
        self._pass_on()
        return len(text)

    def flush(self) -> None:
        """Pass on as much of what is kept as the reader takes now."""
        if not self.closed:
            self._pass_on()

    def close(self) -> None:
        """Give the reader ``CLOSE_LIMIT_S`` to take what is kept, then close the descriptor."""
        if self.closed:
            return
        try:
            deadline = time.monotonic() + CLOSE_LIMIT_S
            poller = select.poll()
            poller.register(self._descriptor, select.POLLOUT)
            while self._kept and (remaining_s := deadline - time.monotonic()) > 0:
                poller.poll(1000 * remaining_s)
                self._pass_on()
        except OSError:  # The reader is gone.
            pass
        finally:
            os.close(self._descriptor)
            super().close()

    def _pass_on(self) -> None:
        try:
            while self._kept:
                del self._kept[: os.write(self._descriptor, self._kept)]
        except BlockingIOError:
            return
        except OSError:
            self._kept.clear()  # It has no reader any more.
            raise


class Telemetry:
    """Owns what a run shows and writes about itself while it goes and when it ends.

    Args:
        resumed_at: environment steps that a resumed run begins with; None for a new run.

    Raises:
        RunDirectoryError: the metric files cannot be opened, or another process is writing them.
    """

    def __init__(self, run: RunDirectory, display: Display, resumed_at: int | None = None) -> None:
        self.run = run
        self._display = display
        self._metrics = MetricsWriter(run, self.event, resumed_at)

    def update(self, snapshot: Snapshot) -> None:
        """Write a snapshot to the metrics and show it. More than one a second make a finer learning curve."""
        self._metrics.write(snapshot)
        self._on_display(lambda display: display.show(snapshot))

    def event(self, text: str) -> None:
        """Tell the user, and the root's log, that something happened: a restart, a checkpoint, a warning."""
        self._on_display(lambda display: display.event(text))
        self._log(text)

    def close(self, summary: Summary, *, plots: bool = True) -> Summary:
        """Give the terminal back, then write the summary and draw the plots.

        Args:
            plots: False leaves them out, for a run that is to end within a second or whose config says so.

        Returns:
            The summary as it was written. What could not be written is in its ``reason``; a run whose
            summary could not be written counts as failed.
        """
        if self._metrics.lost_rows:
            missing = f"{self._metrics.lost_rows} snapshots are missing from the metrics"
            summary = replace(summary, reason=f"{summary.reason}; {missing} ({self._metrics.last_error})")
        try:
            text = json.dumps(summary.document(), indent=2, allow_nan=False) + "\n"
            write_whole(self.run.summary, text.encode())
        except OSError as cause:
            summary = replace(
                summary,
                status="failed",
                reason=f"{summary.reason}; {self.run.summary} could not be written ({cause.strerror})",
            )
        # Only now: a command that finds no process writing metrics finds the summary, or there is none.
        self._metrics.close()
        try:
            if plots:
                self._draw_plots()
        finally:
            self._on_display(lambda display: display.close())
        return summary

    def _on_display(self, call: Callable[[Display], None]) -> None:
        """Use the display; once its terminal or pipe has gone, the run goes on unseen."""
        try:
            call(self._display)
        except OSError as cause:
            gone, self._display = self._display, Display()
            with contextlib.suppress(OSError):
                gone.close()
            self._log(f"the display has gone ({cause.strerror})")

    def _draw_plots(self) -> None:
        # matplotlib takes half a second to import, and only the end of a run needs it.
        from tianji_cli.telemetry.plots import draw_plots  # noqa: PLC0415

        try:
            draw_plots(self.run)
        except (OSError, ValueError) as cause:
            self.event(f"the plots could not be drawn ({cause})")

    def _log(self, text: str) -> None:
        """Append a line to the root's log; without one there is still the display."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            with open(open_to_append(self.run.log("root", 0)), "a", encoding="utf-8") as file:
                file.write(f"{stamp} {text}\n")
        except OSError:
            return
