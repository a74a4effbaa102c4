"""Probe processes: starts them, asks several at once, and ends them whatever happens.

A probe reads steps from its standard input and answers on its standard output, a line of JSON each. What it
writes to its standard error is kept, and shown if it dies. Its end of life is the end of its input, which
comes when this process is gone, too.
"""

from __future__ import annotations

import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Final

from pydantic import ValidationError

from tianji_cli.errors import RunFailed, describe_exit
from tianji_cli.launch.children import end_groups, last_lines, python_command
from tianji_lab.profile.probe.protocol import (
    ANSWER,
    Acted,
    Answer,
    Average,
    Averaged,
    Failed,
    Learned,
    Prepare,
    Prepared,
    Run,
    Step,
)

PROBE: Final = "tianji_lab.profile.probe.probe"
MOST_PROBES: Final = 65
"""A learner, and an actor for each of 64 cores."""
END_S: Final = 10.0
"""How long all probes may take to close their environments once they are done; then they are killed."""
HURRY_S: Final = 0.3
"""How long they may take if they are not done."""
DIED_S: Final = 1.0
"""How long a probe may take to be gone after its output has ended."""
READ_BYTES: Final = 1 << 16
SHOWN: Final = 120
"""Characters that are shown of something that is no answer."""


class ProbeFailed(RunFailed):
    """Something could not be measured, so there are no figures. It says which probe, what and why."""


@dataclass(eq=False)
class Probe:
    """A process that is measured.

    Attributes:
        name: in messages.
        process: itself.
        errors: what it wrote to its standard error.
        heard: what it has answered, as far as no line is complete.
    """

    name: str
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    heard: bytearray = field(default_factory=bytearray)

    @property
    def said(self) -> str:
        """The last lines that it wrote to its standard error, on lines of their own."""
        return "".join(f"\n  {line}" for line in last_lines(self.errors))


class Crew:
    """Asks probes for steps and hears their answers.

    A caller that has seen it raise ends it: probes may have answers left that were not heard.

    Args:
        probes: running.

    Attributes:
        started_s: when the first of them was started, by ``time.perf_counter``.
    """

    def __init__(self, probes: Sequence[Probe], started_s: float) -> None:
        self.started_s = started_s
        self._probes = probes

    def __len__(self) -> int:
        return len(self._probes)

    def ask(self, steps: Mapping[int, Step], limit_s: float) -> dict[int, Answer]:
        """Ask probes for a step each, all at once, and wait for the answers.

        Args:
            steps: by the number of the probe.
            limit_s: how long all of it may take, in seconds.

        Returns:
            The answers, of the kind that belongs to each step, by the number of the probe.

        Raises:
            ProbeFailed: one could not do it, has died, says something else or nothing in that time.
        """
        for number, step in steps.items():
            self._tell(self._probes[number], step)
        answers: dict[int, Answer] = {}
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            for number in steps:
                selector.register(_output(self._probes[number]), selectors.EVENT_READ, number)
            while len(answers) < len(steps):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    silent = [self._probes[number] for number in steps if number not in answers]
                    raise _no_answer(silent, limit_s)
                for key, _ in ready:
                    answer = self._hear(self._probes[key.data], steps[key.data])
                    if answer is not None:
                        answers[key.data] = answer
                        selector.unregister(key.fileobj)
        return answers

    def _tell(self, probe: Probe, step: Step) -> None:
        assert probe.process.stdin is not None
        try:
            probe.process.stdin.write(step.model_dump_json().encode() + b"\n")
        except BrokenPipeError as cause:
            raise _died(probe, step) from cause

    def _hear(self, probe: Probe, step: Step) -> Answer | None:
        """Read what is there; None as long as the answer is not complete."""
        came = _output(probe).read(READ_BYTES)
        if not came:
            raise _died(probe, step)
        probe.heard += came
        line, newline, rest = probe.heard.partition(b"\n")
        if not newline:
            return None
        probe.heard = rest
        try:
            answer = ANSWER.validate_json(bytes(line))
        except ValidationError as cause:
            raise _no_such_answer(probe, step, bytes(line)) from cause
        if isinstance(answer, Failed):
            raise ProbeFailed(f"{probe.name} could not {_what(step)}: {answer.cause}")
        if not _belongs(answer, step):
            raise _no_such_answer(probe, step, bytes(line))
        return answer


@contextmanager
def start_crew(size: int, command: Sequence[str] = ()) -> Iterator[Crew]:
    """Start probes on this machine; when the context has ended, so have they and what they have started.

    Args:
        size: how many, ``MOST_PROBES`` at most.
        command: that runs something else in their place.
    """
    assert 1 <= size <= MOST_PROBES
    probes: list[Probe] = []
    started_s, patience_s = time.perf_counter(), HURRY_S
    try:
        for number in range(size):
            errors = TemporaryFile()  # noqa: SIM115 - closed with the probe
            # In a group of its own: a Ctrl-C is this command's, which then ends the probe.
            process = subprocess.Popen(
                command or python_command(PROBE),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
            )
            probes.append(Probe(f"probe {number}", process, errors))
        yield Crew(probes, started_s)
        patience_s = END_S
    finally:
        for probe in probes:  # Which ends those that listen.
            assert probe.process.stdin is not None
            probe.process.stdin.close()
        end_groups([probe.process for probe in probes], patience_s)
        for probe in probes:
            _output(probe).close()
            probe.errors.close()


def _output(probe: Probe) -> IO[bytes]:
    assert probe.process.stdout is not None
    return probe.process.stdout


# -- what can go wrong -----------------------------------------------------------------------------------


def _died(probe: Probe, step: Step) -> ProbeFailed:
    try:
        how = describe_exit(probe.process.wait(DIED_S))
    except subprocess.TimeoutExpired:
        how = "closed its output"
    return ProbeFailed(f"{probe.name} {how} when it had to {_what(step)}{probe.said}")


def _no_answer(silent: Sequence[Probe], limit_s: float) -> ProbeFailed:
    names = ", ".join(probe.name for probe in silent)
    return ProbeFailed(f"no answer within {limit_s:g} s from {names}{silent[0].said}")


def _no_such_answer(probe: Probe, step: Step, line: bytes) -> ProbeFailed:
    said = line.decode(errors="replace")
    shown = said if len(said) <= SHOWN else f"{said[:SHOWN]} ..."
    return ProbeFailed(
        f"{probe.name} had to {_what(step)} and answered {shown!r}; what environments and agents print "
        "belongs on stderr"
    )


def _belongs(answer: Answer, step: Step) -> bool:
    match step:
        case Prepare():
            return isinstance(answer, Prepared)
        case Average():
            return isinstance(answer, Averaged)
        case Run():
            return isinstance(answer, Acted | Learned)


def _what(step: Step) -> str:
    match step:
        case Prepare():
            return f"build the {step.role} of {step.config}"
        case Average():
            return f"average gradients among {step.size}"
        case Run():
            return f"run {step.key}"
