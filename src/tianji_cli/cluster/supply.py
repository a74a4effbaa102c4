"""How a group's learner gets its batches: the roles, channels and memory that rollouts or a replay need.

Whoever learns from rollouts has a buffer beside it that holds claims or copies of fragments; whoever learns
from a replay has one beside it or in a process of its own. ``supply_of`` picks; nothing else asks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from tianji_algos.core import Embryo, ReplayEmbryo, RolloutEmbryo
from tianji_cli.cluster.plan import Plan, PlannedProcess
from tianji_cli.config.schema import JobConfig
from tianji_cli.data import priority_update
from tianji_cli.data.arrival import Arrival
from tianji_cli.data.balance import BATCHES_AHEAD, Balance
from tianji_cli.data.batches import BatchArrays, BatchLayout
from tianji_cli.data.fragment import FragmentLayout
from tianji_cli.data.replay import PRIORITY, Replay, ReplaySettings
from tianji_cli.data.replay_keeper import ReplayKeeper
from tianji_cli.data.replay_store import ReplayStore
from tianji_cli.data.rollout import RolloutStore
from tianji_cli.roles.buffer import Buffer
from tianji_cli.roles.feed import Feed
from tianji_cli.roles.local_replay import LocalReplay
from tianji_cli.roles.remote_replay import RemoteReplay
from tianji_cli.roles.replay_buffer import ARRIVALS, BATCHES, PRIORITIES, ReplayBuffer
from tianji_cli.roles.replay_feed import BatchSource, ReplayFeed
from tianji_cli.roles.rollout_feed import RolloutFeed
from tianji_transports.core import Capabilities, Transport
from tianji_transports.wiring import Channel

FRAGMENTS: Final = "fragments"
"""Name of the channel that carries fragments from the actors of a group to its buffer."""

ARRIVALS_AHEAD: Final = 64
"""Fragments whose arrival a learner may have yet to hear of."""

AGE_BINS: Final = 1000
"""Bins of the histogram of ages, over the capacity of a replay."""


@dataclass(frozen=True)
class GroupProcesses:
    """The processes of one group.

    Attributes:
        buffer: carries the buffer.
        learner: carries the learner; the same process if they are colocated.
        carriers: carry actors.
    """

    buffer: PlannedProcess
    learner: PlannedProcess
    carriers: Sequence[PlannedProcess]

    @classmethod
    def of(cls, plan: Plan, group: int | None) -> GroupProcesses:
        """Find the processes of a group."""
        of_group = [process for process in plan.processes if process.group == group]
        carrying = {
            role: [process for process in of_group if role in process.roles]
            for role in ("buffer", "learner", "actor")
        }
        return cls(carrying["buffer"][0], carrying["learner"][0], carrying["actor"])

    @property
    def actors(self) -> int:
        """Actors of the group."""
        return sum(len(process.actors) for process in self.carriers)


@dataclass(frozen=True)
class Terms:
    """What a supply is built from.

    Attributes:
        config: of the job.
        job: the job's number, for headers.
        layout: of fragments.
        agent_fields: names of the agent's fields of a fragment.
        processes: the processes of the group.
        seed: gives a seed for a purpose.
        directory: of the run.
        resumed: training goes on from a checkpoint.
        env_steps: received in earlier sessions.
    """

    config: JobConfig
    job: int
    layout: FragmentLayout
    agent_fields: tuple[str, ...]
    processes: GroupProcesses
    seed: Callable[[str], int]
    directory: Path
    resumed: bool
    env_steps: int


class Supply(ABC):
    """Builds the buffer and the feed of a group, and says which channels they need.

    Args:
        terms: of the group.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    @abstractmethod
    def channels(self, capabilities: Capabilities) -> list[Channel]:
        """Channels of the group, over engines of these capabilities."""

    @abstractmethod
    def buffer(self, transport: Transport) -> Buffer:
        """Build the buffer of this process."""

    @abstractmethod
    def feed(self, transport: Transport, embryo: Embryo) -> Feed:
        """Build what this process's learner takes its batches from, after a buffer beside it."""

    @property
    def batch_bytes(self) -> int:
        """Size of a batch that is drawn from a replay; 0 if rollouts are used in place."""
        return 0

    @property
    def buffer_rank(self) -> int:
        """Where actors send their fragments."""
        return self._terms.processes.buffer.rank

    @property
    def per_version(self) -> int | None:
        """Fragments that each actor makes with one policy before it waits for the next; None: no waiting."""
        return None

    def _fragments(self, borrow: int) -> Channel:
        processes = self._terms.processes
        senders = tuple(process.rank for process in processes.carriers)
        per_process = max(len(process.actors) for process in processes.carriers)
        nbytes, window = self._terms.layout.nbytes, self._terms.config.window * per_process
        return Channel(FRAGMENTS, processes.buffer.rank, senders, nbytes, window, borrow)

    def _actor_numbers(self) -> dict[int, Sequence[int]]:
        return {process.rank: process.actors for process in self._terms.processes.carriers}


