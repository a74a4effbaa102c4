"""The root's endpoint: opened by the wiring it is told, slept at, and a failure of it ends no process."""

import socket
import time
from collections.abc import Iterator, Mapping

import pytest

from tianji_cli.plan.graph import AVERAGE, CONTRIBUTIONS
from tianji_cli.plan.plan import Plan, PlannedProcess
from tianji_cli.root.endpoint import RootEndpoint
from tianji_cli.root.observers.averaging import ParameterAveraging
from tianji_cli.wire.address import JobKey
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.parameters import Contribution, average_layout, contribution_layout
from tianji_cli.wire.records import job_number
from tianji_transports.core import EngineOptions, Full, Transport
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


def parameter_averaging(transport: Transport, groups: Mapping[int, int], job: int) -> ParameterAveraging:
    return ParameterAveraging(transport, groups, job, wait_s=1000.0, event=lambda _: None)


@pytest.fixture
def control() -> Iterator[ControlServer]:
    server = ControlServer(JobKey.new())
    yield server
    server.close()


@pytest.fixture
def averaging() -> Iterator[RootEndpoint]:
    made = RootEndpoint(plan("zmq"), EngineOptions(), parameter_averaging)
    yield made
    made.close()


def test_a_contribution_wakes_the_root_and_is_averaged(
    averaging: RootEndpoint, control: ControlServer
) -> None:
    assert averaging.address == {}
    averaging.open(WIRING)
    with ZmqTransport(WIRING, 1) as one, ZmqTransport(WIRING, 2) as other:
        addresses = {**averaging.address, 1: one.address, 2: other.address}
        averaging.connect(addresses)
        for group, learner in enumerate((one, other)):
            learner.connect(addresses)
            while isinstance(
                loan := learner.loan(0, CONTRIBUTIONS, contribution_layout(VALUES).nbytes), Full
            ):
                averaging.sleep(time.monotonic() + 0.01, control, ())
                averaging.turn()
                learner.wait(0.01)
            contribution = Contribution(loan.memory)
            contribution.values[...] = group
            contribution.stamp(job_number(WIRING.job), group, 1, 1.0)
            learner.push(loan)
        version = 0
        while version < 2:
            averaging.sleep(time.monotonic() + 20.0, control, ())
            averaging.turn()
            if (claim := one.latest(AVERAGE, version)) is not None:
                version = claim.version
                claim.release()
    assert averaging.rejected == (0, "")
    assert averaging.failure == ""


def test_what_the_root_cannot_open_is_said_and_not_raised(control: ControlServer) -> None:
    averaging = RootEndpoint(plan("no-such-engine"), EngineOptions(), parameter_averaging)
    averaging.open(WIRING)
    assert averaging.failure.startswith("the root cannot reach the groups: ")
    averaging.turn()
    averaging.sleep(time.monotonic() + 0.01, control, ())
    averaging.close()


def test_a_root_without_an_endpoint_sleeps_at_the_control_channel_alone(
    averaging: RootEndpoint, control: ControlServer
) -> None:
    averaging.sleep(time.monotonic() + 0.01, control, ())
    averaging.turn()
    averaging.lose({1})
    assert (averaging.failure, averaging.rejected, averaging.address) == ("", (0, ""), {})


@pytest.mark.usefixtures("control")
def test_nobody_connects_to_an_endpoint_that_averages_no_more(averaging: RootEndpoint) -> None:
    averaging.open(WIRING)
    base, _, ports = averaging.address[0].removeprefix("tcp://").rpartition(":")
    addresses = [(base, int(port)) for port in ports.split(",")]
    for address in addresses:
        socket.create_connection(address, 20).close()
    averaging.finish()
    for address in addresses:
        with pytest.raises(TimeoutError):
            socket.create_connection(address, 0.2)
