"""``SHA256SUMS``: what the files of a checkpoint were when they were written, as ``sha256sum -c`` reads it.

Needs no torch: the root looks before it starts anything. SHA-256 goes at about 1 GB/s, which a checkpoint's
tensors are worth; the arrays of a replay have a CRC each, three times as fast, in a document that is summed.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tianji_cli.errors import TianjiError
from tianji_cli.files.regular import MOST_DOCUMENT_BYTES, open_regular, read_regular

SUMS: Final = "SHA256SUMS"
_LINE: Final = re.compile(r"([0-9a-f]{64})  ([^/\n]+)")


class CheckpointError(TianjiError):
    """A checkpoint cannot be read or written; the message names the file."""


def seal(directory: Path, names: Sequence[str]) -> None:
    """Write the sums of files in a directory.

    Raises:
        OSError: a file cannot be read, or the disk does not take it.
    """
    lines = []
    for name in names:
        with (directory / name).open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    (directory / SUMS).write_text("".join(lines), encoding="utf-8")


def read_sealed(directory: Path, name: str) -> bytes:
    """Read a file as it was when its directory was sealed, also while another takes the directory's place.

    Raises:
        CheckpointError: it cannot be read, or is another one now; says which older checkpoint is whole.
    """
    while True:
        before = _identity(directory)
        try:
            return _read_sealed(directory, name)
        except (CheckpointError, OSError):
            if _identity(directory) == before:
                raise
            # The file was of the former one, or is gone with it: its writer has replaced it meanwhile.


def _identity(directory: Path) -> tuple[int, int, int] | None:
    """Say which directory a path or a link leads to; None if there is none."""
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _read_sealed(directory: Path, name: str) -> bytes:
    try:
        content, expected = _read(directory / name), _sums(directory).get(name)
    except FileNotFoundError as cause:
        if Path(cause.filename) == directory / SUMS:
            raise CheckpointError(_unsealed(directory)) from cause
        raise CheckpointError(f"cannot read {directory / name}: {cause.strerror}") from cause
    except OSError as cause:
        raise CheckpointError(f"cannot read {directory / name}: {cause.strerror}") from cause
    if hashlib.sha256(content).hexdigest() != expected:
        what = f"its SHA-256 is not the one in {SUMS}" if expected else f"{SUMS} does not name it"
        raise CheckpointError(f"{directory / name} is damaged: {what}\n{_way_out(directory)}")
    return content


def is_whole(directory: Path) -> bool:
    """Say whether every file of a sealed directory is as it was."""
    try:
        sums = _sums(directory).items()
        return bool(sums) and all(
            hashlib.sha256(_read(directory / name)).hexdigest() == expected for name, expected in sums
        )
    except OSError:
        return False


def _read(path: Path) -> bytes:
    with open(open_regular(path), "rb") as file:
        return file.read()


def _sums(directory: Path) -> dict[str, str]:
    text = read_regular(directory / SUMS, MOST_DOCUMENT_BYTES).decode("utf-8", "replace")
    return {found[2]: found[1] for line in text.splitlines() if (found := _LINE.fullmatch(line))}


def _unsealed(directory: Path) -> str:
    place = shlex.quote(str(directory))
    names = " ".join(sorted(shlex.quote(path.name) for path in directory.iterdir()))
    return (
        f"{directory} has no {SUMS}: it is not whole, or an earlier version of tianji has written it\n"
        f"if you know it to be good: (cd {place} && sha256sum {names} > {SUMS})"
    )


def _way_out(directory: Path) -> str:
    """Name the newest other checkpoint beside one that is damaged."""
    damaged = directory.resolve()
    beside = sorted((path for path in directory.parent.iterdir() if path.name.isdecimal()), reverse=True)
    for path in beside:
        if path != damaged and path.resolve() != damaged and is_whole(path):
            in_its_place = (
                f"ln -sfn {path.name} {shlex.quote(str(directory))}" if directory.is_symlink() else ""
            )
            return f"{path.name} beside it is whole" + (in_its_place and f", to go on with: {in_its_place}")
    return "no other checkpoint beside it is whole"
