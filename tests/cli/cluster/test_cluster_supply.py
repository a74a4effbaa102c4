"""What a group's learner is supplied with: which roles and channels a config and a plan ask for."""

import itertools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tianji_algos import registry as algorithms
from tianji_algos.core import Spaces, build_model
from tianji_algos.dqn.settings import DQNAgentSettings, DQNSettings
from tianji_algos.models.settings import MLPActorCriticSettings, MLPQSettings
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings
from tianji_cli.config.schema import Component, JobConfig
from tianji_cli.plan.graph import graph_of
from tianji_cli.plan.plan import Host, make_plan
from tianji_cli.roles.buffer.buffer import ReplayBuffer
from tianji_cli.roles.buffer.replay.file import ReplayFileError
from tianji_cli.roles.learner.data_source import ReplaySource, RolloutSource
from tianji_cli.wire.fragment import Fragment, FragmentLayout, common_fields
from tianji_cli.worker.supply import GroupProcesses, ReplaySupply, RolloutSupply, Supply, Terms, supply_of
from tianji_transports.core import FULL
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Wiring

SPACES = Spaces(gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2))
STEPS, ENVS, WARMUP, BATCH = 4, 8, 64, 16
JOB = 3
HOSTS = [Host(socket.gethostname(), tuple(range(8)))]
CAPABILITIES = InprocTransport.capabilities
COMPONENTS: dict[str, dict[str, Any]] = {
    "ppo": {
        "agent": Component(type="ppo", settings=PPOAgentSettings()),
        "model": Component(type="mlp_actor_critic", settings=MLPActorCriticSettings(hidden=(8,))),
        "training": Component(type="ppo", settings=PPOSettings(rollout_steps=64, minibatch_size=32)),
    },
    "dqn": {
        "agent": Component(type="dqn", settings=DQNAgentSettings()),
        "model": Component(type="mlp_q", settings=MLPQSettings(hidden=(8,))),
        "training": Component(
            type="dqn",
            settings=DQNSettings(batch_size=BATCH, warmup_steps=WARMUP, replay_ratio=2.0, publish_every=2),
        ),
    },
}
_numbers = itertools.count()


def terms(rule: str, directory: Path, *, resumed: bool = False, actors: int = 2, **buffer: Any) -> Terms:
    distribution: dict[str, Any] = {"transport": "shm", "pin_cores": False}
    if "learners" in buffer:
        distribution["learner"] = {"num": buffer.pop("learners")}
    for key in ("balance", "balance_tolerance", "mode"):
        if key in buffer:
            distribution[key] = buffer.pop(key)
    config = JobConfig(
        experiment={"name": "x", "stop": {"env_steps": 10**6}, "eval_episodes": 0},
        environment={"type": "gym", "id": "CartPole-v1", "num_envs": ENVS},
        **COMPONENTS[rule],
        distribution={
            **distribution,
            "actor": {"num": actors, "send_size": STEPS, "window": 2},
            "buffer": {"capacity": 1024, **buffer} if rule == "dqn" else buffer,
        },
    )
    fields = algorithms.load("agent", rule).fields(SPACES, config.agent.settings)
    return Terms(
        config,
        JOB,
        FragmentLayout(STEPS, ENVS, common_fields(SPACES.observation) + fields),
        tuple(field.name for field in fields),
        GroupProcesses.of(make_plan(config, HOSTS), 0),
        seed=len,
        directory=directory,
        checkpoints=directory / "checkpoints",
        resumed=resumed,
        env_steps=0,
    )


def wiring_of(given: Terms) -> Wiring:
    plan = make_plan(given.config, HOSTS)
    sizes = supply_of(given).sizes(CAPABILITIES)
    return graph_of(given.config).wiring(f"supply-{next(_numbers)}", plan, sizes, {"policy": 8})


