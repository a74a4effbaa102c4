"""The key of a job: a process that has it is a member, and can hear the job and speak to it; no other can."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

import zmq

from tianji_cli.errors import UsageError
from tianji_cli.files.regular import open_regular
from tianji_cli.wire.interfaces import is_loopback
from tianji_transports.core import EngineOptions

MOST_BYTES: Final = 4096
"""A key's file has a hundred."""


@dataclass(frozen=True)
class JobKey:
    """A CURVE key pair (Z85) that all members of a job share, on the control channel and on ZMQ's data path.

    Attributes:
        public: identifies the job to its members.
        secret: proves membership; never leaves the processes and the file of the job.
    """

    public: str
    secret: str

    @classmethod
    def new(cls) -> Self:
        """Make a key for one job."""
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    def write(self, path: Path) -> None:
        """Write a file that only its owner can read.

        Raises:
            FileExistsError: there is one already; it may be another job's.
        """
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what ``write`` wrote.

        Raises:
            UsageError: the file is not there, is no key, is another user's, or others can read it too.
        """
        try:
            with open(open_regular(path), "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_mode & 0o077:
                    raise UsageError(
                        f"others can read the key in {path}: chmod 600 {path}, or make a new job"
                    )
                if status.st_uid not in {0, os.geteuid()}:
                    raise UsageError(f"the key in {path} is neither yours nor root's: use a copy of your own")
                content = file.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            key = cls(**json.loads(content))
            if zmq.curve_public(key.secret.encode()).decode() != key.public:
                raise ValueError("its halves do not belong together")
        except OSError as cause:
            raise UsageError(f"cannot read the job's key in {path}: {cause.strerror}") from cause
        except (ValueError, TypeError, AttributeError, RecursionError) as cause:
            raise UsageError(f"{path} holds no key of a job: {cause}") from cause
        return key


@dataclass(frozen=True)
class RootAddress:
    """What a member needs to reach its root.

    Attributes:
        address: ``tcp://HOST:PORT``.
        key: the job's.
    """

    address: str
    key: JobKey


def write_new_key(path: Path) -> JobKey:
    """Make a key for a job that is to begin later, and write it."""
    key = JobKey.new()
    key.write(path)
    return key


def engine_options(interface: str, key: JobKey) -> EngineOptions:
    """Describe how an endpoint reaches others. Off loopback, nothing gets in without the job's key."""
    if is_loopback(interface):
        return EngineOptions(interface)
    return EngineOptions(interface, key.public, key.secret)
