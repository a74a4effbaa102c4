"""Messages that an endpoint or a buffer rejects reach the root's account of the run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from gymnasium import spaces

from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings
from tianji_cli.config.schema import Component, JobConfig
from tianji_cli.files.counters import ProductionFile
from tianji_cli.plan.plan import Host, make_plan
from tianji_cli.roles.buffer.buffer import Buffer
from tianji_cli.roles.buffer.rollout import RolloutStore
from tianji_cli.roles.learner.learner import Learner
from tianji_cli.root.job_view import Overview
from tianji_cli.wire.fragment import FragmentLayout, common_fields
from tianji_cli.wire.messages import Report, decode_to_root, encode
from tianji_cli.wire.reports import ActorReport, BufferReport, LearnerReport
from tianji_transports.testing import verbs
from tianji_transports.wiring import Channel, Wiring
from tianji_transports.zmq.door import Password
from tianji_transports.zmq.frames import password
from tianji_transports.zmq.transport import ZmqTransport

LAYOUT = FragmentLayout(4, 1, common_fields(spaces.Box(-1, 1, (3,))))
LEARNER, ACTOR = 1, 2


@pytest.fixture
def buffer() -> Iterator[tuple[Buffer, ZmqTransport, ZmqTransport]]:
    """A buffer, its endpoint and an actor's, over real sockets."""
    wiring = Wiring("rejections", (Channel("fragments", LEARNER, (ACTOR,), LAYOUT.nbytes, 2, 8),))
    store = RolloutStore(LAYOUT, 7, {ACTOR: (0,)}, per_rollout=2, window=2, lends=True, in_step=False)
    with ZmqTransport(wiring, LEARNER) as receiver, ZmqTransport(wiring, ACTOR) as sender:
        sender.connect({LEARNER: receiver.address})
        yield Buffer(receiver, "fragments", store), receiver, sender


def overview(directory: Path) -> Overview:
    config = JobConfig(
        experiment={"name": "x", "stop": {"env_steps": 10}},
        environment={"type": "gym", "id": "CartPole-v1"},
        agent=Component(type="ppo", settings=PPOAgentSettings()),
        model=Component(type="mlp_actor_critic", settings=MLPActorCriticSettings()),
        training=Component(type="ppo", settings=PPOSettings()),
    )
    plan = make_plan(config, [Host("here", (0, 1))])
    return Overview(config, plan, ProductionFile(None, plan.num_actors))


def test_strangers_frames_and_foreign_fragments_reach_the_root_by_source(
    buffer: tuple[Buffer, ZmqTransport, ZmqTransport], tmp_path: Path
) -> None:
    role, receiver, sender = buffer
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        Password(password(receiver.wiring, receiver.address)).show(stranger)
        stranger.connect(receiver.address)
        for _ in range(5):
            stranger.send(b"noise")

        def turn() -> bool | None:
            role.turn()
            sender.wait(0.01)
            return (receiver.counters.rejected == 5 and sender.loan(LEARNER, "fragments", 1) and True) or None

        verbs.until(receiver, turn)
        lent = sender.loan(LEARNER, "fragments", LAYOUT.nbytes)
        assert lent
        lent.memory[:] = bytes(LAYOUT.nbytes)
        sender.push(lent)
        verbs.until(receiver, lambda: role.turn() or None)
    reports: list[Any] = [LearnerReport(), LearnerReport()]
    view = overview(tmp_path)
    roles = view._plan.processes[LEARNER].roles
    reports[roles.index(Buffer.name)] = role.report()
    assert Learner.name in roles
    report = Report(rank=LEARNER, incarnation=0, roles=reports, busy_s=[0.0, 0.0], running_s=1.0)
    received = decode_to_root(encode(report), 3)
    assert isinstance(received, Report)
    view.workers[LEARNER].update(received)
    fragments, endpoint = view.rejections()
    assert fragments[:2] == ("the fragments of buffer and learner (group 0)", 1)
    assert f"rank {ACTOR}" in fragments[2]
    assert endpoint[:2] == ("the endpoint of buffer and learner (group 0)", 5)
    assert "malformed" in endpoint[2]


def test_roles_that_share_an_endpoint_count_its_rejections_once(tmp_path: Path) -> None:
    view = overview(tmp_path)
    shared = ActorReport(rejected={"endpoint": (3, "noise")})
    view.workers[ACTOR].update(
        Report(rank=ACTOR, incarnation=0, roles=[shared, shared], busy_s=[0, 0], running_s=1)
    )
    view.workers[LEARNER].update(
        Report(
            rank=LEARNER, incarnation=0, roles=[BufferReport(), LearnerReport()], busy_s=[0, 0], running_s=1
        )
    )
    assert [count for _, count, _ in view.rejections()] == [3]
    assert view.rejections()[0][2] == "noise"
