"""A scripted actor, a replay in an endpoint of its own and the learner's end of it, on one thread."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cli.buffer.naive_sequences import open_sequences
from cli.buffer.replays import JOB, ScriptedActor, fragment_layout, open_replay

from tianji_cli.config.edges import ARRIVALS, BATCHES, PRIORITIES
from tianji_cli.roles.buffer.buffer import ReplayBuffer
from tianji_cli.roles.buffer.rate_limiter import RateLimiter
from tianji_cli.roles.buffer.replay.file import ReplayKeeper
from tianji_cli.roles.buffer.replay.samplers import PrioritisedSampler
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.learner.data_source import RemoteReplayClient
from tianji_cli.wire.batches import BatchArrays, BatchLayout, priorities_layout
from tianji_cli.wire.fragment import stats_layout
from tianji_transports.composite import open_endpoint
from tianji_transports.core import EngineOptions, Full, Loan, Transport
from tianji_transports.wiring import Channel, Wiring

BUFFER, LEARNER, ACTOR = 0, 1, 2
LAYOUT = fragment_layout(4, 4, stack=3)
EACH, BATCH, RHO, WARMUP = 16, 8, 2.0, 32
BATCHES_LAYOUT = BatchLayout.of(LAYOUT, BATCH, ("action",))
ALPHA = 0.6
_numbers = itertools.count()


class Line:
    """A scripted actor, a buffer that saves its replay in ``copies``, and the learner's end."""

    def __init__(
        self,
        engine: str = "inproc",
        *,
        sampler: str = "prioritised",
        in_step: bool = False,
        arrivals_ahead: int = 64,
        tolerance: float | None = None,
        sequence_steps: int | None = None,
        fragments: int = 300,
        warmup: int = WARMUP,
        end_rate: float = 0.3,
        copies: Path | None = None,
    ) -> None:
        self.layout, self.batches = LAYOUT, BATCHES_LAYOUT
        if sequence_steps is not None:
            self.layout = fragment_layout(4, 4)
            self.batches = BatchLayout.of(self.layout, BATCH, ("action",), sequence_steps)
        arrivals, priorities = stats_layout(EACH).nbytes, priorities_layout(BATCH).nbytes
        wiring = Wiring(
            f"replay-{next(_numbers)}",
            (
                Channel("fragments", BUFFER, (ACTOR,), self.layout.nbytes, 200),
                Channel(BATCHES, LEARNER, (BUFFER,), self.batches.nbytes + 64, 2),
                Channel(ARRIVALS, LEARNER, (BUFFER,), arrivals + 64, arrivals_ahead),
                Channel(PRIORITIES, BUFFER, (LEARNER,), priorities + 64, 3),
            ),
        )
        hosts = dict.fromkeys((BUFFER, LEARNER, ACTOR), "here")
        self.ends: list[Transport] = [
            open_endpoint(engine, engine, hosts, wiring, rank, 0, EngineOptions()) for rank in hosts
        ]
        addresses = {rank: end.address for rank, end in enumerate(self.ends)}
        for end in self.ends:
            end.connect(addresses)
        self.actor = ScriptedActor(self.layout, 0, seed=1, end_rate=end_rate)
        if sequence_steps is None:
            replay = open_replay(self.layout, fragments, sampler=sampler, priority_exponent=ALPHA)
        else:
            replay = open_sequences(self.layout, fragments, sequence_steps)
        self.store = ReplayStore(
            self.layout, JOB, {ACTOR: (0,)}, replay=replay, limiter=RateLimiter(RHO, warmup, tolerance)
        )
        self.buffer = ReplayBuffer(
            self.ends[BUFFER],
            "fragments",
            self.store,
            learner=LEARNER,
            taker=(LEARNER, "batches"),
            batches=self.batches,
            keeper=ReplayKeeper(replay, copies, 60.0) if copies else None,
            in_step=in_step,
        )
        self.learner = RemoteReplayClient(self.ends[LEARNER], {BUFFER: 0}, JOB, self.batches, EACH)
        # Before they have met, priorities would wait for the learner's next turn, which a test may not give.
        self.loan(LEARNER, BUFFER, PRIORITIES, priorities).abandon()

    def loan(self, sender: int, dest: int, channel: str, nbytes: int) -> Loan:
        """Get memory as soon as both ends have met."""
        for _ in range(1000):
            loan = self.ends[sender].loan(dest, channel, nbytes)
            if not isinstance(loan, Full):
                return loan
            for end in (self.ends[dest], self.ends[sender]):
                end.wait(0.005)
        pytest.fail("there is no room")

    def send(self, fragments: int) -> None:
        for _ in range(fragments):
            loan = self.loan(ACTOR, BUFFER, "fragments", self.layout.nbytes)
            self.actor.fill(loan.memory)
            self.ends[ACTOR].push(loan)

    def say(self, sender: int, dest: int, channel: str, payload: bytes) -> None:
        loan = self.loan(sender, dest, channel, len(payload))
        loan.memory[:] = payload
        self.ends[sender].push(loan)

    def batch(self) -> BatchArrays:
        """Let the buffer work until the learner has a batch."""
        for _ in range(1000):
            arrays = self.learner.draw()
            if arrays is not None:
                return arrays
            if not self.buffer.turn():
                self.ends[LEARNER].wait(0.01)
        pytest.fail("no batch comes")

    def leaves(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        sampler = self.store.replay.sampler
        assert isinstance(sampler, PrioritisedSampler)
        return sampler.tree.leaves[keys % self.store.replay.ring.slot_steps]

    def close(self) -> list[Any]:
        return [end.close() for end in self.ends]


def priorities(value: float) -> npt.NDArray[np.float32]:
    return np.full(BATCH, value, np.float32)
