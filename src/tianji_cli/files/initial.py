"""Initial tensors of a new run, ``experiment.init_from``: found, and copied into its directory. No torch."""

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
"""Directory of a run for its initial tensors: a checkpoint, and a document that lists the tensors taken."""
DOCUMENT: Final = "init.json"
MOST_NAMES: Final = 8
"""Most tensors of a kind that are listed on a screen; the summary lists all of them."""


@dataclass(frozen=True)
class Source:
    """Tensors that a new run is to begin with.

    Attributes:
        place: directory of a checkpoint, or a file of safetensors.
        init_from: value of ``experiment.init_from`` that names them from any directory.
        warning: reason why real actions of its policy differ in the new run; empty if none is known.
    """

    place: Path
    init_from: str
    warning: str = ""

    @classmethod
    def find(cls, job: JobConfig, out: Path) -> Source:
        """Find the source that a config names: a file, ``RUN:CHECKPOINT``, or a run, for its best policy.

        Raises:
            UsageError: there is no such run or checkpoint; the message lists those that exist.
        """
        init_from, name = job.experiment.init_from or "", BEST
        if os.path.isfile(init_from):
            return cls(Path(init_from).absolute(), os.path.abspath(init_from))
        try:
            run = RunDirectory.find(init_from, out)
        except NoSuchRunError:
            before, colon, name = init_from.rpartition(":")
            if not colon:
                raise
            run = RunDirectory.find(before, out)
        place = (run.checkpoints / run.checkpoint(name)).resolve()  # A link may change later.
        init_from = f"{run.path.absolute()}:{os.path.relpath(place, run.checkpoints.resolve())}"
        scales, scaled = getattr(job.agent.settings, "scale_actions", None), None
        # A damaged config does not prevent the copy.
        with suppress(OSError, ValueError, KeyError, AttributeError):
            agent = read_toml(run.config)["agent"]
            scaled = agent.get("scale_actions", False)
        if None in (scales, scaled) or scales == scaled:
            return cls(place, init_from)
        other = f"it acted with agent.scale_actions = {scaled}, and here its numbers mean other actions"
        return cls(place, init_from, other)

    def document(self, taken: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the document on the tensors ``taken`` from this source."""
        assert taken is not None, "it was built with this source"
        warns = self.warning and any("log_std" in name for name in taken["taken"])
        return {"from": self.init_from, **taken} | ({"warning": self.warning} if warns else {})

    def keep(self, run: RunDirectory, document: Mapping[str, Any]) -> None:
        """Copy the source into the directory of a new run, with the document on the tensors taken.

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
    """Read the document on a run's initial tensors; None if the run began without a source."""
    place = run.path / INIT / DOCUMENT
    found: dict[str, Any] | None = json.loads(place.read_text(encoding="utf-8")) if place.exists() else None
    return found


def described(taken: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield a few lines on the tensors that a run takes from another one, if any."""
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
