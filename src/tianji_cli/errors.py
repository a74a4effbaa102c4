"""Errors that end a command early, in one tree, each with its exit status.

    TianjiError          status 1
    ├── UsageError       status 2: the command line asks for something that is not there
    │   └── ConfigError  status 2: the config cannot be run; carries every problem found
    └── RunFailed        status 1: the run began and could not be finished

A message tells the user what is wrong, where, and what would be right, in one to five lines. ``main`` prints
it; a traceback appears only with ``--debug``. ``ProcessExit``, the end of a process, is here, too.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final

from tianji_algos.errors import AlgorithmError
from tianji_envs.errors import EnvironmentFailure
from tianji_transports.errors import TransportError

MAX_DESCRIPTION: Final = 600
"""Maximum characters of a foreign exception's message."""

MAX_PROBLEMS: Final = 20
"""Maximum problems of a config in one message."""

LONGEST: Final = 200
"""Maximum characters of a value in a message."""

_LONG: Final = re.compile(
    rf"""(?<!\w)(['"])(?:\\.|(?!\1)[^\\]){{{LONGEST - 1},}}\1(?!\w)|\S{{{LONGEST + 1},}}""", re.DOTALL
)


class TianjiError(Exception):
    """An error that a user can cause or should read without a traceback."""

    exit_status: ClassVar[int] = 1


class UsageError(TianjiError):
    """The command line names something that does not exist or does not fit."""

    exit_status: ClassVar[int] = 2


@dataclass(frozen=True)
class Problem:
    """One line of a ``ConfigError``: ``where: key: what; remedy``.

    Attributes:
        where: the file (or ``--set``) that set the value.
        key: dotted path of the value; empty for the file as a whole.
        what: the problem.
        remedy: may be empty.
    """

    where: str
    key: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        what = f"{self.what}; {self.remedy}" if self.remedy else self.what
        key = self.key if len(self.key) <= LONGEST else f"{self.key[: LONGEST - 3]}..."
        # The message of a user's own module may have several lines.
        return " ".join(": ".join(part for part in (self.where, key, cut(what)) if part).split())


def cut(text: str) -> str:
    """Shorten the values in a message: a value stands in quotes, or has no blank in it."""
    return _LONG.sub(lambda value: f"{value[0][: LONGEST - 4]}...{value[1] or ''}", text)


class ConfigError(UsageError):
    """A config that cannot be run.

    Attributes:
        problems: all problems, in the order of the file's sections.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems[:MAX_PROBLEMS]]
        more = len(self.problems) - len(lines)
        super().__init__("\n".join([*lines, *([f"and {more} more problems"] if more else [])]))


class RunFailed(TianjiError):  # noqa: N818 - it is an outcome, named as the summary's status names it
    """A run began and could not be finished; the message is its cause."""


def printable(text: str) -> str:
    """Replace characters of a foreign text that a terminal would obey, such as escape sequences."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text
    )


def one_line(text: str) -> str:
    """Shorten a foreign text to one line."""
    flat = " ".join(text.split())
    return printable(f"{flat[:MAX_DESCRIPTION]} ..." if len(flat) > MAX_DESCRIPTION else flat)


def describe(error: BaseException) -> str:
    """Describe an exception in one line; the errors of the four packages need no type in front of them."""
    known = isinstance(error, TianjiError | AlgorithmError | EnvironmentFailure | TransportError)
    text = one_line(str(error))
    return text if known and text else f"{type(error).__name__}: {text}".removesuffix(": ")


@contextmanager
def os_errors_as(kind: type[TianjiError], what: str, remedy: str = "") -> Iterator[None]:
    """Raise ``kind`` in place of an OSError; its message has ``what``, the reason and the remedy."""
    try:
        yield
    except OSError as cause:
        why = cause.strerror or cause
        raise kind(f"{what}: {why}; {remedy}" if remedy else f"{what}: {why}") from cause


@contextmanager
def errors_as(kind: type[TianjiError], what: str, *errors: type[BaseException]) -> Iterator[None]:
    """Raise ``kind`` in place of foreign ``errors``, and describe them; errors of the tree pass unchanged."""
    try:
        yield
    except TianjiError:
        raise
    except errors as cause:
        raise kind(f"{what}: {describe(cause)}") from cause


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """End of a process: of a worker, a fork server, or a child that measures.

    Attributes:
        status: exit status, or minus the number of the signal that killed the process; None if unknown.
        error: why the process was not even started, or that it was lost with its host, or had hung; empty
            otherwise.
        last_words: the last lines of its standard error, where these are kept.
    """

    status: int | None = None
    error: str = ""
    last_words: str = ""

    @property
    def by_signal(self) -> bool:
        """Whether a signal killed the process."""
        return self.status is not None and self.status < 0

    def __str__(self) -> str:
        """Describe the end: ``exited with status 1``, ``was killed by SIGKILL``."""
        if self.status is None:
            return "ended, and it is not known how"
        if self.status >= 0:
            return f"exited with status {self.status}"
        try:
            return f"was killed by {signal.Signals(-self.status).name}"
        except ValueError:
            return f"was killed by signal {-self.status}"
