"""Becomes another program that the kernel ends when the process that has started it ends, however that does.

    python -I -S bound.py SIGNAL PARENT PROGRAM ARGUMENT ...

A process with threads must not run Python between fork and exec, as ``preexec_fn`` does: a lock that another
thread held stays locked. So the child asks the kernel itself, here, before it is the program; what was asked
for outlives an exec. It begins in milliseconds, since it imports nothing but what this file names.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""Both of Linux's prctl.h."""


def main() -> None:
    """Become the program that the command line names."""
    number, parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
    if os.getppid() != int(parent):  # It ended before the kernel was asked to tell.
        os.kill(os.getpid(), int(number))
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
