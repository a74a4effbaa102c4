"""Becomes another program, which the kernel ends when the starting process ends, for any reason.

    python -I -S bound.py SIGNAL PARENT PROGRAM ARGUMENT ...

A process with threads must not run Python between fork and exec, as ``preexec_fn`` does: a lock that another
thread held stays locked. So the child asks the kernel itself, here, before it becomes the program; the
request outlives an exec. This script starts in milliseconds, since it imports little.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""Options of ``prctl``, in Linux's prctl.h."""


def main() -> None:
    """Become the program that the command line names."""
    number, parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
    if os.getppid() != int(parent):  # The parent ended before the kernel got the request.
        os.kill(os.getpid(), int(number))
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
