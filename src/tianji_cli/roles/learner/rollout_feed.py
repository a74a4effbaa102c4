"""Feeds a learner with rollouts: one round of minibatches after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from tianji_algos.core import RolloutEmbryo
from tianji_cli.roles.buffer.rollout import Rollout, RolloutStore, StoredFragment
from tianji_cli.roles.learner.feed import Feed
from tianji_cli.roles.learner.parallel.dealing import Deal, Dealer
from tianji_cli.wire.arrival import Arrival
from tianji_cli.wire.distribution import Distribution


class RolloutFeed(Feed):
    """Takes rollouts from the store beside it.

    What was received is counted when a learner begins with it, in the order of the rollout, so that a run in
    step repeats itself.

    Args:
        embryo: cuts rollouts into minibatches.
        store: where rollouts come from.
        dealer: deals each rollout out to this learner and its followers; None: there are none.
    """

    def __init__(self, embryo: RolloutEmbryo, store: RolloutStore, dealer: Dealer | None = None) -> None:
        self._embryo = embryo
        self._store = store
        self._dealer = dealer
        self._learners = 1 if dealer is None else dealer.learners
        self._staleness = Distribution()
        self._version = 0
        self._rollout: Rollout | None = None
        self._minibatches: Iterator[Any] | None = None
        self._round_is_done = False
        self._is_dealt = False
        self._winding_down = False

    def arrivals(self) -> Sequence[Arrival]:
        """Count the next rollout when the last is used up."""
        if self._winding_down:
            remaining = self._store.remaining()
            arrived = _arrivals(remaining.arrived)
            self._store.release(remaining)
            return arrived
        if self._rollout is not None or self._minibatches is not None:
            return ()
        self._rollout = self._store.rollout()
        return () if self._rollout is None else _arrivals(self._rollout.arrived)

    def deal(self, env_steps: int, *, synchronise: bool) -> bool:
        """Copy the followers' fragments to them: every one that is not this learner's."""
        assert self._dealer is not None
        if self._rollout is None:
            return False
        hands = self._dealer.hands()
        if hands is None:
            return False
        for follower, hand in enumerate(hands, start=1):
            for memory, stored in zip(hand, self._rollout.drawn[follower :: self._learners], strict=True):
                memory[:] = stored.fragment.memory
        self._dealer.push(Deal(env_steps, self._version, self._dealer.shares, synchronise, publishes=True))
        self._is_dealt = True
        return True

    @property
    def unfinished(self) -> bool:
        """A rollout was dealt, and not all of this learner's minibatches are used."""
        return self._is_dealt

    @property
    def is_claimed(self) -> bool:
        """The followers have their fragments."""
        return self._dealer is None or self._dealer.is_claimed

    def batch(self) -> Any | None:
        """Hand out the next minibatch of the rollout."""
        if self._minibatches is None:
            if self._rollout is None:
                return None
            drawn = self._rollout.drawn
            for stored in drawn:
                self._staleness.record(self._version - stored.version, stored.samples)
            own = drawn[:: self._learners]
            self._minibatches = self._embryo.minibatches([stored.fields for stored in own])
        minibatch = next(self._minibatches, None)
        self._release()
        if minibatch is None:
            self._minibatches = None
            self._is_dealt = False
            self._round_is_done = True
        return minibatch

    @property
    def round_is_done(self) -> bool:
        """All minibatches of a rollout were used."""
        return self._round_is_done

    def advance(self, version: int) -> None:
        """Begin a round with this version."""
        self._round_is_done = False
        self._version = version
        self._store.advance(version)

    def wind_down(self) -> None:
        """Give up the rest of the round."""
        self._winding_down = True
        self._is_dealt = False
        self._minibatches = None
        self._release()
        if self._dealer is not None:
            self._dealer.abandon()

    def report(self) -> dict[str, Any]:
        """Replay ratio of serial training, and the lag so far."""
        lag = self._staleness.summary()
        return {"rho": self._embryo.uses_per_sample, "lag": None if lag is None else asdict(lag)}

    def _release(self) -> None:
        """Once a first minibatch was made, everything needed of the fragments is copied."""
        if self._rollout is not None:
            self._store.release(self._rollout)
            self._rollout = None


def _arrivals(fragments: Sequence[StoredFragment]) -> list[Arrival]:
    return [Arrival.of(stored.fragment, stored.started_ns) for stored in fragments]
