"""What came of building a job's parts once: written by the process that builds, read by the fork server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Self

from tianji_cli.errors import describe_exit
from tianji_cli.wire.message import Message

LAST_BYTES: Final = 500
"""How far back the last line is looked for that a process wrote before it was killed."""


class BuildReport(Message):
    """What came of it.

    Attributes:
        error: why it cannot be built; empty if it can.
        traceback: of the exception, for ``--debug``.
        imported: modules of TianJi's that it took and the fork server had not imported: algorithms, mostly.
    """

    error: str = ""
    traceback: str = ""
    imported: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuildOutput:
    """Memory that a building process writes into, and that outlives it.

    Attributes:
        report: descriptor of its report.
        printed: descriptor of what else it wrote.
    """

    report: int
    printed: int

    @classmethod
    def new(cls) -> Self:
        """Make the memory."""
        return cls(os.memfd_create("build-report"), os.memfd_create("build-output"))

    def take_prints(self) -> None:
        """Have it take what this process prints from now on, and what it prints as another program."""
        for descriptor in (1, 2):
            os.dup2(self.printed, descriptor)

    def read(self, status: int) -> BuildReport:
        """Say what came of a process that exited with ``status``; the memory is gone then."""
        with open(self.report, "rb") as report, open(self.printed, "rb") as printed:
            report.seek(0)
            said = report.read()
            if said:
                return BuildReport.model_validate_json(said)
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - LAST_BYTES))
            *_, last = printed.read().decode(errors="replace").strip().splitlines() or [""]
        how = f"the process that built environment and model {describe_exit(status)}"
        return BuildReport(error=f"{how}; it wrote last: {last}" if last else how)
