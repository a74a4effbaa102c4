"""``lineage.json`` of a run with a population: who was compared when, and who went on from whom."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tianji_cli.errors import UsageError
from tianji_cli.files.regular import read_json
from tianji_cli.files.rundir import write_whole
from tianji_cli.quantities import finite

LINEAGE: Final = "lineage.json"
SCHEMA: Final = 1

START: Final = "start"
"""Kind of entry: a session begins; ``members`` have their hyperparameters, and are judged by ``metric``."""
ROUND: Final = "round"
"""Kind of entry: members were compared. Each has env steps and score as they were then, in ``from`` the group
that it took over, or null, and the hyperparameters that it goes on with."""
REPLACED: Final = "replaced"
"""Kind of entry: a member died, and another one is in its place that went on from the group in ``from``."""


class Lineage:
    """The lineage of a run, written anew with each entry: there are few.

    Attributes:
        entries: in their order, over all sessions.
    """

    def __init__(self, run: Path, entries: Sequence[Mapping[str, Any]] = ()) -> None:
        self._path = run / LINEAGE
        self.entries: list[Mapping[str, Any]] = list(entries)

    @classmethod
    def of_run(cls, run: Path) -> Lineage:
        """Go on with what is there, if anything is.

        Raises:
            UsageError: what is there is no lineage.
        """
        path = run / LINEAGE
        if not path.exists():
            return cls(run)
        try:
            document = read_json(path)
            if document["schema"] != SCHEMA:
                raise ValueError(f"it is not of schema {SCHEMA}")
            found = cls(run, [dict(entry) for entry in document["entries"]])
            list(found.origins())  # It is read on, from here on.
            return found
        except (OSError, ValueError, TypeError, AttributeError) as cause:
            raise UsageError(f"cannot go on with {path}: {cause}") from cause
        except KeyError as cause:
            raise UsageError(f"cannot go on with {path}: it has no {cause}") from cause

    @property
    def metric(self) -> str:
        """What members are judged by."""
        return next((entry["metric"] for entry in reversed(self.entries) if entry["kind"] == START), "")

    @property
    def rounds(self) -> int:
        """How often members were compared, over all sessions."""
        return sum(entry["kind"] == ROUND for entry in self.entries)

    def origins(self) -> Iterator[tuple[str, int, int]]:
        """Say who went on from whom, in turn: the entry's kind, the member's group, and that of the other."""
        for entry in self.entries:
            kind = entry["kind"]
            changed = {ROUND: entry.get("members", ()), REPLACED: (entry,)}.get(kind, ())
            for one in changed:
                if one["from"] is not None:
                    yield kind, int(one["group"]), int(one["from"])

    def add(self, kind: str, **said: Any) -> None:
        """Add an entry, and write all of them.

        Raises:
            OSError: the file cannot be written; what was there before still is.
        """
        self.entries.append(finite({"kind": kind, **said}))
        document = {"schema": SCHEMA, "entries": self.entries}
        write_whole(self._path, (json.dumps(document, indent=1) + "\n").encode())
