"""Example of your own role, which writes every fragment to files; recorder.toml beside this file uses it.

A file holds whole fragments one after the other, with the same bytes as on the transport; layout.json
describes the fields of a fragment. offline.py beside this file reads the files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from tianji_algos.fields import FieldSpec
from tianji_algos.settings import Settings
from tianji_cli.errors import RunFailed
from tianji_cli.roles.user_role import RoleContext, UserRole
from tianji_cli.wire.fragment import Fragment, FragmentLayout


class RecorderSettings(Settings):
    """Settings of the config's ``[roles.recorder]`` beside those of every role."""

    max_mb: int = Field(1000, ge=1)


class Recorder(UserRole):
    """Writes copies of its group's fragments, up to ``max_mb`` MB."""

    settings_type = RecorderSettings

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        earlier = sorted(self.directory.glob("*.fragments"))
        self._left = self.settings.max_mb * 1_000_000 - sum(file.stat().st_size for file in earlier)
        self._written = self._left_out = 0
        write_layout(context.layout, self.directory)
        # A resumed run begins another file, since a killed run's last fragment may be incomplete.
        self._file = (self.directory / f"{len(earlier):04}.fragments").open("xb", buffering=0)

    def turn(self) -> bool:
        """Write up to 8 waiting fragments; returns whether there was one."""
        return self._write(at_most=8)

    def stop(self) -> None:
        """Write all remaining fragments; the actors have stopped and send no more."""
        self._write(at_most=None)

    def report(self) -> dict[str, Any]:
        """Number of fragments that were written, and of those left out because the files are full."""
        return super().report() | {"written": self._written, "left_out": self._left_out}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, at_most: int | None) -> bool:
        worked = False
        for fragment in self.fragments(at_most):
            worked = True
            if self._left >= fragment.memory.nbytes:
                self._append(fragment)
                self._written += 1
            else:
                self._left_out += 1
        return worked

    def _append(self, fragment: Fragment) -> None:
        self._left -= fragment.memory.nbytes
        rest = fragment.memory
        try:
            while rest:  # A nearly full disk takes only a part.
                rest = rest[self._file.write(rest) :]
        except OSError as cause:
            raise RunFailed(f"cannot record to {self._file.name}: {cause.strerror}") from cause


def write_layout(layout: FragmentLayout, directory: Path) -> None:
    """Write the layout of a directory's fragments to layout.json."""
    fields = [
        [spec.name, spec.dtype.str, list(spec.shape), spec.bootstrap, spec.history, spec.once]
        for spec in layout.fields
    ]
    document = {
        "steps": layout.steps,
        "num_envs": layout.num_envs,
        "fields": fields,
        "nbytes": layout.nbytes,
        "offsets": layout.offsets,
        "fingerprint": f"{layout.fingerprint:016x}",
    }
    (directory / "layout.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def read_layout(directory: Path) -> FragmentLayout:
    """Read the layout that ``write_layout`` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is damaged, or another version wrote it.
    """
    file = directory / "layout.json"
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        fields = tuple(
            FieldSpec(name, np.dtype(dtype), tuple(shape), bootstrap, history, once)
            for name, dtype, shape, bootstrap, history, once in document["fields"]
        )
        layout = FragmentLayout(document["steps"], document["num_envs"], fields)
        matches = f"{layout.fingerprint:016x}" == document["fingerprint"]
    except (LookupError, TypeError, ValueError) as cause:
        raise ValueError(f"{file} is damaged: {cause}") from cause
    if not matches:
        raise ValueError(f"{file} does not say how its fragments are divided")
    return layout
