"""Films of environments: MP4 (H.264) by PyAV.

A game of Atari may have 27,000 pictures, too many to keep in memory: each is written as it comes. An
unfinished film has a temporary name, so that a file under its final name is always complete, and is locked:
a file with a temporary name and no lock was left by a killed process.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import secrets
import shlex
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from tianji_cli.errors import UsageError, describe
from tianji_cli.files.regular import open_regular

if TYPE_CHECKING:
    import av

Picture = npt.NDArray[np.uint8]

MP4: Final = ".mp4"
PICTURES_PER_S: Final = 30.0
"""Rate of pictures where an environment does not name one."""


class FilmError(UsageError):
    """A film cannot be written; the message says which and why, or what would be right."""


class _Mp4:
    """Writes H.264 in the pixel format that every player knows.

    It halves the resolution of colour, so the sides of a picture are made even.
    """

    def __init__(self, path: Path, picture: Picture, fps: float) -> None:
        import av  # noqa: PLC0415 - only films need it

        height, width, _ = picture.shape
        # FFmpeg takes a name with a colon for an address, unless it begins with a slash.
        self._container = av.open(str(path.absolute()), "w", format="mp4")
        options = {"preset": "veryfast", "crf": "20"}
        rate = Fraction(fps).limit_denominator(1000)
        self._stream: av.VideoStream = self._container.add_stream("libx264", rate=rate, options=options)
        self._stream.width, self._stream.height = width + width % 2, height + height % 2
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.thread_count = 1  # Cores are for others: it may film beside a training.
        self._frame = av.VideoFrame.from_ndarray

    def write(self, picture: Picture) -> None:
        """Append a picture; an odd side gets one more pixel. The codec buffers some dozens of pictures."""
        height, width, _ = picture.shape
        if height % 2 or width % 2:
            picture = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        self._container.mux(self._stream.encode(self._frame(np.ascontiguousarray(picture), format="rgb24")))

    def close(self) -> None:
        """Write the pictures that the codec has buffered, and close the file, even if writing fails."""
        try:
            self._container.mux(self._stream.encode(None))
        finally:
            self._container.close()


def check_library() -> None:
    """Refuse films if their library is missing, without importing it.

    Raises:
        FilmError: the message has the command that installs it.
    """
    if find_spec("av") is None:
        raise FilmError("a film as .mp4 needs PyAV: pip install 'tianji[video]'")


def check_film(path: Path) -> None:
    """Refuse a film that could not be written, before anything is played.

    Raises:
        FilmError: its name promises another format, the library is missing, or the path cannot be a file.
    """
    suffix = path.suffix.lower()
    if suffix != MP4:
        right = str((path if path.name else Path("play")).with_suffix(MP4))
        hint = f"{right} would be right"
        if suffix == ".gif":
            hint += f", and `{shlex.join(('ffmpeg', '-i', right, str(path)))}` converts it"
        raise FilmError(f"{path} names no film that can be written; {hint}")
    check_library()
    try:
        wrong = (path.exists() or path.is_symlink()) and not path.is_file()
        has_place = path.parent.is_dir()
    except OSError as cause:
        raise _unwritable(path, cause) from cause
    if wrong or not has_place:
        what = f"there is no directory {path.parent}"
        if wrong:
            what = "it is a directory" if path.is_dir() else "it is no regular file"
        raise FilmError(f"cannot write {path}: {what}")


def _unwritable(path: Path, cause: Exception) -> FilmError:
    text = cause.strerror if isinstance(cause, OSError) else None
    return FilmError(f"cannot write {path}: {text or describe(cause)}")


class Film(contextlib.AbstractContextManager["Film"]):
    """A film that grows picture by picture; it gets its name when ``finish`` is called.

    As a context manager it discards a film that was not finished.

    Args:
        path: ends in ``.mp4``; see ``check_film``.
        fps: pictures a second.

    Attributes:
        pictures: number of pictures so far.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self.path = path
        self.fps = fps
        self.pictures = 0
        self._temporary = path.with_name(f".{path.name}.{secrets.randbelow(10**9)}")
        self._lock: int | None = None
        self._shape: tuple[int, ...] = ()
        self._writer: _Mp4 | None = None

    def add(self, picture: Picture) -> None:
        """Write one picture, ``[height, width, 3]``, always of the same size.

        Raises:
            FilmError: the file cannot be written, or this picture has another size than the first.
        """
        if self._writer is not None and picture.shape != self._shape:
            height, width, _ = picture.shape
            raise FilmError(
                f"{self.path}: picture {self.pictures + 1} has {width} x {height} pixels, and the first "
                f"{self._shape[1]} x {self._shape[0]}; a film has one size"
            )
        try:
            if self._writer is None:
                self._begin(picture)
            assert self._writer is not None
            self._writer.write(picture)
        except Exception as cause:  # Errors of codecs have no other common base.
            raise _unwritable(self.path, cause) from cause
        self.pictures += 1

    def finish(self) -> None:
        """Give the film its name, replacing an older file; without a picture there is no file.

        Raises:
            FilmError: the file cannot be written; nothing is left of it.
        """
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
            assert self._lock is not None
            os.fsync(self._lock)
            self._temporary.replace(self.path)
        except Exception as cause:  # Likewise.
            raise _unwritable(self.path, cause) from cause
        finally:
            self._remove_temporary()

    def discard(self) -> None:
        """Remove the film, unless it is finished. Harmless when repeated."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(Exception):  # Likewise; perhaps the disk is full.
                writer.close()
            self._remove_temporary()

    def __exit__(self, *_exception: object) -> None:
        self.discard()

    def _begin(self, picture: Picture) -> None:
        self._shape = picture.shape
        remove_leftovers(self.path.parent, self.path.name)
        try:
            self._lock = _make_locked(self._temporary)
            self._writer = _Mp4(self._temporary, picture, self.fps)
        except BaseException:
            self._remove_temporary()
            raise

    def _remove_temporary(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            self._temporary.unlink(missing_ok=True)
            os.close(lock)


def _make_locked(path: Path) -> int:
    """Make a file that is locked until its descriptor is closed, at the latest by the end of the process."""
    while True:
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        with contextlib.suppress(OSError):  # Some network file systems have no locks.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # Another process removed it before it was locked, taking it for a dead one's.


def remove_leftovers(directory: Path, name: str = "") -> None:
    """Remove the files that killed processes have left of one film, or of all films in a directory.

    A file that a living process writes is locked and stays, and so does one that cannot be locked or removed.
    """
    for left in directory.glob(f".{glob.escape(name) or '*'}.*"):
        suffix, number = left.with_suffix("").suffix.lower(), left.suffix[1:]
        if suffix == MP4 and number.isdecimal():
            with contextlib.suppress(OSError):
                descriptor = open_regular(left, os.O_RDWR)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    left.unlink()
                finally:
                    os.close(descriptor)