class RolloutSupply(Supply):
    """Rollouts, held by a buffer that takes turns with the learner."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._per_rollout = terms.config.fragments_per_rollout
        self._rollouts = terms.config.distribution.buffer.rollouts
        self._store: RolloutStore | None = None

    def channels(self, capabilities: Capabilities) -> list[Channel]:
        """Keep claims instead of copies where the engine lends as many as the store may hold."""
        return [self._fragments(self._slots if self._borrows(capabilities) else 1)]

    def buffer(self, transport: Transport) -> Buffer:
        """Build the buffer over a store of rollouts."""
        terms = self._terms
        self._store = RolloutStore(
            terms.layout,
            terms.job,
            self._actor_numbers(),
            per_rollout=self._per_rollout,
            window=self._window,
            lends=self._borrows(transport.capabilities),
            in_step=terms.config.distribution.mode == "sync",
            rollouts=self._rollouts,
            seed=terms.seed("rollouts"),
        )
        return Buffer(transport, FRAGMENTS, self._store)

    def feed(self, transport: Transport, embryo: Embryo) -> Feed:  # noqa: ARG002 - the store is in this process
        """Build the feed over the buffer's store."""
        assert self._store is not None
        return RolloutFeed(cast("RolloutEmbryo", embryo), self._store)

    @property
    def per_version(self) -> int | None:
        """In step, as many fragments as make an actor's share of a rollout."""
        in_step = self._terms.config.distribution.mode == "sync"
        return self._per_rollout // self._terms.processes.actors if in_step else None

    @property
    def _window(self) -> int:
        return self._terms.config.window * self._terms.processes.actors

    @property
    def _slots(self) -> int:
        return RolloutStore.slots_needed(self._per_rollout, self._window, self._rollouts)

    def _borrows(self, capabilities: Capabilities) -> bool:
        most = capabilities.max_borrowed
        return capabilities.lends and (most == 0 or self._slots <= most)


class ReplaySupply(Supply):
    """A replay, beside the learner or in a process of its own that assembles batches ahead."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._settings = terms.config.replay_settings
        self._section = terms.config.distribution.buffer
        read = [name for name in terms.agent_fields if name != PRIORITY]
        self._batches = BatchLayout.of(terms.layout, self._settings.batch_size, read)
        self._store: ReplayStore | None = None

    @property
    def _colocated(self) -> bool:
        return self._terms.processes.buffer.rank == self._terms.processes.learner.rank

    def channels(self, capabilities: Capabilities) -> list[Channel]:  # noqa: ARG002 - a replay keeps copies
        """Fragments; and what goes between buffer and learner if they do not share a process."""
        processes = self._terms.processes
        fragments = self._fragments(borrow=1)
        if self._colocated:
            return [fragments]
        buffer, learner = processes.buffer.rank, processes.learner.rank
        steps = self._terms.config.fragment_steps
        priorities = priority_update.nbytes(self._batches.size)
        return [
            fragments,
            Channel(BATCHES, learner, (buffer,), self._batches.nbytes, BATCHES_AHEAD),
            Channel(ARRIVALS, learner, (buffer,), Arrival.nbytes(steps), ARRIVALS_AHEAD),
            Channel(PRIORITIES, buffer, (learner,), priorities, BATCHES_AHEAD + 1),
        ]

    @property
    def batch_bytes(self) -> int:
        """Size of a batch."""
        return self._batches.nbytes

    def buffer(self, transport: Transport) -> Buffer:
        """Build the replay and the buffer over it."""
        terms, section = self._terms, self._section
        replay, balance = self._replay(), self._balance()
        keeper = self._keeper(replay)
        if keeper is not None and terms.resumed and keeper.restore():
            balance.warmup = max(0, balance.warmup - replay.size)
        self._store = ReplayStore(
            terms.layout, terms.job, self._actor_numbers(), replay=replay, balance=balance
        )
        if self._colocated:
            return Buffer(transport, FRAGMENTS, self._store, keeper)
        return ReplayBuffer(
            transport,
            FRAGMENTS,
            self._store,
            learner=terms.processes.learner.rank,
            batches=self._batches,
            keeper=keeper,
            in_step=section.priority_updates == "sync",
        )

    def feed(self, transport: Transport, embryo: Embryo) -> Feed:
        """Build the feed over the replay beside the learner, or over the transport to it."""
        source: BatchSource
        if self._colocated:
            assert self._store is not None
            source = LocalReplay(self._store, BatchArrays(self._batches))
        else:
            buffer = self._terms.processes.buffer.rank
            source = RemoteReplay(transport, buffer, self._terms.job, self._batches)
        return ReplayFeed(
            cast("ReplayEmbryo", embryo),
            source,
            rho=self._settings.replay_ratio,
            publish_every=self._settings.publish_every,
            prioritised=self._section.sampler == "prioritised",
            age_bin=max(1, self._section.capacity // AGE_BINS),
        )

    def _balance(self) -> Balance:
        settings = self._settings
        return Balance(settings.replay_ratio, settings.warmup_steps, self._terms.config.tolerance)

    def _keeper(self, replay: Replay) -> ReplayKeeper | None:
        if not self._section.save_with_checkpoint:
            return None
        every_s = self._terms.config.experiment.checkpoint_every_s
        return ReplayKeeper(replay, self._terms.directory / "checkpoints" / "replay", every_s)

    def _replay(self) -> Replay:
        section = self._section
        return Replay(
            self._terms.layout,
            ReplaySettings(
                capacity=section.capacity,
                sampler=section.sampler,
                n_step=self._settings.n_step,
                gamma=self._settings.gamma,
                priority_exponent=section.priority_exponent,
                importance_exponent=section.importance_exponent,
                importance_steps=section.importance_steps,
                memory=section.memory,
            ),
            agent_fields=tuple(spec.name for spec in self._batches.fields),
            seed=self._terms.seed("replay"),
            directory=self._terms.directory,
            env_steps=self._terms.env_steps,
        )


def supply_of(terms: Terms) -> Supply:
    """Build the supply that the config's update rule asks for."""
    return ReplaySupply(terms) if terms.config.learns_from_replay else RolloutSupply(terms)
