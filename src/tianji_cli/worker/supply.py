"""How a group's learner gets its batches: the roles, channels and memory that rollouts or a replay need.

A learner of rollouts has a buffer beside it that holds claims or copies of fragments; a learner of a replay
has one beside it or in a process of its own. ``supply_of`` picks; nothing else asks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from tianji_algos.core import Embryo, RolloutEmbryo
from tianji_cli.config.schema import BATCHES_AHEAD, JobConfig
from tianji_cli.plan.graph import ARRIVALS, BATCHES, DEALS, FRAGMENTS, PRIORITIES, SHARES, ChannelSize
from tianji_cli.plan.plan import Plan, PlannedProcess
from tianji_cli.roles.buffer.buffer import Buffer, ReplayBuffer
from tianji_cli.roles.buffer.rate_limiter import RateLimiter
from tianji_cli.roles.buffer.replay.file import ReplayKeeper
from tianji_cli.roles.buffer.replay.replay import PRIORITY, Replay, ReplaySettings, bytes_of
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.buffer.rollout import RolloutStore
from tianji_cli.roles.learner.data_source import (
    DataSource,
    LocalReplayClient,
    RemoteReplayClient,
    ReplayClient,
    ReplaySource,
    RolloutSource,
)
from tianji_cli.roles.learner.parallel.all_reduce import AllReduceGroup
from tianji_cli.roles.learner.parallel.dealing import HEADER, Scatter
from tianji_cli.roles.learner.parallel.followers import (
    FollowerSource,
    ScatteredBatches,
    ScatteredRollouts,
    ScatteringReplayClient,
)
from tianji_cli.wire.batches import BatchArrays, BatchLayout, priorities_layout
from tianji_cli.wire.fragment import FragmentLayout, stats_layout
from tianji_transports.core import Capabilities, Transport


@dataclass(frozen=True)
class GroupProcesses:
    """The processes of one group.

    Attributes:
        buffer: carries the buffer.
        learner: carries the learner; the same process if they are colocated.
        followers: carry the other learners.
        carriers: carry actors.
    """

    buffer: PlannedProcess
    learner: PlannedProcess
    followers: Sequence[PlannedProcess]
    carriers: Sequence[PlannedProcess]

    @classmethod
    def of(cls, plan: Plan, group: int | None) -> GroupProcesses:
        """Find the processes of a group."""
        of_group = [process for process in plan.processes if process.group == group]
        carrying = {
            role: [process for process in of_group if role in process.roles]
            for role in ("buffer", "learner", "follower", "actor")
        }
        (buffer,), (learner,) = carrying["buffer"], carrying["learner"]
        return cls(buffer, learner, carrying["follower"], carrying["actor"])

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
        checkpoints: of the group.
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
    checkpoints: Path
    resumed: bool
    env_steps: int


ARRIVALS_AHEAD: Final = 64
"""Fragments whose arrival a learner may have yet to hear of."""

AGE_BINS: Final = 1000
"""Bins of the histogram of ages, over the capacity of a replay."""


class Supply(ABC):
    """Builds the buffer and the feed of a group, and says which channels they need.

    Args:
        terms: of the group.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    @abstractmethod
    def sizes(self, capabilities: Capabilities) -> dict[str, ChannelSize]:
        """Sizes of the group's channels by name, over engines of these capabilities."""

    def check(self, buffers: int) -> None:  # noqa: B027 - rollouts take little
        """Make sure that one host can hold so many buffers.

        Raises:
            ReplayMemoryError: it cannot; says how large they may be.
        """

    @abstractmethod
    def buffer(self, transport: Transport) -> Buffer:
        """Build the buffer of this process."""

    @abstractmethod
    def feed(
        self, transport: Transport, embryo: Embryo, all_reduce: AllReduceGroup | None = None
    ) -> DataSource:
        """Build what this process's learner takes its batches from, after a buffer beside it.

        Args:
            transport: the endpoint of this process.
            embryo: what learns.
            all_reduce: the connections to the learner's followers, which are dealt shares; None: it has none.
        """

    @abstractmethod
    def follower_source(self, transport: Transport, embryo: Embryo) -> FollowerSource:
        """Build what this process's follower takes its batches from."""

    @property
    def batch_bytes(self) -> int:
        """Size of a batch that is drawn from a replay; 0 if rollouts are used in place."""
        return 0

    @property
    def processes(self) -> GroupProcesses:
        """The processes of the group."""
        return self._terms.processes

    @property
    def buffer_rank(self) -> int:
        """Where actors send their fragments."""
        return self._terms.processes.buffer.rank

    @property
    def per_version(self) -> int | None:
        """Fragments that each actor makes with one policy before it waits for the next; None: no waiting."""
        return None

    def _fragments(self, borrow: int) -> ChannelSize:
        return ChannelSize(self._terms.layout.nbytes, self._terms.config.window, borrow)

    @property
    def _learners(self) -> int:
        return len(self._terms.processes.followers) + 1

    def _dealt(self, share: ChannelSize) -> dict[str, ChannelSize]:
        return {DEALS: ChannelSize(HEADER.nbytes), SHARES: share} if self._learners > 1 else {}

    def _dealer(
        self, transport: Transport, all_reduce: AllReduceGroup | None, shares: int, nbytes: int
    ) -> Scatter | None:
        if all_reduce is None:
            return None
        ranks = [process.rank for process in self._terms.processes.followers]
        return Scatter(transport, ranks, self._terms.job, shares, nbytes)

    def _actor_numbers(self) -> dict[int, Sequence[int]]:
        return {process.rank: process.actors for process in self._terms.processes.carriers}


