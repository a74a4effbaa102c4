"""What a learner deals goes out whole, is known to have arrived, and is given back if it is not to be."""

import itertools
import os
from collections.abc import Iterator

import pytest

from tianji_cli.plan.graph import DEALS, SHARES
from tianji_cli.roles.learner.parallel.dealing import HEADER, Deal, Scatter
from tianji_transports.core import Transport
from tianji_transports.shm.transport import ShmTransport
from tianji_transports.ucx.transport import UcxTransport
from tianji_transports.wiring import Channel, Wiring

LEARNER, ONE, OTHER = 0, 1, 2
NBYTES = 64
DEAL = Deal(env_steps=5, version=1, shares=1, synchronise=False, publishes=True)
_numbers = itertools.count()
Ends = dict[int, Transport]


def ends(engine: type[Transport], window: int) -> Iterator[Ends]:
    channels = [
        Channel(name, rank, (LEARNER,), nbytes, window)
        for rank in (ONE, OTHER)
        for name, nbytes in ((DEALS, HEADER.nbytes), (SHARES, NBYTES))
    ]
    wiring = Wiring(f"dealing-{os.getpid()}-{next(_numbers)}", tuple(channels), ())
    opened = {rank: engine(wiring, rank) for rank in (LEARNER, ONE, OTHER)}
    for end in opened.values():
        end.connect({rank: other.address for rank, other in opened.items()})
    yield opened
    for end in opened.values():
        end.close()


@pytest.fixture(params=[1, 2], ids=["window 1", "window 2"])
def asked(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """Endpoints that send only while they are asked something."""
    yield from ends(UcxTransport, request.param)


@pytest.fixture
def unasked() -> Iterator[Ends]:
    yield from ends(ShmTransport, 1)


def dealt(opened: Ends) -> Scatter:
    dealer = Scatter(opened[LEARNER], (ONE, OTHER), job=7, shares=1, nbytes=NBYTES)
    while dealer.hands() is None:
        for rank in (ONE, OTHER):
            assert opened[rank].probe(SHARES) is None
        opened[LEARNER].wait(0.01)
    dealer.push(DEAL)
    return dealer


def is_claimed(dealer: Scatter) -> bool:
    return dealer.is_claimed


def claim(opened: Ends, rank: int) -> None:
    end = opened[rank]
    while (share := end.probe(SHARES)) is None:
        end.wait(0.01)
    share.take(memoryview(bytearray(NBYTES)))


def test_a_deal_is_claimed_when_every_follower_has_its_share_and_that_ends_a_sleep(asked: Ends) -> None:
    dealer = dealt(asked)
    for rank in (ONE, OTHER):
        assert not is_claimed(dealer)
        claim(asked, rank)
        while not is_claimed(dealer) and rank == OTHER:
            assert asked[LEARNER].wait(20.0), "the claim wakes the learner"
    assert is_claimed(dealer)


def test_what_was_lent_while_a_claim_was_awaited_serves_the_next_deal(asked: Ends) -> None:
    dealer = dealt(asked)
    for _ in range(3):
        assert not is_claimed(dealer)
        for rank in (ONE, OTHER):
            while (call := asked[rank].probe(DEALS)) is None:
                asked[rank].wait(0.01)
            call.release()
            claim(asked, rank)
        while not is_claimed(dealer):
            asked[LEARNER].wait(0.01)
        while (hands := dealer.hands()) is None:
            asked[LEARNER].wait(0.01)
        assert [len(hand) for hand in hands] == [1, 1]
        dealer.push(DEAL)


def test_nobody_waits_for_claims_where_messages_go_by_themselves(unasked: Ends) -> None:
    assert is_claimed(dealt(unasked))


def test_memory_for_a_round_that_is_not_to_be_is_given_back(unasked: Ends) -> None:
    dealer = dealt(unasked)
    claim(unasked, ONE)
    assert dealer.hands() is None, "the other has its share yet to claim, and there is no more room"
    dealer.abandon()
    loan = unasked[LEARNER].loan(ONE, SHARES, NBYTES)
    assert loan, "what had been lent for the first is free again"
    loan.abandon()
