import os
import time

import pytest

from tianji_transports.composite import CompositeTransport, edge_capabilities, open_endpoint, split
from tianji_transports.core import Capabilities, Transport
from tianji_transports.errors import PeerLostError, TransportError, UnknownTransportError
from tianji_transports.inproc import InprocTransport
from tianji_transports.shm.transport import ShmTransport
from tianji_transports.testing import Job, Peer, verbs
from tianji_transports.wiring import Channel, Slot, Wiring
from tianji_transports.zmq.transport import ZmqTransport

HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}
PAIR = "tianji_transports.testing.job:HostsOfTwo"
STREAM = (Channel("f", 0, (1, 2), 1000, window=4, borrow=3),)


def wiring(*channels: Channel, slots: tuple[Slot, ...] = ()) -> Wiring:
    return Wiring(f"composite-{os.getpid()}", channels, slots)


def finish(receiver: Transport, sender: Peer) -> None:
    """Have what a sender was told to push arrive, unclaimed."""
    sender.answer(receiver)
    verbs.rest(receiver)


class Deaf(ZmqTransport):
    """An engine like zmq, and not zmq."""


DEAF = f"{__name__}:Deaf"


# -- which engines ------------------------------------------------------------------------------------------


def test_one_name_for_both_kinds_of_edges_is_that_engine() -> None:
    with open_endpoint("zmq", "zmq", HOSTS, wiring(*STREAM), 0) as endpoint:
        assert type(endpoint) is ZmqTransport
    assert edge_capabilities("zmq", "zmq", HOSTS) == ZmqTransport.capabilities


def test_on_one_host_only_the_local_engine_is_loaded() -> None:
    here = dict.fromkeys(HOSTS, "a")
    with open_endpoint("shm", "not there", here, wiring(*STREAM), 0) as endpoint:
        assert type(endpoint) is ShmTransport
    assert edge_capabilities("shm", "not there", here) == ShmTransport.capabilities


@pytest.mark.parametrize(
    ("rank", "channel", "opened"),
    [
        (0, Channel("f", 0, (1, 2), 10), {ShmTransport, ZmqTransport}),
        (1, Channel("f", 0, (1, 2), 10), {ShmTransport}),
        (2, Channel("f", 0, (1, 2), 10), {ZmqTransport}),
        (0, Channel("f", 0, (0, 3), 10), {ShmTransport, ZmqTransport}),
    ],
)
def test_a_rank_opens_the_engines_of_its_own_edges(
    rank: int, channel: Channel, opened: set[type[Transport]]
) -> None:
    with open_endpoint("shm", "zmq", HOSTS, wiring(channel), rank) as endpoint:
        assert isinstance(endpoint, CompositeTransport)
        assert {type(engine) for engine in endpoint._engines} == opened
        assert endpoint.capabilities == edge_capabilities("shm", "zmq", HOSTS), "whatever is opened"


def test_a_rank_without_edges_is_refused() -> None:
    with pytest.raises(TransportError, match="rank 3 has no channel"):
        open_endpoint("shm", "zmq", HOSTS, wiring(*STREAM), 3)


def test_a_pair_can_do_what_both_can() -> None:
    assert edge_capabilities("shm", "zmq", HOSTS) == Capabilities(
        cross_host=True, lends=True, max_borrowed=0, peer_restart=True, max_bytes=1 << 32
    )
    assert not edge_capabilities("inproc", "zmq", HOSTS).cross_process


@pytest.mark.parametrize("engines", [("shm", "shm"), ("zmq", "shm"), ("zmq", "inproc")])
def test_an_engine_of_one_host_cannot_be_the_remote_one(engines: tuple[str, str]) -> None:
    for ask in (
        lambda: edge_capabilities(*engines, HOSTS),
        lambda: open_endpoint(*engines, HOSTS, wiring(*STREAM), 0),
    ):
        with pytest.raises(TransportError, match=r"does not reach from host to host \(a, b\)"):
            ask()


def test_two_engines_that_cannot_sleep_in_one_wait_are_refused() -> None:
    with pytest.raises(TransportError, match="neither rings"):
        edge_capabilities(DEAF, "zmq", HOSTS)


def test_an_engine_that_is_not_there_is_the_registrys_error() -> None:
    with pytest.raises(UnknownTransportError, match="shm"):
        edge_capabilities("shn", "zmq", HOSTS)


# -- which edges --------------------------------------------------------------------------------------------


