"""A follower: a learner of a group that makes every update together with the one that publishes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tianji_algos.core import Embryo
from tianji_cli.roles.learner.parallel.dealing import Deal, tensors_in_step
from tianji_cli.roles.learner.parallel.dealing_feeds import FollowerFeed
from tianji_cli.roles.learner.parallel.lockstep import Lockstep, LostPeerError
from tianji_cli.roles.role import Role


class Follower(Role):
    """Updates on its share of everything that the learner deals out; publishes, saves and counts nothing.

    It goes on until the learner leaves it, and idles from then on until it is told to stop.

    Args:
        embryo: the update rule, which joins the others; it begins with the learner's parameters.
        feed: takes what is dealt.
        lockstep: the connections to the other learners.
    """

    name = "follower"

    def __init__(self, embryo: Embryo, feed: FollowerFeed, lockstep: Lockstep) -> None:
        self._embryo = embryo
        self._feed = feed
        self._lockstep = lockstep
        embryo.join(lockstep)
        self._parameters = np.zeros(embryo.model.parameter_count, np.float32)
        self._deal: Deal | None = None
        self._has_begun = False
        self._winding_down = False
        self._version = 0
        self._updates = 0

    def turn(self) -> bool:
        """Take what was dealt, or make one gradient update."""
        if self._lockstep.lost is not None:
            if not self._winding_down:
                self._lockstep.await_news()
            return False
        try:
            return self._go_on()
        except LostPeerError:
            return False

    def wind_down(self) -> None:
        """That the learner leaves is no loss from here on."""
        self._winding_down = True

    def report(self) -> dict[str, Any]:
        """Counters, and what was refused; uses of samples are counted by the learner."""
        return {
            "version": self._version,
            "updates": self._updates,
            "session_consumed": 0,
            **self._feed.report(),
        }

    def close(self) -> None:
        """Leave the others."""
        self._lockstep.close()

    def _go_on(self) -> bool:
        if self._deal is None:
            self._deal = self._feed.deal()
            if self._deal is None:
                return False
            self._begin(self._deal)
        batch = self._feed.batch()
        if batch is None:
            self._end(self._deal)
            self._deal = None
            return True
        self._embryo.update(batch)
        self._updates += 1
        self._feed.used()
        return True

    def _begin(self, deal: Deal) -> None:
        self._version = deal.version
        if not self._has_begun:
            self._check(deal.version)
            self._has_begun = True
        if deal.synchronise:
            self._lockstep.broadcast(tensors_in_step(self._embryo))
        self._embryo.schedule(deal.env_steps)

    def _end(self, deal: Deal) -> None:
        if deal.publishes:
            self._version = deal.version + 1
            self._check(self._version)

    def _check(self, version: int) -> None:
        self._embryo.model.write_parameters(self._parameters)
        self._lockstep.check_same(version, self._parameters)
