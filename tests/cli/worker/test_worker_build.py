"""Channels, buffers and data sources are those that the config and the plan ask for."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.builders import STEPS, learner_builder

from tianji_algos.dqn.settings import DQNSettings
from tianji_algos.ppo.settings import PPOSettings
from tianji_cli.config.edges import HEADERS, SHARDS
from tianji_cli.files.saved import Progress
from tianji_cli.roles.buffer.buffer import ReplayBuffer
from tianji_cli.roles.buffer.replay.file import ReplayFileError
from tianji_cli.roles.learner.data_source import ReplaySource, RolloutSource
from tianji_cli.wire.fragment import Fragment
from tianji_cli.worker.build import replay_buffer, replay_source, rollout_buffer, rollout_source
from tianji_cli.worker.builder import Builder, Saved
from tianji_cli.worker.channels import wiring_of
from tianji_transports.core import FULL
from tianji_transports.inproc import InprocTransport

ENVS, WARMUP, BATCH = 8, 64, 16
CAPABILITIES = InprocTransport.capabilities
TRAINING = {
    "ppo": PPOSettings(
        rollout_steps=64, minibatch_size=32, normalize_observations=False, normalize_rewards=False
    ),
    "dqn": DQNSettings(batch_size=BATCH, warmup_steps=WARMUP, replay_ratio=2.0, publish_every=2),
}
_numbers = itertools.count()


def builder_of(
    rule: str, directory: Path, *, resumed: bool = False, balance: str = "held", **options: Any
) -> Builder:
    """Builder of the learner's process; ``at`` gives those of the others."""
    progress = (Progress(),) if resumed else ()
    chosen = {"actors": 2, "num_envs": ENVS, "progress": progress, "distribution": {"balance": balance}}
    job = f"experience-{next(_numbers)}"
    return learner_builder(rule, TRAINING[rule], directory, job, **chosen, **options)


def test_versions_of_a_learner_rise_with_every_death_and_sessions_are_the_job_s(tmp_path: Path) -> None:
    builder = builder_of("ppo", tmp_path, resumed=True)
    saved = {"progress": {"env_steps": 70, "version": 7, "sessions": 2}}
    progress = [Builder(builder.job, builder.config, builder.process, again) for again in (1, 2)]
    for one in progress:
        one.__dict__["saved"] = Saved(tmp_path, True, {}, saved)
    first, second = (one.progress for one in progress)
    assert 7 < first.version < second.version
    assert first.env_steps == second.env_steps == 70
    assert first.sessions == builder.progress.sessions


def at(builder: Builder, role: str) -> Builder:
    """Builder of the first process that carries a role."""
    return Builder(builder.job, builder.config, builder.carrying(role)[0], 0)


def rank_of(builder: Builder, role: str) -> int:
    return builder.carrying(role)[0].rank


