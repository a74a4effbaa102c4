"""A process that shares nothing with the fork server, for a job that uses a library that must not be forked.

The fork server's child turns into it, with its process id, by ``python_command`` with the arguments
JOB ROOT_PIPE (or JOB ROOT_PIPE REPORT PRINTED DONE, for a build), all of them descriptors.
"""

from __future__ import annotations

import os
import sys
from typing import Final, NoReturn

from pydantic import ConfigDict, TypeAdapter

from tianji_cli.files.regular import write_to
from tianji_cli.launch.children import python_command
from tianji_cli.plan.job import Job
from tianji_cli.signals import leave_threads
from tianji_cli.wire.messages import Begin, BuildOutput

Work = tuple[Job, Begin | None]
"""Job and rank of a process that begins anew; a build has no rank, since it is in no plan."""

_WORK: Final[TypeAdapter[Work]] = TypeAdapter(Work, config=ConfigDict(defer_build=True))


def turn_into_worker(job: Job, own: Begin, root_pipe: int) -> NoReturn:
    """Begin this process anew, as a worker; blocked signals stay blocked until the worker handles them.

    The worker's log gets any error on the way.
    """
    write_to(job.log(own.rank))
    _begin_anew((job, own), root_pipe)


def turn_into_build(job: Job, output: BuildOutput, root_pipe: int) -> NoReturn:
    """Begin this process anew, to build environment and model once; see ``check_build``."""
    output.take_prints()
    _begin_anew((job, None), root_pipe, output.report, output.printed, output.done)


def _begin_anew(work: Work, *descriptors: int) -> NoReturn:
    carrier = os.memfd_create("work", 0)
    with open(carrier, "wb", closefd=False) as file:
        file.write(_WORK.dump_json(work))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    command = python_command(__name__, *map(str, (carrier, *descriptors)))
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def main() -> None:
    """Run the build or the worker, as the process that turned into this one says."""
    carrier, root_pipe, *output = map(int, sys.argv[1:])
    for descriptor in (root_pipe, *output):
        os.set_inheritable(descriptor, False)
    with open(carrier, "rb") as file:
        file.seek(0)
        job, own = _WORK.validate_json(file.read())
    from tianji_cli.worker.worker import check_build, run_worker  # noqa: PLC0415 - the root imports this, too

    try:
        if own is None:
            check_build(job, BuildOutput(*output), root_pipe)
        else:
            run_worker(job, own, root_pipe)
    finally:
        leave_threads()


if __name__ == "__main__":
    main()