class Group:
    """The endpoints of a group, and its supply in each process as every process builds it."""

    def __init__(self, given: Terms) -> None:
        self.terms = given
        wiring = wiring_of(given)
        pool = given.processes
        ranks = {pool.buffer.rank, pool.learner.rank, *(process.rank for process in pool.carriers)}
        self.ends = {rank: InprocTransport(wiring, rank) for rank in ranks}
        self.beside_buffer: Supply = supply_of(given)
        colocated = pool.buffer.rank == pool.learner.rank
        self.beside_learner: Supply = self.beside_buffer if colocated else supply_of(given)
        self.buffer = self.beside_buffer.buffer(self.ends[pool.buffer.rank])
        section = given.config
        model = build_model(algorithms.load("model", section.model.type), SPACES, section.model.settings, 1)
        self.embryo = algorithms.load("embryo", section.training.type)(
            SPACES, model, section.training.settings, 1
        )
        self.feed = self.beside_learner.feed(self.ends[pool.learner.rank], self.embryo)
        self.feed.advance(0)
        self._made: dict[int, int] = {}

    def send(self, rank: int, number: int) -> bool:
        layout = self.terms.layout
        loan = self.ends[rank].loan(self.beside_buffer.buffer_rank, "fragments", layout.nbytes)
        if loan is FULL:
            return False
        sequence = self._made.get(number, 0)
        self._made[number] = sequence + 1
        fragment = Fragment(layout, loan.memory)
        fragment.begin(
            job=JOB, actor=number, incarnation=0, sequence=sequence, before=sequence * STEPS * ENVS, version=0
        )
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
def group() -> Iterator[Callable[[Terms], Group]]:
    groups: list[Group] = []

    def open_group(given: Terms) -> Group:
        groups.append(Group(given))
        return groups[-1]

    yield open_group
    for one in groups:
        one.close()


def train(one: Group, rounds: int) -> tuple[int, int]:
    """Let everybody work; give what was received and how many batches came."""
    received = batches = 0
    for _ in range(rounds):
        for process in one.terms.processes.carriers:
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


def test_the_update_rule_decides_what_a_learner_is_supplied_with(tmp_path: Path) -> None:
    assert isinstance(supply_of(terms("ppo", tmp_path)), RolloutSupply)
    assert isinstance(supply_of(terms("dqn", tmp_path)), ReplaySupply)


@pytest.mark.parametrize(
    ("rule", "buffer", "names"),
    [
        ("ppo", {}, ["fragments"]),
        ("dqn", {}, ["fragments"]),
        ("dqn", {"colocate": False}, ["fragments", "batches", "arrivals", "priorities"]),
    ],
)
def test_channels_go_where_the_plan_has_put_buffer_and_learner(
    tmp_path: Path, rule: str, buffer: dict[str, Any], names: list[str]
) -> None:
    given = terms(rule, tmp_path, **buffer)
    channels = {channel.name: channel for channel in wiring_of(given).channels}
    assert list(channels) == names
    pool = given.processes
    assert (pool.buffer.rank != pool.learner.rank) is (len(names) > 1)
    assert channels["fragments"].receiver == pool.buffer.rank == supply_of(given).buffer_rank
    assert channels["fragments"].senders == tuple(process.rank for process in pool.carriers)
    for name in names[1:]:
        there = (pool.buffer.rank, (pool.learner.rank,))
        back = (pool.learner.rank, (pool.buffer.rank,))
        assert (channels[name].receiver, channels[name].senders) == (there if name == "priorities" else back)


@pytest.mark.parametrize(
    ("rule", "buffer", "answers"),
    [("ppo", {}, False), ("dqn", {}, False), ("dqn", {"sampler": "prioritised"}, True)],
)
def test_followers_are_dealt_equal_shares_and_send_priorities_if_there_are_any(
    tmp_path: Path, rule: str, buffer: dict[str, Any], *, answers: bool
) -> None:
    given = terms(rule, tmp_path, learners=2, **buffer)
    learner, (follower,) = given.processes.learner.rank, given.processes.followers
    wiring = wiring_of(given)
    shares = wiring.channel("shares", follower.rank)
    assert shares.senders == wiring.channel("deals", follower.rank).senders == (learner,)
    if rule == "ppo":
        fragments = given.config.fragments_per_rollout // 2
        assert (shares.max_bytes, shares.window, shares.borrow) == (given.layout.nbytes, fragments, fragments)
    channels = {channel.name: channel for channel in wiring.channels}
    assert ("priorities" in channels) is answers
    if answers:
        assert wiring.channel("priorities", learner).senders == (follower.rank,)