def test_every_edge_is_in_one_part() -> None:
    whole = wiring(
        Channel("f", 0, (0, 1, 2), 10, window=5, borrow=7),
        Channel("g", 2, (3,), 10),
        slots=(Slot("p", 0, (1, 2, 3), 10), Slot("q", 2, (3,), 10)),
    )
    inside, between = split(whole, HOSTS, "a")
    assert inside.channels == (Channel("f", 0, (0, 1), 10, window=5, borrow=7),)
    assert inside.slots == (Slot("p", 0, (1,), 10),)
    assert between.channels == (Channel("f", 0, (2,), 10, window=5, borrow=7),)
    assert between.slots == (Slot("p", 0, (2, 3), 10),)
    other_inside, same_between = split(whole, HOSTS, "b")
    assert other_inside.channels == (Channel("g", 2, (3,), 10),)
    assert same_between == between
    assert len({whole.job, inside.job, other_inside.job}) == 3


# -- both at once -------------------------------------------------------------------------------------------


def test_messages_from_both_sides_come_in_turns() -> None:
    with Job(PAIR, (Channel("f", 0, (1, 2, 3), 1000, window=6),)) as job:
        receiver, senders = job.open(0), [job.start(rank) for rank in (1, 2, 3)]
        for sender in senders:
            sender.tell("stream", 0, "f", 6)
            finish(receiver, sender)
        sources = []
        for _ in range(18):
            held = verbs.claim(receiver, "f")
            sources.append(held.source)
            held.release()
        for begin in range(0, 18, 3):
            assert sorted(sources[begin : begin + 3]) == [1, 2, 3], sources
        assert receiver.probe("f") is None


def test_a_probe_is_one_miss_and_a_publish_one_publish() -> None:
    with Job(PAIR, STREAM, (Slot("p", 0, (1, 2), 1000),)) as job:
        receiver, local, remote = job.open(0), job.start(1), job.start(2)
        assert receiver.probe("f") is None
        assert receiver.counters.misses == 1
        for version in (1, 2):
            verbs.publish(receiver, "p", version, 100)
        assert receiver.counters.publishes == 2
        for reader in (local, remote):
            reader.tell("read", "p", 0, 1)
        assert [reader.answer(receiver) for reader in (local, remote)] == [2, 2]
        for sender in (local, remote):
            sender.tell("push", 0, "f", 0, 64)
            verbs.receive(receiver, "f", sender.rank, 0)
            sender.answer()
        assert (receiver.counters.claims, receiver.counters.claimed_bytes) == (2, 128)


def test_the_borrow_of_a_channel_holds_over_both_sides() -> None:
    with Job(PAIR, STREAM) as job:
        receiver, local, remote = job.open(0), job.start(1), job.start(2)
        for sender in (local, remote):
            sender.tell("stream", 0, "f", 4)
            finish(receiver, sender)
        held = verbs.hold(receiver, "f", 3)
        assert {claim.source for claim in held} == {1, 2}
        for source in (-1, 1, 2):
            with pytest.raises(TransportError, match="release one first"):
                receiver.probe("f", source)
        held[0].release()
        verbs.hold(receiver, "f", 1)


def test_what_one_engine_had_left_alone_is_news_after_a_claim_from_the_other() -> None:
    with Job(PAIR, STREAM) as job:
        receiver, local, remote = job.open(0), job.start(1), job.start(2)
        for sender in (local, remote):
            sender.tell("push", 0, "f", 0)
            finish(receiver, sender)
        for source in (1, 2):
            verbs.receive(receiver, "f", source, 0)
            assert receiver.wait(0.0) == (source == 1)


def test_a_message_of_either_side_wakes_and_one_left_alone_lets_sleep() -> None:
    with Job(PAIR, STREAM) as job:
        receiver, local, remote = job.open(0), job.start(1), job.start(2)
        for sender in (local, remote):
            sender.tell("push", 0, "f", 0)
            assert receiver.wait(verbs.PATIENCE_S)
            sender.answer()
            verbs.rest(receiver)
        for sender in (remote, local):
            sender.tell("push", 0, "f", 1)
            assert verbs.woken(receiver)
            sender.answer()
            assert not receiver.wait(0.1)


