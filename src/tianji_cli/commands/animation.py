"""Writes an animated GIF picture by picture: a game of Atari may have 27,000, too many to keep."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from tianji_cli.errors import UsageError

SUFFIX: Final = ".gif"
PICTURES_PER_S: Final = 30
_FOR_EVER: Final = b"!\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"
_END: Final = b";"


class Animation:
    """A GIF that grows while it is played.

    Args:
        path: of the file, which the first picture creates.

    Attributes:
        path: of the file.
        pictures: how many it has.
        closed: it takes no more pictures.

    Raises:
        UsageError: the name promises another format, its directory is not there, or Pillow is missing.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() != SUFFIX:
            right = path.with_suffix(SUFFIX) if path.name else f"play{SUFFIX}"
            raise UsageError(f"--render writes an animated GIF, which {path} is no name for; {right} is")
        self.path = path
        try:
            is_directory, has_place = path.is_dir(), path.parent.is_dir()
        except OSError as cause:
            raise self._unwritable(cause) from cause
        if is_directory or not has_place:
            what = "it is a directory" if is_directory else f"there is no directory {path.parent}"
            raise UsageError(f"--render: cannot write {path}: {what}")
        try:
            import PIL  # noqa: F401, PLC0415 - only rendering needs it
        except ModuleNotFoundError as cause:
            raise UsageError("--render needs Pillow, which is not installed: pip install pillow") from cause
        self.pictures = 0
        self._file: IO[bytes] | None = None
        self.closed = False

    def add(self, picture: npt.NDArray[np.uint8]) -> None:
        """Write one picture, ``[height, width, 3]``, each time of the same size.

        Raises:
            UsageError: the file cannot be written.
        """
        from PIL import GifImagePlugin, Image  # noqa: PLC0415 - only rendering needs it

        image = Image.fromarray(picture).quantize()
        whole: dict[str, Any] = {"duration": 1000 // PICTURES_PER_S, "include_color_table": True}
        try:
            if self._file is None:
                self._file = self.path.open("wb")
                # Each picture brings a colour table of its own, so the file as a whole has none.
                self._file.write(b"GIF89a" + struct.pack("<HHBBB", *image.size, 0, 0, 0) + _FOR_EVER)
            self._file.writelines(GifImagePlugin.getdata(image, **whole))
        except OSError as cause:
            raise self._unwritable(cause) from cause
        self.pictures += 1

    def close(self) -> None:
        """End the file. Harmless when repeated.

        Raises:
            UsageError: the file cannot be written.
        """
        self.closed = True
        file, self._file = self._file, None
        if file is None:
            return
        try:
            with file:
                file.write(_END)
        except OSError as cause:
            raise self._unwritable(cause) from cause

    def _unwritable(self, cause: OSError) -> UsageError:
        return UsageError(f"--render: cannot write {self.path}: {cause.strerror}")
