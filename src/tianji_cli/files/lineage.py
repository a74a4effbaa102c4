"""``lineage.json`` of a run with a population: its rounds, takeovers and replacements."""

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
"""Kind of entry: a session begins; ``members`` have their hyperparameters, ``metric`` names their score."""
ROUND: Final = "round"
"""Kind of entry: members were compared. Each has its env steps and score at that time, in ``from`` the group
that it took over, or null, and the hyperparameters that it continues with.
"""
REPLACED: Final = "replaced"
"""Kind of entry: a member died, and another one in its place continues from the group in ``from``."""


class Lineage:
    """Owns the lineage of a run; each new entry rewrites the file, since entries are few.

    Attributes:
        entries: all entries in their order, over all sessions.
    """

    def __init__(self, run: Path, entries: Sequence[Mapping[str, Any]] = ()) -> None:
        self._path = run / LINEAGE
        self.entries: list[Mapping[str, Any]] = list(entries)

    @classmethod
    def of_run(cls, run: Path) -> Lineage:
        """Read the lineage of a run, empty if there is none yet.

        Raises:
            UsageError: the file is no lineage.
        """
        path = run / LINEAGE
        if not path.exists():
            return cls(run)
        try:
            document = read_json(path)
            if document["schema"] != SCHEMA:
                raise ValueError(f"it is not of schema {SCHEMA}")
            found = cls(run, [dict(entry) for entry in document["entries"]])
            list(found.origins())  # Checks the entries now: later readers rely on them.
            return found
        except (OSError, ValueError, TypeError, AttributeError) as cause:
            raise UsageError(f"cannot go on with {path}: {cause}") from cause
        except KeyError as cause:
            raise UsageError(f"cannot go on with {path}: it has no {cause}") from cause

    @property
    def metric(self) -> str:
        """Name of the members' score."""
        return next((entry["metric"] for entry in reversed(self.entries) if entry["kind"] == START), "")

    @property
    def rounds(self) -> int:
        """Number of rounds in which members were compared, over all sessions."""
        return sum(entry["kind"] == ROUND for entry in self.entries)

    def origins(self) -> Iterator[tuple[str, int, int]]:
        """Yield each takeover: kind of the entry, group of the member, group that it continued from."""
        for entry in self.entries:
            kind = entry["kind"]
            changed = {ROUND: entry.get("members", ()), REPLACED: (entry,)}.get(kind, ())
            for one in changed:
                if one["from"] is not None:
                    yield kind, int(one["group"]), int(one["from"])

    def add(self, kind: str, **facts: Any) -> None:
        """Add an entry, and write all entries.

        Raises:
            OSError: the file cannot be written; the older file is still there.
        """
        self.entries.append(finite({"kind": kind, **facts}))
        document = {"schema": SCHEMA, "entries": self.entries}
        write_whole(self._path, (json.dumps(document, indent=1) + "\n").encode())
