"""Runs a command on a machine that lacks something: ``python odd_machine.py LACK,LACK COMMAND ...``.

It is taken from this process and its children alone: by namespaces, which take root, by limits, by a filter
of system calls.
"""

import ctypes
import os
import platform
import resource
import struct
import subprocess
import sys
import tempfile

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 38, 22
IS_ARM = platform.machine() == "aarch64"
CALLS = {
    "pidfd_open": 434,
    "sched_setaffinity": 122 if IS_ARM else 203,
    "process_vm_readv": 270 if IS_ARM else 310,
}
LIMITS = {"open files": (resource.RLIMIT_NOFILE, 64), "size of files": (resource.RLIMIT_FSIZE, 50_000)}
NEEDED = ("null", "zero", "full", "random", "urandom")


def checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def without_shared_memory() -> None:
    """Give this process a /dev with nothing but a few devices."""
    checked(LIBC.unshare(CLONE_NEWNS))
    place = tempfile.mkdtemp()
    for command in (
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "tmpfs", "none", place],
        ["cp", "-a", *(f"/dev/{name}" for name in NEEDED), place],
        ["mount", "--move", place, "/dev"],
    ):
        subprocess.run(command, check=True, capture_output=True)
    os.rmdir(place)


def refuse(number: int) -> None:
    """Have the kernel refuse a system call, as the filter of a container does."""
    program = (
        struct.pack("HBBI", 0x20, 0, 0, 0)  # Load the call's number.
        + struct.pack("HBBI", 0x15, 0, 1, number)
        + struct.pack("HBBI", 0x06, 0, 0, 0x00050001)  # EPERM.
        + struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
    )
    buffer = ctypes.create_string_buffer(program)
    fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer)))
    checked(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    checked(LIBC.prctl(PR_SET_SECCOMP, 2, fprog, 0, 0))


def main() -> None:
    lacks = sys.argv[1].split(",")
    if "loopback" in lacks:
        checked(LIBC.unshare(CLONE_NEWNET))
    if "shm" in lacks:
        without_shared_memory()
    for lack in lacks:
        if lack in CALLS:
            refuse(CALLS[lack])
        elif lack in LIMITS:
            kind, most = LIMITS[lack]
            resource.setrlimit(kind, (most, most))
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