def test_messages_left_alone_on_both_sides_are_reported_once_after_a_claim() -> None:
    with Job(PAIR, STREAM) as job:
        receiver, local, remote = job.open(0), job.start(1), job.start(2)
        for sender in (local, remote):
            sender.tell("stream", 0, "f", 2)
            finish(receiver, sender)
        for source in (1, 2):
            verbs.receive(receiver, "f", source, 0)
            assert receiver.wait(0.0)
            assert not receiver.wait(0.1)


def test_no_wake_up_is_missed_with_echoes_on_both_sides() -> None:
    rounds = 500
    channels = (
        Channel("f", 0, (1, 2), 16, window=1),
        Channel("f", 1, (0,), 16, window=1),
        Channel("f", 2, (0,), 16, window=1),
    )
    with Job(PAIR, channels) as job:
        here, peers = job.open(0), [job.start(1), job.start(2)]
        for peer in peers:
            peer.tell("echo", 0, "f", rounds)
            assert verbs.send_back(here, peer.rank, "f", 0) == 0
        missed, numbers = 0, {1: 0, 2: 0}
        for _ in range(2 * rounds):
            while (held := here.probe("f")) is None:
                missed += not verbs.woken(here)
            rank = held.source
            held.release()
            numbers[rank] += 1
            if numbers[rank] < rounds:
                missed += verbs.send_back(here, rank, "f", numbers[rank])
        assert missed == 0
        assert [peer.answer() for peer in peers] == [0, 0]


def test_a_drain_waits_for_both_sides_at_once() -> None:
    channels = (Channel("f", 1, (0,), 100), Channel("f", 2, (0,), 100))
    with Job(PAIR, channels) as job:
        sender, local, remote = job.open(0), job.start(1), job.start(2)
        for dest in (1, 2):
            verbs.push(sender, dest, "f", 0)
        remote.tell("receive", "f", 0, 0)
        began = time.monotonic()
        report = sender.close(1.0)
        assert time.monotonic() - began < 5.0
        assert report.unconfirmed == {(1, "f"): 1}
        assert report.counters.pushes == 2
        remote.answer()
        assert local.ask("close").unclaimed == {(0, "f"): 1}


def test_a_death_on_one_side_leaves_the_other_alone() -> None:
    channels = (Channel("f", 1, (0,), 100), Channel("f", 2, (0,), 100))
    with Job(PAIR, channels) as job:
        sender, local, remote = job.open(0), job.start(1), job.start(2)
        for peer, other in ((local, remote), (remote, local)):
            verbs.push(sender, peer.rank, "f", 0)
            job.kill(peer)
            sender.peer_lost(peer.rank)
            with pytest.raises(PeerLostError, match=f"rank {peer.rank}"):
                sender.loan(peer.rank, "f", 1)
            if other in job.peers:
                verbs.push(sender, other.rank, "f", 0)
                other.ask("receive", "f", 0, 0)
        local = job.start(1, incarnation=1)
        verbs.until(sender, lambda: verbs.has_credit(sender, 1, "f") or None)
        verbs.push(sender, 1, "f", 3)
        local.ask("receive", "f", 0, 3)


def test_ranks_of_other_hosts_on_the_same_machine_are_not_mixed_up() -> None:
    channels = (Channel("f", 0, (1,), 100), Channel("f", 2, (3,), 100))
    with Job(PAIR, channels) as job:
        receivers, senders = [job.open(0), job.open(2)], [job.start(1), job.start(3)]
        for receiver, sender in zip(receivers, senders, strict=True):
            sender.tell("push", receiver.rank, "f", 5)
            verbs.receive(receiver, "f", sender.rank, 5)
            sender.answer()
        assert [receiver.close().unclaimed for receiver in receivers] == [{}, {}]


@pytest.mark.parametrize("address", ["", "tcp://127.0.0.1:1", "[]", "[1]", "[2, 3]", "7", "[null, {}]"])
def test_an_address_of_another_shape_is_refused(address: str) -> None:
    with (
        open_endpoint("shm", "zmq", HOSTS, wiring(*STREAM), 2) as endpoint,
        pytest.raises(TransportError, match="address"),
    ):
        endpoint.connect({0: address})


def test_an_engine_that_cannot_open_closes_the_other() -> None:
    descriptors = len(os.listdir("/proc/self/fd"))

    class Broken(ZmqTransport):
        def __init__(self, *_: object) -> None:
            raise TransportError("no such interface")

    with pytest.raises(TransportError, match="no such interface"):
        CompositeTransport(InprocTransport, Broken, HOSTS, wiring(*STREAM), 0)
    assert len(os.listdir("/proc/self/fd")) == descriptors