class Group:
    """The endpoints of a group, and its buffer and data source as their processes build them."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.carriers = builder.carrying("actor")
        wiring = wiring_of(builder, CAPABILITIES)
        self.at_buffer, self.at_learner = rank_of(builder, "buffer"), rank_of(builder, "learner")
        ranks = {self.at_buffer, self.at_learner, *(process.rank for process in self.carriers)}
        self.ends = {rank: InprocTransport(wiring, rank) for rank in ranks}
        replays = builder.config.learns_from_replay
        build_buffer = replay_buffer if replays else rollout_buffer
        self.buffer = build_buffer(at(builder, "buffer"), self.ends[self.at_buffer])
        beside = self.buffer if self.at_buffer == self.at_learner else None
        self.embryo, end = builder.embryo(builder.model()), self.ends[self.at_learner]
        if replays:
            self.feed, _ = replay_source(builder, end, beside)
        else:
            self.feed, _ = rollout_source(builder, end, self.embryo, beside)
        self.feed.advance(0)
        self._made: dict[int, int] = {}

    def send(self, rank: int, number: int) -> bool:
        layout = self.builder.layout
        loan = self.ends[rank].loan(self.at_buffer, "fragments", layout.nbytes)
        if loan is FULL:
            return False
        sequence = self._made.get(number, 0)
        self._made[number] = sequence + 1
        fragment = Fragment(layout, loan.memory)
        before, job = sequence * STEPS * ENVS, self.builder.number
        fragment.begin(job=job, actor=number, incarnation=0, sequence=sequence, before=before, version=0)
        fragment.header["samples"] = STEPS * ENVS
        for array in fragment.fields.values():
            array[...] = 0
        fragment.fields["mask"][...] = True
        self.ends[rank].push(loan)
        return True

    def close(self) -> None:
        for end in self.ends.values():
            end.close()


@pytest.fixture
def group() -> Iterator[Callable[[Builder], Group]]:
    groups: list[Group] = []

    def open_group(given: Builder) -> Group:
        groups.append(Group(given))
        return groups[-1]

    yield open_group
    for one in groups:
        one.close()


def train(one: Group, rounds: int) -> tuple[int, int]:
    """Let all roles work; returns the number of samples received and of batches."""
    received = batches = 0
    for _ in range(rounds):
        for process in one.carriers:
            for number in process.actors:
                one.send(process.rank, number)
        one.buffer.turn()
        received += sum(arrival.samples for arrival in one.feed.arrivals())
        if one.feed.round_is_done:
            one.feed.advance(0)
        batch = one.feed.batch()
        if batch is not None:
            one.feed.used(one.embryo.update(batch))
            batches += 1
    return received, batches


@pytest.mark.parametrize(
    ("rule", "buffer", "names"),
    [
        ("ppo", {}, ["fragments"]),
        ("dqn", {}, ["fragments"]),
        ("dqn", {"colocate": False}, ["fragments", "batches", "arrivals", "priorities"]),
        ("ppo", {"colocate": False}, ["fragments", "batches"]),
    ],
)
def test_channels_go_where_the_plan_has_put_buffer_and_learner(
    tmp_path: Path, rule: str, buffer: dict[str, Any], names: list[str]
) -> None:
    builder = builder_of(rule, tmp_path, **buffer)
    channels = {channel.name: channel for channel in wiring_of(builder, CAPABILITIES).channels}
    assert list(channels) == names
    buffer_rank, learner = rank_of(builder, "buffer"), rank_of(builder, "learner")
    assert (buffer_rank != learner) is (len(names) > 1)
    assert (channels["fragments"].borrow > 1) is (rule == "ppo" and not buffer)
    if rule == "ppo" and buffer:
        batches = channels["batches"]
        assert (batches.window, batches.borrow > 1) == (1, True), "two actors fill a rollout of two fragments"
    assert channels["fragments"].receiver == buffer_rank
    assert channels["fragments"].senders == tuple(process.rank for process in builder.carrying("actor"))
    for name in names[1:]:
        there, back = (buffer_rank, (learner,)), (learner, (buffer_rank,))
        assert (channels[name].receiver, channels[name].senders) == (there if name == "priorities" else back)


@pytest.mark.parametrize(
    ("rule", "buffer", "answers"),
    [("ppo", {}, False), ("dqn", {}, False), ("dqn", {"sampler": "prioritised"}, True)],
)
def test_followers_get_equal_shards_and_send_priorities_if_there_are_any(
    tmp_path: Path, rule: str, buffer: dict[str, Any], *, answers: bool
) -> None:
    builder = builder_of(rule, tmp_path, learners=2, **buffer)
    learner, follower = rank_of(builder, "learner"), rank_of(builder, "follower")
    wiring = wiring_of(builder, CAPABILITIES)
    shards = wiring.channel(SHARDS, follower)
    assert shards.senders == wiring.channel(HEADERS, follower).senders == (learner,)
    if rule == "ppo":
        fragments = builder.config.fragments_per_rollout // 2
        nbytes = builder.layout.nbytes
        assert (shards.max_bytes, shards.window, shards.borrow) == (nbytes, fragments, fragments)
    channels = {channel.name: channel for channel in wiring.channels}
    assert ("priorities" in channels) is answers
    if answers:
        assert wiring.channel("priorities", learner).senders == (follower,)


@pytest.mark.parametrize("buffer", [{}, {"colocate": False}, {"colocate": False, "sampler": "prioritised"}])
def test_a_replay_feeds_its_learner_wherever_it_is(
    group: Callable[[Builder], Group], tmp_path: Path, buffer: dict[str, Any]
) -> None:
    one = group(builder_of("dqn", tmp_path, **buffer))
    assert isinstance(one.feed, ReplaySource)
    assert isinstance(one.buffer, ReplayBuffer) is ("colocate" in buffer)
    received, batches = train(one, 60)
    tolerance = STEPS * ENVS + BATCH / 2.0
    # Batches that are on their way count as drawn.
    assert abs(received - WARMUP - batches * BATCH / 2.0) <= tolerance + 3 * BATCH / 2.0
    assert received > 300
    assert one.feed.report().rho == 2.0


@pytest.mark.parametrize("buffer", [{}, {"colocate": False}, {"colocate": False, "rollouts": 4}])
def test_rollouts_feed_their_learner_wherever_they_are_received(
    group: Callable[[Builder], Group], tmp_path: Path, buffer: dict[str, Any]
) -> None:
    one = group(builder_of("ppo", tmp_path, **buffer))
    assert isinstance(one.feed, RolloutSource)
    received, batches = train(one, 60)
    assert received > 0
    assert batches > 0
    one.buffer.wind_down()
    one.feed.wind_down()
    for _ in range(20):
        one.buffer.turn()
        received += sum(arrival.samples for arrival in one.feed.arrivals())
    assert received == one.buffer.report().received


def test_in_step_the_buffer_waits_for_priorities_if_the_config_says_so(
    group: Callable[[Builder], Group], tmp_path: Path
) -> None:
    ahead = []
    for updates in ("sync", "async"):
        one = group(
            builder_of("dqn", tmp_path, colocate=False, sampler="prioritised", priority_updates=updates)
        )
        for _ in range(4):
            for process in one.carriers:
                one.send(process.rank, process.actors[0])
            one.buffer.turn()
        ahead.append(one.ends[one.at_buffer].unconfirmed(one.at_learner, "batches"))
    assert ahead == [1, 2]


@pytest.mark.parametrize("balance", ["held", "free"])
def test_a_balance_that_is_free_holds_nobody_back(
    group: Callable[[Builder], Group], tmp_path: Path, balance: str
) -> None:
    one = group(builder_of("dqn", tmp_path, balance=balance))
    for _ in range(30):
        for process in one.carriers:
            one.send(process.rank, process.actors[0])
        one.buffer.turn()
    received = sum(arrival.samples for arrival in one.feed.arrivals())
    assert received == 30 * 2 * STEPS * ENVS if balance == "free" else received <= WARMUP + STEPS * ENVS + 8


@pytest.mark.parametrize("colocate", [True, False])
def test_a_resumed_run_has_the_replay_that_was_saved_and_needs_no_warm_up(
    group: Callable[[Builder], Group], tmp_path: Path, colocate: bool
) -> None:
    saving = {"save_with_checkpoint": True, "colocate": colocate}
    first = group(builder_of("dqn", tmp_path, **saving))
    train(first, 20)
    first.buffer.stop()
    first.buffer.keep()
    size = first.buffer.report().replay.size
    assert size > WARMUP

    fresh = group(builder_of("dqn", tmp_path, save_with_checkpoint=False, colocate=colocate, resumed=True))
    assert fresh.buffer.report().replay.size == 0
    fresh.buffer.turn()
    assert fresh.feed.batch() is None

    again = group(builder_of("dqn", tmp_path, resumed=True, **saving))
    assert again.buffer.report().replay.size == size
    again.buffer.turn()
    assert again.feed.batch() is not None
    received, batches = train(again, 40)
    assert again.buffer.report().ratio == pytest.approx(2.0, rel=0.3)
    assert abs(received - batches * BATCH / 2.0) <= STEPS * ENVS + BATCH / 2.0 + 3 * BATCH / 2.0


def test_a_damaged_replay_is_an_error_that_names_its_file(
    group: Callable[[Builder], Group], tmp_path: Path
) -> None:
    first = group(builder_of("dqn", tmp_path, save_with_checkpoint=True))
    train(first, 10)
    first.buffer.stop()
    first.buffer.keep()
    (tmp_path / "checkpoints/replay/last/replay.json").write_text("{")
    with pytest.raises(ReplayFileError, match="cannot read the replay saved in"):
        group(builder_of("dqn", tmp_path, save_with_checkpoint=True, resumed=True))
