"""What a new run begins with, ``experiment.init_from``: found, and copied into its directory. No torch."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import UsageError, cut, os_errors_as, printable
from tianji_cli.files.directories import copy_files
from tianji_cli.files.regular import read_toml
from tianji_cli.files.rundir import NoSuchRunError, RunDirectory
from tianji_cli.files.saved import BEST, MODEL, seal

INIT: Final = "init"
"""Directory of a run for what it began with: a checkpoint, and a document that says what of it was taken."""
DOCUMENT: Final = "init.json"
MOST_NAMES: Final = 8
"""Tensors of a kind that are listed on a screen; all are in the summary."""


@dataclass(frozen=True)
class Source:
    """Tensors that a new run is to begin with.

    Attributes:
        place: directory of a checkpoint, or a file of safetensors.
        said: value of ``experiment.init_from`` that names it from everywhere.
        warning: why real actions of its policy are others in the new run; empty if nothing is known.
    """

    place: Path
    said: str
    warning: str = ""

    @classmethod
    def find(cls, job: JobConfig, out: Path) -> Source:
        """Find what a config names: a file, ``RUN:CHECKPOINT``, or a run, whose best policy is meant.

        Raises:
            UsageError: there is no such run or checkpoint; says which there are.
        """
        said, name = job.experiment.init_from or "", BEST
        if os.path.isfile(said):
            return cls(Path(said).absolute(), os.path.abspath(said))
        try:
            run = RunDirectory.find(said, out)
        except NoSuchRunError:
            before, colon, name = said.rpartition(":")
            if not colon:
                raise
            run = RunDirectory.find(before, out)
        place = (run.checkpoints / run.checkpoint(name)).resolve()  # A link may lead elsewhere tomorrow.
        said = f"{run.path.absolute()}:{os.path.relpath(place, run.checkpoints.resolve())}"
        scales, scaled = getattr(job.agent.settings, "scale_actions", None), None
        # A damaged config is no reason to refuse.
        with suppress(OSError, ValueError, KeyError, AttributeError):
            agent = read_toml(run.config)["agent"]
            scaled = agent.get("scale_actions", False)
        if None in (scales, scaled) or scales == scaled:
            return cls(place, said)
        other = f"it acted with agent.scale_actions = {scaled}, and here its numbers mean other actions"
        return cls(place, said, other)

    def document(self, taken: Mapping[str, Any] | None) -> dict[str, Any]:
        """Say from where something is ``taken``, and what."""
        assert taken is not None, "it was built with this source"
        warns = self.warning and any("log_std" in name for name in taken["taken"])
        return {"from": self.said, **taken} | ({"warning": self.warning} if warns else {})

    def keep(self, run: RunDirectory, document: Mapping[str, Any]) -> None:
        """Copy it into the directory of a new run, with what is taken of it.

        Raises:
            UsageError: it cannot be copied.
        """
        place = run.path / INIT
        with os_errors_as(UsageError, f"cannot copy {self.place} to {place}"):
            if self.place.is_dir():
                copy_files(self.place, place)
            else:
                place.mkdir(exist_ok=True)
                shutil.copyfile(self.place, place / MODEL)
                seal(place, [MODEL])
            (place / DOCUMENT).write_text(json.dumps(document, indent=1), encoding="utf-8")


def initial_document(run: RunDirectory) -> dict[str, Any] | None:
    """Read what a run began with; None if it began by itself."""
    place = run.path / INIT / DOCUMENT
    found: dict[str, Any] | None = json.loads(place.read_text(encoding="utf-8")) if place.exists() else None
    return found


def described(taken: Mapping[str, Any] | None) -> Iterator[str]:
    """Say in a few lines what a run takes of another one, if anything."""
    if taken is None:
        return
    fits, new = len(taken["taken"]), [f"{name} ({why})" for name, why in taken["new"].items()]
    of = f"{taken['from']} (sha256 {taken['sha256'][:12]})"
    yield printable(f"begins with {fits} of {fits + len(new)} tensors of {of}")
    warnings = [taken["warning"]] if "warning" in taken else []
    kinds = {"new": new, "not used": taken["unused"], "frozen": taken["frozen"], "warning": warnings}
    for what, names in kinds.items():
        if names:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            yield printable(cut(f"{what}: {'; '.join(names[:MOST_NAMES])}{more}"))
