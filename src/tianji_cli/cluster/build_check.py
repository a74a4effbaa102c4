"""Builds environment, model and layout once: what cannot be built is said before anything runs.

The fork server's first child does it. It reports through a descriptor that it shares with the server, and its
output goes to another one: it has no log, for there is no run yet.
"""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass
from typing import Final, Self

import setproctitle

from tianji_cli.cluster.lifeline import Lifeline
from tianji_cli.cluster.messages import text
from tianji_cli.cluster.plan import expected_hosts, make_plan
from tianji_cli.cluster.spec import BuildSpec
from tianji_cli.config.loader import parse_config
from tianji_cli.data.message import Message
from tianji_cli.errors import describe, describe_exit

LAST_BYTES: Final = 500
"""How far back the last line is looked for that a process wrote before it was killed."""


FORKABLE: Final = ("tianji_algos.", "tianji_cli.")
"""Packages of which a fork server may import everything: they start no threads and hold no files."""


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


def check_build(spec: BuildSpec, output: BuildOutput, lifeline: int) -> None:
    """Build what every process of a job will build, and report why it cannot be; exits with status 1 then.

    Args:
        spec: the config, and where its modules are.
        output: takes the report and whatever is printed.
        lifeline: descriptor of the pipe that is cut when the command ends.
    """
    setproctitle.setproctitle("tianji: first build")
    Lifeline(lifeline, saves=False)
    output.take_prints()
    sys.path[:] = spec.path
    before = set(sys.modules)
    try:
        _build(spec)
        imported = sorted(name for name in sys.modules.keys() - before if name.startswith(FORKABLE))
        report = BuildReport(imported=tuple(imported))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's own modules raise
        report = BuildReport(error=text(describe(error)), traceback=text(traceback.format_exc()))
    os.write(output.report, report.model_dump_json().encode())
    sys.exit(1 if report.error else 0)


def _build(spec: BuildSpec) -> None:
    # Imported here: a process started anew has its title and its output before the first slow import.
    from tianji_cli.cluster.assembly import Assembly  # noqa: PLC0415
    from tianji_cli.cluster.parts import Job  # noqa: PLC0415

    config = parse_config(spec.config)
    plan = make_plan(config, expected_hosts(config))
    learner = plan.carrying("learner")[0]
    Assembly(Job("", config, plan, spec.directory), learner, 0).check()
