"""A line from actors to a store over the real in-process engine."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing

import gymnasium as gym
import numpy as np
import pytest

from tianji_cli.roles.buffer.buffer import Buffer
from tianji_cli.roles.buffer.rollout import RolloutStore
from tianji_cli.wire.fragment import Fragment, FragmentLayout, common_fields
from tianji_transports.core import FULL
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Channel, Wiring

LAYOUT = FragmentLayout(2, 2, common_fields(gym.spaces.Box(-1, 1, (3,), np.float32)))
JOB = 77
_numbers = itertools.count()


class Line:
    """Actors (one a rank, from rank 1) that push fragments to the buffer of rank 0 and its store."""

    def __init__(
        self,
        actors: int = 1,
        *,
        per_rollout: int,
        window: int = 2,
        lends: bool = True,
        in_step: bool = False,
        rollouts: int = 1,
        seed: int = 0,
    ) -> None:
        slots = RolloutStore.slots_needed(per_rollout, window * actors, rollouts)
        ranks = tuple(range(1, actors + 1))
        channel = Channel("fragments", 0, ranks, LAYOUT.nbytes + 64, window, slots)
        wiring = Wiring(f"line-{next(_numbers)}", (channel,))
        self.receiver = InprocTransport(wiring, 0)
        self.senders = [InprocTransport(wiring, rank) for rank in ranks]
        self.store = RolloutStore(
            LAYOUT,
            JOB,
            {rank: (rank - 1,) for rank in ranks},
            per_rollout=per_rollout,
            window=window * actors,
            lends=lends,
            in_step=in_step,
            rollouts=rollouts,
            seed=seed,
        )
        self.buffer = Buffer(self.receiver, "fragments", self.store)
        self._next: dict[tuple[int, int], tuple[int, int]] = {}

    def send(
        self,
        actor: int = 0,
        version: int = 0,
        incarnation: int = 0,
        samples: int = 4,
        header: Mapping[str, int] | None = None,
    ) -> bool:
        """Push an actor's next fragment, or one with this ``header``; False if its window is used up."""
        loan = self.senders[actor].loan(0, "fragments", LAYOUT.nbytes)
        if loan is FULL:
            return False
        sequence, before = self._next.get((actor, incarnation), (0, 0))
        self._next[actor, incarnation] = sequence + 1, before + samples
        fragment = Fragment(LAYOUT, loan.memory)
        fragment.begin(
            job=JOB, actor=actor, incarnation=incarnation, sequence=sequence, before=before, version=version
        )
        fragment.header["samples"] = samples
        for name, value in (header or {}).items():
            fragment.header[name] = value
        for array in fragment.fields.values():
            array[...] = sequence % 2
        self.senders[actor].push(loan)
        return True

    def lose(self, actor: int = 0, samples: int = 4) -> None:
        """Let an actor's next fragment be one that never arrives."""
        sequence, before = self._next.get((actor, 0), (0, 0))
        self._next[actor, 0] = sequence + 1, before + samples

    def send_bytes(self, payload: bytes, actor: int = 0) -> None:
        loan = self.senders[actor].loan(0, "fragments", len(payload))
        assert loan is not FULL
        loan.memory[:] = payload
        self.senders[actor].push(loan)

    def unclaimed(self, actor: int = 0) -> int:
        return self.senders[actor].unconfirmed(0, "fragments")

    def close(self) -> None:
        for transport in (*self.senders, self.receiver):
            transport.close()


@pytest.fixture
def line() -> Iterator[Callable[..., Line]]:
    with ExitStack() as lines:
        yield lambda *arguments, **keywords: lines.enter_context(closing(Line(*arguments, **keywords)))