class RolloutSupply(Supply):
    """Rollouts, held by a buffer that takes turns with the learner."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._per_rollout = terms.config.fragments_per_rollout
        self._rollouts = terms.config.distribution.buffer.rollouts
        self._store: RolloutStore | None = None

    def sizes(self, capabilities: Capabilities) -> dict[str, ChannelSize]:
        """Keep claims instead of copies where the engine lends as many as the store may hold."""
        borrow = self._slots if _lends(capabilities, self._slots) else 1
        return {FRAGMENTS: self._fragments(borrow), **self._dealt(self._share(capabilities))}

    def buffer(self, transport: Transport) -> Buffer:
        """Build the buffer over a store of rollouts."""
        terms = self._terms
        self._store = RolloutStore(
            terms.layout,
            terms.job,
            self._actor_numbers(),
            per_rollout=self._per_rollout,
            window=self._window,
            lends=_lends(transport.capabilities, self._slots),
            in_step=terms.config.distribution.mode == "sync",
            rollouts=self._rollouts,
            seed=terms.seed("rollouts"),
        )
        return Buffer(transport, FRAGMENTS, self._store)

    def feed(
        self,
        transport: Transport,
        embryo: Embryo,
        all_reduce: AllReduceGroup | None = None,
    ) -> DataSource:
        """Build the feed over the buffer's store."""
        assert self._store is not None
        share = self._share(transport.capabilities)
        dealer = self._dealer(transport, all_reduce, share.window, share.max_bytes)
        return RolloutSource(cast("RolloutEmbryo", embryo), self._store, dealer)

    def follower_source(self, transport: Transport, embryo: Embryo) -> FollowerSource:
        """Build what takes the follower's share of a rollout."""
        share = self._share(transport.capabilities)
        actors = [number for process in self._terms.processes.carriers for number in process.actors]
        return ScatteredRollouts(
            transport,
            self._terms.job,
            cast("RolloutEmbryo", embryo),
            self._terms.layout,
            actors,
            shares=share.window,
            lends=share.borrow == share.window,
        )

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

    def _share(self, capabilities: Capabilities) -> ChannelSize:
        """A learner's fragments of a rollout, all claimed at once where the engine lends as many."""
        fragments = self._per_rollout // self._learners
        borrow = fragments if _lends(capabilities, fragments) else 1
        return ChannelSize(self._terms.layout.nbytes, fragments, borrow)


