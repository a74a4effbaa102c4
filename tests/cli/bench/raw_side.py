"""One of the two processes of a raw loop, as a program; they speak over two named pipes.

    python raw_side.py FOLDER SCENARIO ENGINE JOB RANK

Under mpiexec the rank is MPI's. The leading process leaves what it has to say in ``FOLDER/said``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tianji_cli.bench.contents import DamagedMessageError, stamp
from tianji_cli.bench.experiment import TrialFailed
from tianji_cli.bench.raw import loop
from tianji_cli.bench.raw.end import RawEnd, open_end
from tianji_cli.bench.trial import LEAD, Run, Sent, Trial
from tianji_transports.core import EngineOptions

SIZES = (64, 512 * 1024)
STORES = ("copy", "inplace")
MESSAGES = 300
WRONG = 41
"""Message that is altered, or lost."""


def trial_of(engine: str, job: str, nbytes: int, store: str = "copy") -> Trial:
    return Trial.model_validate(
        {
            "experiment": "comm",
            "raw": True,
            "job": f"{job} {nbytes} {store}",
            "local": engine,
            "remote": engine,
            "hosts": {0: "here", 1: "here"},
            "nbytes": nbytes,
            "window": 8,
            "store": store,
        }
    )


def trials(engine: str, job: str) -> list[Trial]:
    return [trial_of(engine, job, nbytes, store) for nbytes in SIZES for store in STORES]


class Pipes:
    """The control channel, and with it a ``Watch`` and a ``Told``."""

    def __init__(self, folder: Path, rank: int) -> None:
        if rank == LEAD:  # Opening waits for the other process, so one of them begins with its reader.
            self.writer = Connection(os.open(folder / "to-1", os.O_WRONLY), readable=False)
        self.reader = Connection(os.open(folder / f"to-{rank}", os.O_RDONLY), writable=False)
        if rank != LEAD:
            self.writer = Connection(os.open(folder / "to-0", os.O_WRONLY), readable=False)
        self.descriptors = (self.reader.fileno(),)
        self.offsets_ns: Mapping[int, int] = {1: 0}
        self._said: list[Sent] = []

    def start(self, run: Run) -> None:
        self.writer.send(run)

    def look(self) -> None:
        try:
            while self.reader.poll():
                self._said.append(self.reader.recv())
        except EOFError:
            raise TrialFailed("rank 1 died") from None

    def sent(self) -> Mapping[int, Sent] | None:
        self.look()
        return {1: self._said.pop(0)} if self._said else None

    def enough(self) -> bool:
        return self.reader.poll()


class Spoiled(RawEnd):
    """Gives one message as ``spoil`` makes it, and the others as they are."""

    def __init__(self, end: RawEnd, spoil: Callable[[memoryview], memoryview | None]) -> None:
        self._end = end
        self._spoil = spoil
        self._number = -1

    def connect(self, peer: str) -> None:
        self._end.connect(peer)

    def send(self, word: int) -> bool:
        return self._end.send(word)

    def receive(self, into: memoryview | None) -> memoryview | None:
        memory = self._end.receive(into)
        if memory is not None:
            self._number += 1
            if self._number == WRONG:
                return self._spoil(memory)
        return memory

    def flush(self) -> bool:
        return self._end.flush()

    def close(self) -> None:
        self._end.close()


def altered(memory: memoryview) -> memoryview:
    memory[1000] ^= 1
    return memory


def lost(_memory: memoryview) -> None:
    return None


def open_pair(pipes: Pipes, trial: Trial, rank: int) -> RawEnd:
    """Open in the order of a benchmark: the receiver first."""
    if rank != LEAD:
        assert pipes.reader.recv() == "open"
    end = open_end(trial.local, trial, rank, EngineOptions())
    if rank == LEAD:
        pipes.writer.send("open")
    pipes.writer.send(end.address)
    end.connect(pipes.reader.recv())
    return end


def close_pair(pipes: Pipes, end: RawEnd, rank: int) -> None:
    """Close in the order of a benchmark: once all is here, the sender first."""
    if rank == LEAD:
        pipes.writer.send("close")
        assert pipes.reader.recv() == "closed"
        end.close()
    else:
        assert pipes.reader.recv() == "close"
        end.close()
        pipes.writer.send("closed")


def follow(pipes: Pipes, end: RawEnd, trial: Trial) -> None:
    run = pipes.reader.recv()
    pipes.writer.send(loop.follow(end, trial, run, 1, pipes))


def move(pipes: Pipes, engine: str, job: str, rank: int) -> Any:
    """Move messages of every size, stored either way, in a thorough run and in two that are not."""
    moved = []
    for trial in trials(engine, job):
        end = open_pair(pipes, trial, rank)
        for number in range(3):
            if rank != LEAD:
                follow(pipes, end, trial)
                continue
            outcome = loop.lead(
                end, trial, Run(number=number, messages=MESSAGES, thorough=number == 0), pipes
            )
            assert outcome.seconds > 0
            moved.append([trial.nbytes, trial.store, outcome.messages, outcome.sent[1].messages])
        close_pair(pipes, end, rank)
    return moved


def damage(pipes: Pipes, engine: str, job: str, rank: int) -> Any:
    """Say what a receiver says to one altered message, and to one that is missing."""
    complaints = []
    for spoil in (altered, lost):
        trial = trial_of(engine, f"{job} {spoil.__name__}", SIZES[1])
        end = open_pair(pipes, trial, rank)
        if rank != LEAD:
            follow(pipes, end, trial)
            assert pipes.reader.recv() == "enough"
        else:
            try:
                run = Run(number=0, messages=MESSAGES, thorough=True)
                loop.lead(Spoiled(end, spoil), trial, run, pipes)
            except DamagedMessageError as error:
                complaints.append(str(error))
            pipes.writer.send("enough")
            assert pipes.reader.recv().messages < MESSAGES, "the sender ends although it has more to send"
        end.close()
    return complaints


def die(pipes: Pipes, engine: str, job: str, rank: int) -> Any:
    """Say what a receiver says to the death of its sender."""
    trial = trial_of(engine, job, SIZES[0])
    end = open_pair(pipes, trial, rank)
    if rank != LEAD:
        pipes.reader.recv()
        assert all(end.send(stamp(rank, 0, number)) for number in range(3))
        while not end.flush():
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        loop.lead(end, trial, Run(number=0, messages=MESSAGES, thorough=False), pipes)
    except TrialFailed as failure:
        return str(failure)
    finally:
        end.close()


def both_die(pipes: Pipes, engine: str, job: str, rank: int) -> Any:
    """Leave everything behind that a raw loop has."""
    end = open_pair(pipes, trial_of(engine, job, SIZES[0]), rank)
    os.kill(os.getpid(), signal.SIGKILL)
    end.close()


SCENARIOS = {scenario.__name__: scenario for scenario in (move, damage, die, both_die)}


def main() -> None:
    folder, scenario, engine, job = Path(sys.argv[1]), *sys.argv[2:5]
    if engine == "mpi":
        from tianji_transports.mpi_world import initialise  # noqa: PLC0415 - only where MPI is asked for

        rank = initialise().Get_rank()
    else:
        rank = int(sys.argv[5])
    said = SCENARIOS[scenario](Pipes(folder, rank), engine, job, rank)
    if rank == LEAD:
        (folder / "said").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
