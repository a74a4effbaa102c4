"""The probe pool: starts probe processes, asks several at once, and ends them whatever happens.

A probe reads steps from its standard input and answers on its standard output, a line of JSON each. What it
writes to its standard error is kept, and shown if it dies. It ends at the end of its input.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Final

from pydantic import ValidationError

from tianji_cli.errors import RunFailed
from tianji_cli.launch.children import Child, end_children, python_command, wait_for_exit
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
from tianji_transports.endpoint import readable

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
        received: the beginning of an answer, as long as its line is not complete.
    """

    name: str
    child: Child
    received: bytearray = field(default_factory=bytearray)

    @property
    def steps(self) -> IO[bytes]:
        """Its standard input."""
        assert self.child.process.stdin is not None
        return self.child.process.stdin

    @property
    def answers(self) -> IO[bytes]:
        """Its standard output."""
        assert self.child.process.stdout is not None
        return self.child.process.stdout

    @property
    def last_words(self) -> str:
        """The last lines that it wrote to its standard error, on lines of their own."""
        return "".join(f"\n  {line}" for line in self.child.last_words.splitlines())


class ProbePool:
    """Asks probes for steps and receives their answers.

    After it has raised it is of no more use: probes may have answers left that were not received.

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
            self._send(self._probes[number], step)
        answers: dict[int, Answer] = {}
        deadline = time.monotonic() + limit_s
        asked = {self._probes[number].answers.fileno(): number for number in steps}
        while asked:
            ready = readable(list(asked), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise _no_answer([self._probes[number] for number in asked.values()], limit_s)
            for descriptor in ready:
                number = asked[descriptor]
                answer = self._receive(self._probes[number], steps[number])
                if answer is not None:
                    answers[number] = answer
                    del asked[descriptor]
        return answers

    def _send(self, probe: Probe, step: Step) -> None:
        try:
            probe.steps.write(step.model_dump_json().encode() + b"\n")
        except BrokenPipeError as cause:
            raise _died(probe, step) from cause

    def _receive(self, probe: Probe, step: Step) -> Answer | None:
        """Read what is there; None as long as the answer is not complete."""
        data = probe.answers.read(READ_BYTES)
        if not data:
            raise _died(probe, step)
        probe.received += data
        line, newline, rest = probe.received.partition(b"\n")
        if not newline:
            return None
        probe.received = rest
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
def start_probes(size: int, command: Sequence[str] = ()) -> Iterator[ProbePool]:
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
            child = Child(
                command or python_command(PROBE),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            probes.append(Probe(f"probe {number}", child))
        yield ProbePool(probes, started_s)
        patience_s = END_S
    finally:
        for probe in probes:  # Asks those that listen to end.
            probe.steps.close()
        end_children([probe.child for probe in probes], patience_s)


# -- what can go wrong -----------------------------------------------------------------------------------


def _died(probe: Probe, step: Step) -> ProbeFailed:
    how = probe.child.wait() if wait_for_exit([probe.child], DIED_S) else "closed its output"
    return ProbeFailed(f"{probe.name} {how} when it had to {_what(step)}{probe.last_words}")


def _no_answer(silent: Sequence[Probe], limit_s: float) -> ProbeFailed:
    names = ", ".join(probe.name for probe in silent)
    return ProbeFailed(f"no answer within {limit_s:g} s from {names}{silent[0].last_words}")


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
