"""What ends training in the root's view, and how much actors may still produce before that.

A run is over when its learners have *received* ``stop.env_steps``. If actors went on until then, what they
have in flight would come on top: with 200 actors, most of another run. So production stops once what is
under way suffices, and resumes if some of it is lost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.plan.plan import Plan
from tianji_cli.root.job_view import Overview
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import Allow
from tianji_cli.wire.reports import Reception, Source


class StopRules:
    """Says when a job has had enough; learners check the mean return, and a single one its steps."""

    def __init__(self, config: JobConfig, overview: Overview) -> None:
        self._stop = config.experiment.stop
        self._several = config.distribution.groups > 1
        self._overview = overview

    def steps_reached(self) -> str | None:
        """Whether the steps are made, or None; asked at every report of a learner."""
        if not self._several:
            return None
        # Each counts its own, over all sessions.
        env_steps = sum(said.env_steps for said in self._overview.learners().values())
        return self._stop.reached({"env_steps": env_steps}).get("env_steps")

    def time_reached(self) -> str | None:
        """Whether the time is up, or None; reads the production pages of all actors."""
        if self._stop.wall_s is None:
            return None
        return self._stop.reached({"wall_s": self._overview.session_train_s}).get("wall_s")

    def attributed(self, reason: str, group: int) -> str:
        """Say of a learner's reason to stop whose it is."""
        return f"{reason} in group {group}" if self._several else reason


NEAR_S: Final = 0.02
"""How often the counters are looked at when the goal may be reached any moment."""
LOOK_S: Final = 1e-4
"""For each actor: a look takes a twentieth of it, so it takes no more than that of the root's time."""
FAR_S: Final = 0.5
"""How often at most otherwise."""
STALL_S: Final = 2.0
"""If nothing has arrived for so long although enough is under way, it may never arrive: all go on."""


class ProductionGoal:
    """Decides how many further fragments each actor may begin, and tells the actors.

    Nothing is decided in ``mode = "sync"``: there actors wait for each new version and never make more than
    the rollout that it takes.

    Attributes:
        look_at: when ``check`` wants to look again, by ``time.monotonic``.
    """

    def __init__(self, config: JobConfig, plan: Plan, overview: Overview, control: ControlServer) -> None:
        distribution = config.distribution
        goal = config.experiment.stop.env_steps if distribution.mode == "async" else None
        self._goal = math.inf if goal is None else goal - overview.earlier_env_steps
        self._overview = overview
        self._control = control
        self._carriers = [process.rank for process in plan.carrying("actor")]
        self._group_of = {actor: process.group for process in plan.processes for actor in process.actors}
        self._near_s = max(NEAR_S, plan.num_actors * LOOK_S)
        self._full = config.fragment_steps
        self._unit = 1 if config.learns_from_replay else config.fragments_per_rollout
        self._held = False
        self._seen = -1
        self._grown_at = 0.0
        self._before = 0.0, 0.0
        self.look_at = math.inf if goal is None else 0.0

    def check(self, killed: Collection[Source]) -> None:
        """Look at the counters if it is time to, and tell the actors what follows.

        Args:
            killed: incarnations of actors that will not finish what they have begun.
        """
        now = time.monotonic()
        if now < self.look_at:
            return
        coming, samples = self._coming(killed)
        missing = self._goal - coming
        if self._held and self._has_stalled(now):
            self._send(None)
            self._goal = self.look_at = math.inf
        elif missing <= 0:
            if not self._held:
                self._held, self._grown_at = True, now
                self._send(0)
            self.look_at = now + FAR_S
        elif self._held:
            self._send(1, math.ceil(missing / samples))
            self.look_at = now + FAR_S  # What they begin now is counted by then.
        else:
            self.look_at = now + self._pause_s(now, coming, missing)

    def register(self, rank: int) -> None:
        """Tell an actor that has been restarted what the others were told."""
        if self._held and rank in self._carriers:
            self._control.send(rank, Allow(fragments=0))

    def _pause_s(self, now: float, coming: float, missing: float) -> float:
        """Return when to look again: often once each actor need only begin one more fragment."""
        then, came = self._before
        self._before = now, coming
        rate = (coming - came) / max(now - then, 1e-3)
        spare = missing - len(self._group_of) * self._full
        if spare <= 0:
            return self._near_s
        return min(max(spare / (2 * rate), self._near_s), FAR_S) if rate > 0 else FAR_S

    def _coming(self, killed: Collection[Source]) -> tuple[float, float]:
        """Add up the samples that learners will have received when all that was begun has arrived.

        Returns:
            coming: samples of the session, of rollouts only as far as they become complete.
            samples: in a fragment, on average.
        """
        pages, receptions = self._overview.productions(), self._overview.receptions()
        finished = sum(page.finished for page in pages.values())
        samples = finished / sum(page.pushed for page in pages.values()) if finished else float(self._full)
        fragments = dict.fromkeys(self._group_of.values(), 0.0)
        for source, page in pages.items():
            reception = receptions.get(source, Reception())
            begun = reception.next_sequence if source in killed else page.pushed + (page.unfinished > 0)
            fragments[self._group_of[source[0]]] += begun - (reception.lost + reception.dropped) / samples
        whole = sum(math.floor(round(of_group, 3) / self._unit) for of_group in fragments.values())
        return whole * self._unit * samples, samples

    def _has_stalled(self, now: float) -> bool:
        """Whether nothing has arrived for much longer than a fragment takes."""
        received = self._overview.received
        if received != self._seen:
            self._seen, self._grown_at = received, now
        trained_s, made = self._overview.session_train_s, max(received, self._full) / self._full
        # As much as all make at once, or one rollout, may come together.
        fragment_s = trained_s * max(len(self._carriers), self._unit) / made
        return now - self._grown_at > max(STALL_S, 3 * fragment_s)

    def _send(self, fragments: int | None, actors: int | None = None) -> None:
        for rank in self._carriers[:actors]:
            self._control.send(rank, Allow(fragments=fragments))
