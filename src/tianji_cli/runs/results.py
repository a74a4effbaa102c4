"""Output of results: a header on stdout, JSON, and a directory of JSON, CSV and figures."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tianji_cli.errors import TianjiError, os_errors_as
from tianji_cli.files.rundir import write_whole
from tianji_cli.telemetry.tables import write_json


@dataclass(frozen=True)
class Table:
    """A CSV file; a value that a row lacks is empty."""

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]

    def csv(self) -> str:
        """Return the table as CSV."""
        text = io.StringIO()
        table = csv.DictWriter(text, self.columns, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        return text.getvalue()


@dataclass(frozen=True, kw_only=True)
class Result:
    """Results of a measurement, as files.

    Attributes:
        tables: CSV files by name.
        formats: file formats of the figures.
    """

    name: str
    document: Mapping[str, Any]
    figures: Mapping[str, Callable[[Path], None]]
    tables: Mapping[str, Table] = field(default_factory=dict)
    formats: Sequence[str] = ("png",)

    def hand_over(self, *, out: Path | None, json_to: str | None) -> None:
        """Write the requested output: files into ``out``, JSON to ``json_to``, ``-`` for stdout.

        Raises:
            TianjiError: a file cannot be written.
        """
        write_json(self.document, json_to)
        if out is not None:
            self.write(out)

    def write(self, out: Path) -> None:
        """Write all files into a directory, and create it if missing.

        Raises:
            TianjiError: a file cannot be written.
        """
        text = json.dumps(self.document, indent=2, allow_nan=False) + "\n"
        with os_errors_as(TianjiError, f"cannot write into {out}", "--out DIR takes another directory"):
            out.mkdir(parents=True, exist_ok=True)
            write_whole(out / f"{self.name}.json", text.encode())
            for name, table in self.tables.items():
                write_whole(out / f"{name}.csv", table.csv().encode())
            for name, draw in self.figures.items():
                for kind in self.formats:
                    draw(out / f"{name}.{kind}")


def document_head(environment: Mapping[str, str], warnings: Sequence[str]) -> dict[str, Any]:
    """Return the head of a JSON document: schema, environment (descriptions by subject), and warnings."""
    return {"schema": 1, "environment": dict(environment), "warnings": list(warnings)}


def print_header(environment: Mapping[str, str], warnings: Sequence[str]) -> None:
    """Print the conditions of a measurement, and its warnings, as ``# key: value`` on stdout."""
    for key, value in environment.items():
        sys.stdout.write(f"# {key}: {value}\n")
    for warning in warnings:
        sys.stdout.write(f"# WARNING: {warning}\n")


def check_places(out: Path | None, json_to: str | None) -> None:
    """Refuse places that cannot be written to, before anything is measured; makes ``out`` if missing.

    Raises:
        TianjiError: a place cannot be written to; the message names it.
    """
    folder = None if json_to is None or json_to == "-" else Path(json_to).parent
    if out is not None:
        with os_errors_as(TianjiError, f"cannot write into {out}", "--out takes another directory"):
            out.mkdir(parents=True, exist_ok=True)
    for option, place in (("--out", out), ("--json", folder)):
        if place is not None and not (place.is_dir() and os.access(place, os.W_OK)):
            raise TianjiError(f"cannot write into {place}: {option} takes another place")
