"""A worker that shares nothing with the fork server, where a job uses what must not be forked.

The fork server's child turns into it, with its process id, by ``python_command`` with the arguments
ASSIGNMENT LIFELINE, two descriptors.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tianji_cli.cluster.children import python_command
from tianji_cli.cluster.worker import Assignment, run_worker, write_to


def turn_into(assignment: Assignment, lifeline: int) -> NoReturn:
    """Begin this process anew, as a worker; blocked signals stay blocked until it says what they mean.

    What keeps it from being one is in the worker's log.

    Args:
        assignment: what it is to do.
        lifeline: descriptor of the pipe that is cut when the root ends.
    """
    write_to(assignment.log)
    carrier = os.memfd_create("assignment", 0)
    with open(carrier, "wb", closefd=False) as file:
        file.write(assignment.encode())
    os.set_inheritable(lifeline, True)
    command = python_command(__name__, str(carrier), str(lifeline))
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def main() -> None:
    """Work as assigned."""
    carrier, lifeline = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(lifeline, False)
    with open(carrier, "rb") as file:
        file.seek(0)
        assignment = Assignment.decode(file.read())
    run_worker(assignment, lifeline)


if __name__ == "__main__":
    main()