@pytest.mark.parametrize("buffer", [{}, {"colocate": False}, {"colocate": False, "sampler": "prioritised"}])
def test_a_replay_feeds_its_learner_wherever_it_is(
    group: Callable[[Terms], Group], tmp_path: Path, buffer: dict[str, Any]
) -> None:
    one = group(terms("dqn", tmp_path, **buffer))
    assert isinstance(one.feed, ReplaySource)
    assert isinstance(one.buffer, ReplayBuffer) is ("colocate" in buffer)
    received, batches = train(one, 60)
    tolerance = STEPS * ENVS + BATCH / 2.0
    # Batches that are on their way count as drawn.
    assert abs(received - WARMUP - batches * BATCH / 2.0) <= tolerance + 3 * BATCH / 2.0
    assert received > 300
    assert one.feed.report()["rho"] == 2.0


def test_rollouts_feed_their_learner(group: Callable[[Terms], Group], tmp_path: Path) -> None:
    one = group(terms("ppo", tmp_path))
    assert isinstance(one.feed, RolloutSource)
    received, batches = train(one, 60)
    assert received > 0
    assert batches > 0


def test_in_step_the_buffer_waits_for_priorities_if_the_config_says_so(
    group: Callable[[Terms], Group], tmp_path: Path
) -> None:
    ahead = []
    for updates in ("sync", "async"):
        one = group(terms("dqn", tmp_path, colocate=False, sampler="prioritised", priority_updates=updates))
        for _ in range(4):
            for process in one.terms.processes.carriers:
                one.send(process.rank, process.actors[0])
            one.buffer.turn()
        ahead.append(
            one.ends[one.terms.processes.buffer.rank].unconfirmed(one.terms.processes.learner.rank, "batches")
        )
    assert ahead == [1, 2]


@pytest.mark.parametrize("balance", ["held", "free"])
def test_a_balance_that_is_free_holds_nobody_back(
    group: Callable[[Terms], Group], tmp_path: Path, balance: str
) -> None:
    one = group(terms("dqn", tmp_path, balance=balance))
    for _ in range(30):
        for process in one.terms.processes.carriers:
            one.send(process.rank, process.actors[0])
        one.buffer.turn()
    received = sum(arrival.samples for arrival in one.feed.arrivals())
    assert received == 30 * 2 * STEPS * ENVS if balance == "free" else received <= WARMUP + STEPS * ENVS + 8


@pytest.mark.parametrize("colocate", [True, False])
def test_a_resumed_run_has_the_replay_that_was_saved_and_needs_no_warm_up(
    group: Callable[[Terms], Group], tmp_path: Path, colocate: bool
) -> None:
    saving = {"save_with_checkpoint": True, "colocate": colocate}
    first = group(terms("dqn", tmp_path, **saving))
    train(first, 20)
    first.buffer.stop()
    first.buffer.keep()
    size = first.buffer.report()["replay"]["size"]
    assert size > WARMUP

    fresh = group(terms("dqn", tmp_path, save_with_checkpoint=False, colocate=colocate, resumed=True))
    assert fresh.buffer.report()["replay"]["size"] == 0
    fresh.buffer.turn()
    assert fresh.feed.batch() is None

    again = group(terms("dqn", tmp_path, resumed=True, **saving))
    assert again.buffer.report()["replay"]["size"] == size
    again.buffer.turn()
    assert again.feed.batch() is not None
    received, batches = train(again, 40)
    assert again.buffer.report()["ratio"] == pytest.approx(2.0, rel=0.3)
    assert abs(received - batches * BATCH / 2.0) <= STEPS * ENVS + BATCH / 2.0 + 3 * BATCH / 2.0


def test_a_damaged_replay_is_an_error_that_names_its_file(
    group: Callable[[Terms], Group], tmp_path: Path
) -> None:
    first = group(terms("dqn", tmp_path, save_with_checkpoint=True))
    train(first, 10)
    first.buffer.stop()
    first.buffer.keep()
    (tmp_path / "checkpoints/replay/last/replay.json").write_text("{")
    with pytest.raises(ReplayFileError, match="cannot read the replay saved in"):
        group(terms("dqn", tmp_path, save_with_checkpoint=True, resumed=True))