class ReplaySupply(Supply):
    """A replay, beside the learner or in a process of its own that assembles batches ahead."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._settings = terms.config.replay_settings
        self._section = terms.config.distribution.buffer
        read = [name for name in terms.agent_fields if name != PRIORITY]
        size, steps = self._settings.batch_size, terms.config.sequence_steps
        self._batches = BatchLayout.of(terms.layout, size, read, steps)
        self._share = BatchLayout.of(terms.layout, size // self._learners, read, steps)
        self._store: ReplayStore | None = None

    @property
    def _colocated(self) -> bool:
        return self._terms.processes.buffer.rank == self._terms.processes.learner.rank

    def sizes(self, capabilities: Capabilities) -> dict[str, ChannelSize]:  # noqa: ARG002 - a replay copies
        """Fragments; and what goes between buffer and learner if they do not share a process."""
        sizes = {FRAGMENTS: self._fragments(borrow=1), **self._dealt(ChannelSize(self._share.nbytes))}
        if self._learners > 1 and self._prioritised:
            sizes[PRIORITIES] = ChannelSize(priorities_layout(self._share.size).nbytes)
        if not self._colocated:
            sizes |= {
                BATCHES: ChannelSize(self._batches.nbytes, BATCHES_AHEAD),
                ARRIVALS: ChannelSize(stats_layout(self._terms.config.fragment_steps).nbytes, ARRIVALS_AHEAD),
                PRIORITIES: ChannelSize(priorities_layout(self._batches.size).nbytes, BATCHES_AHEAD + 1),
            }
        return sizes

    @property
    def batch_bytes(self) -> int:
        """Size of a batch."""
        return self._batches.nbytes

    def check(self, buffers: int) -> None:
        """Make sure that one host can hold so many replays."""
        settings = self._replay_settings
        needed = bytes_of(self._terms.layout, settings, self._kept)
        needed.place(settings, self._terms.directory, buffers)

    def buffer(self, transport: Transport) -> Buffer:
        """Build the replay and the buffer over it."""
        terms, section = self._terms, self._section
        replay, limiter = self._replay(), self._limiter()
        keeper = self._keeper(replay)
        if keeper is not None and terms.resumed and keeper.restore():
            limiter.warmup = max(0, limiter.warmup - replay.size)
        self._store = ReplayStore(
            terms.layout, terms.job, self._actor_numbers(), replay=replay, limiter=limiter
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

    def follower_source(self, transport: Transport, embryo: Embryo) -> FollowerSource:  # noqa: ARG002
        """Build what takes the follower's share of each batch."""
        learner = self._terms.processes.learner.rank
        return ScatteredBatches(
            transport, self._terms.job, self._share, learner, prioritised=self._prioritised
        )

    def feed(
        self,
        transport: Transport,
        embryo: Embryo,  # noqa: ARG002
        all_reduce: AllReduceGroup | None = None,
    ) -> DataSource:
        """Build the feed over the replay beside the learner, or over the transport to it."""
        source: ReplayClient
        dealer = self._dealer(transport, all_reduce, 1, self._share.nbytes)
        if dealer is not None:
            assert self._store is not None
            source = ScatteringReplayClient(
                transport,
                self._store,
                self._batches,
                self._share,
                dealer,
                prioritised=self._prioritised,
                in_step=self._section.priority_updates == "sync",
            )
        elif self._colocated:
            assert self._store is not None
            source = LocalReplayClient(self._store, BatchArrays(self._batches))
        else:
            buffer = self._terms.processes.buffer.rank
            steps = self._terms.config.fragment_steps
            source = RemoteReplayClient(transport, buffer, self._terms.job, self._batches, steps)
        return ReplaySource(
            source,
            rho=self._settings.replay_ratio,
            publish_every=self._settings.publish_every,
            prioritised=self._prioritised,
            age_bin=max(1, self._section.capacity // AGE_BINS),
        )

    @property
    def _prioritised(self) -> bool:
        return self._section.sampler == "prioritised"

    def _limiter(self) -> RateLimiter:
        settings = self._settings
        return RateLimiter(settings.replay_ratio, settings.warmup_steps, self._terms.config.tolerance)

    def _keeper(self, replay: Replay) -> ReplayKeeper | None:
        if not self._section.save_with_checkpoint:
            return None
        every_s = self._terms.config.experiment.checkpoint_every_s
        return ReplayKeeper(replay, self._terms.checkpoints / "replay", every_s)

    @property
    def _kept(self) -> tuple[str, ...]:
        """Names of the agent's fields that the replay holds."""
        return tuple(spec.name for spec in self._batches.fields)

    @property
    def _replay_settings(self) -> ReplaySettings:
        section, transitions = self._section, self._terms.config.transition_settings
        return ReplaySettings(
            capacity=section.capacity,
            sampler=section.sampler,
            n_step=1 if transitions is None else transitions.n_step,
            gamma=1.0 if transitions is None else transitions.gamma,
            sequence_steps=self._terms.config.sequence_steps,
            priority_exponent=section.priority_exponent,
            importance_exponent=section.importance_exponent,
            importance_steps=_share(section.importance_steps, self._terms.config.distribution.groups),
            memory=section.memory,
        )

    def _replay(self) -> Replay:
        return Replay(
            self._terms.layout,
            self._replay_settings,
            agent_fields=self._kept,
            seed=self._terms.seed("replay"),
            directory=self._terms.directory,
            env_steps=self._terms.env_steps,
        )


def _lends(capabilities: Capabilities, claims: int) -> bool:
    """Whether an engine lends so many claims at once."""
    return capabilities.lends and (capabilities.max_borrowed == 0 or claims <= capabilities.max_borrowed)


def _share(steps: int | None, groups: int) -> int | None:
    """Divide steps of the whole job among its groups, each of which counts its own."""
    return None if steps is None else max(1, steps // groups)


def supply_of(terms: Terms) -> Supply:
    """Build the supply that the config's update rule asks for."""
    return ReplaySupply(terms) if terms.config.learns_from_replay else RolloutSupply(terms)
