"""The root's endpoint: opened by the wiring it is told, and slept at."""

import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tianji_cli.config.edges import AVERAGE, CONTRIBUTIONS
from tianji_cli.plan.plan import Plan, PlannedProcess
from tianji_cli.root.endpoint import RootEndpoint
from tianji_cli.root.observers.averaging import ParameterAveraging
from tianji_cli.wire.address import JobKey
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.parameters import Contribution, average_layout, contribution_layout
from tianji_cli.wire.records import job_number
from tianji_transports.core import EngineOptions, Full
from tianji_transports.errors import TransportError
from tianji_transports.wiring import Channel, Slot, Wiring
from tianji_transports.zmq.transport import ZmqTransport

VALUES = 4
WIRING = Wiring(
    "a job",
    (Channel(CONTRIBUTIONS, 0, (1, 2), contribution_layout(VALUES).nbytes),),
    (Slot(AVERAGE, 0, (1, 2), average_layout(VALUES, 2).nbytes),),
)


def plan(engine: str) -> Plan:
    roles = [("root", None), ("learner", 0), ("learner", 1)]
    processes = (PlannedProcess(rank, (role,), group, "a", (), 1) for rank, (role, group) in enumerate(roles))
    return Plan(tuple(processes), engine, engine)


@pytest.fixture
def control() -> Iterator[ControlServer]:
    server = ControlServer(JobKey.new())
    yield server
    server.close()


@pytest.fixture
def averaging() -> Iterator[RootEndpoint]:
    made = RootEndpoint(plan("zmq"), EngineOptions())
    yield made
    made.close()


def test_a_contribution_wakes_the_root_and_is_averaged(
    averaging: RootEndpoint, control: ControlServer
) -> None:
    assert averaging.address == {}
    job: Any = SimpleNamespace(
        config=SimpleNamespace(distribution=SimpleNamespace(sync_wait_s=1000.0)),
        learners={1: 0, 2: 1},
        overview=SimpleNamespace(note_averaging=lambda *_: None),
    )
    transport = averaging.open(WIRING)
    assert transport is not None
    observer = ParameterAveraging(job, transport, job_number(WIRING.job))
    assert averaging.open(WIRING) is None, "the learner was restarted"
    with ZmqTransport(WIRING, 1) as one, ZmqTransport(WIRING, 2) as other:
        addresses = {**averaging.address, 1: one.address, 2: other.address}
        averaging.connect(addresses)
        for group, learner in enumerate((one, other)):
            learner.connect(addresses)
            while isinstance(
                loan := learner.loan(0, CONTRIBUTIONS, contribution_layout(VALUES).nbytes), Full
            ):
                averaging.sleep(time.monotonic() + 0.01, control, ())
                observer.on_turn()
                learner.wait(0.01)
            contribution = Contribution(loan.memory)
            contribution.values[...] = group
            contribution.stamp(job_number(WIRING.job), group, 1, 1.0)
            learner.push(loan)
        version = 0
        while version < 2:
            averaging.sleep(time.monotonic() + 20.0, control, ())
            observer.on_turn()
            if (claim := one.latest(AVERAGE, version)) is not None:
                version = claim.version
                claim.release()
    assert averaging.rejected == (0, "")


def test_a_root_without_an_endpoint_sleeps_at_the_control_channel_alone(
    averaging: RootEndpoint, control: ControlServer
) -> None:
    averaging.sleep(time.monotonic() + 0.01, control, ())
    assert (averaging.rejected, averaging.address) == ((0, ""), {})


def test_what_cannot_be_opened_leaves_a_root_without_an_endpoint(control: ControlServer) -> None:
    endpoint = RootEndpoint(plan("no-such-engine"), EngineOptions())
    with pytest.raises(TransportError):
        endpoint.open(WIRING)
    endpoint.sleep(time.monotonic() + 0.01, control, ())
    endpoint.close()


@pytest.mark.usefixtures("control")
def test_nobody_connects_to_an_endpoint_that_averages_no_more(averaging: RootEndpoint) -> None:
    averaging.open(WIRING)
    base, _, ports = averaging.address[0].removeprefix("tcp://").rpartition(":")
    addresses = [(base, int(port)) for port in ports.split(",")]
    for address in addresses:
        socket.create_connection(address, 20).close()
    averaging.finish()
    assert averaging.open(WIRING) is None
    for address in addresses:
        with pytest.raises(TimeoutError):
            socket.create_connection(address, 0.2)
