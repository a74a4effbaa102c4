"""Messages to the user while a job runs: slow and hanging workers, lost output, rejected frames."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tianji_cli.plan.plan import EXAMINER, Plan
from tianji_cli.quantities import duration, memory
from tianji_cli.root.bottleneck import Receiver
from tianji_cli.root.endpoint import RootEndpoint
from tianji_cli.root.job_view import Overview
from tianji_cli.signals import BEGAN_S
from tianji_cli.telemetry.snapshot import RoleStatus, Snapshot
from tianji_cli.wire.control import ControlServer

SLOW_START_S: Final = 30.0
"""Seconds until the root names, once, the processes that are not ready."""
STALLED_S: Final = 30.0
"""Seconds without a step or an update until the root says so, once."""
PAUSE_S: Final = 2.0
"""Longest pause between two steps or updates that counts as work."""
SLOW: Final = 10
"""Factor over a process's longest silence so far beyond which it counts as hanging."""
LATE_S: Final = 10.0
"""Seconds of silence after which the root reports a worker as late."""
HANGS_S: Final = 75.0
"""Seconds that an examiner may be silent beyond an evaluation's limit.

A film may first build its environment, and closes it when it fails.
"""
WEIGH_EVERY_S: Final = 60.0
GROWING: Final = 10
"""Number of measurements: the root names a process whose memory grew at each, and by a quarter in all."""
ASLEEP_S: Final = 5.0
"""Seconds between two checks beyond which the root itself was suspended: silences then mean nothing."""


class Announcements:
    """Announces events of a running job to the user, most of them once.

    Attributes:
        worked_s: seconds of training, without pauses of more than ``PAUSE_S``.
        stuck: rank of an actor that has hung since the last step or update; None if none has.
    """

    def __init__(self, plan: Plan, event: Callable[[str], None]) -> None:
        self._plan = plan
        self._event = event
        self._announced: set[object] = set()
        self._last_heard = LastHeard(range(len(plan.processes)))
        self._looked_s = time.monotonic()
        self._began = time.monotonic()
        self._suspended_servers: set[str] = set()
        self._done = (-1, -1, -1)
        self._done_s = 0.0
        self._stalled = False
        self.worked_s = 0.0
        self.stuck: int | None = None
        self._weigh_s = 0.0
        self._weights: dict[int, list[int]] = {}

    def begin(self, rank: int) -> None:
        """Note that a worker was started."""
        self._last_heard.begin(rank)

    def is_built(self, rank: int) -> None:
        """Note that a worker is ready. Its start had a reset, so one may take twice as long as the start."""
        is_examiner = EXAMINER in self._plan.processes[rank].roles
        self.note_alive(rank, 0.0 if is_examiner else 2 * self._last_heard.of(rank)[0] / SLOW)

    def note_alive(self, rank: int, after_s: float) -> None:
        """Note a sign of life from a worker, ``after_s`` seconds of its own clock after the one before."""
        if self._last_heard.is_broken(rank, after_s):
            self._event(f"{self._title(rank)} is heard of again")

    def check_hanging(
        self, limits_s: Mapping[int, float], is_suspended: Callable[[int], bool]
    ) -> dict[int, str]:
        """Find and announce the processes that do not return from a call; called before ``check_training``.

        While a process or the root is suspended, no more than ``LATE_S`` of its silence count.

        Args:
            limits_s: longest silence of each rank, in seconds; a process that is usually slow may take
                longer.

        Returns:
            Description of each hang, by rank.
        """
        now, before = time.monotonic(), self._looked_s
        self._looked_s = now
        hanging = {}
        for rank, limit_s in limits_s.items():
            silent_s, usual_s = self._last_heard.of(rank)
            if silent_s <= max(min(limit_s, LATE_S), usual_s):
                continue
            if now - before > ASLEEP_S or is_suspended(rank):
                self._last_heard.pause(rank)
                continue
            roles = self._plan.processes[rank].roles
            if EXAMINER not in roles and ("learner" not in roles or silent_s > limit_s / SLOW):
                self.stuck = rank  # No process waits for an examiner, and an update may take long.
            if silent_s > limit_s:
                self._last_heard.begin(rank)
                where, after = "a step, an action or a picture", f"{round(max(limit_s, usual_s), 1):g} s"
                self._event(f"{self._title(rank)} does not come back from {where} after {after}: ending it")
                hanging[rank] = f"hung for {after} in {where}"
        return hanging

    def check_training(self, ranks: Iterable[int], snapshot: Snapshot) -> None:
        """Announce the ranks that have become late, and training that stands still or goes on.

        Plain lines stop while nothing changes: a run that hangs must not look like one that has ended.
        """
        for rank in self._last_heard.newly_late(ranks):
            self._event(f"nothing heard of {self._title(rank)} for {LATE_S:g} s")
        done = (snapshot.learner.env_steps, snapshot.produced, snapshot.learner.updates)
        if done != self._done:
            if self._stalled:
                self._event("training goes on")
            now = time.monotonic()
            self.worked_s += min(now - self._done_s, PAUSE_S)
            self._done, self._done_s, self._stalled, self.stuck = done, now, False, None
        elif not self._stalled and time.monotonic() - self._done_s > STALLED_S:
            self._stalled = True
            self._event(f"no environment step and no update for {STALLED_S:g} s")

    def check_memory(self, roles: Iterable[RoleStatus]) -> None:
        """Announce actors and examiners whose memory grows steadily; other processes may fill a replay."""
        if time.monotonic() < self._weigh_s:
            return
        self._weigh_s = time.monotonic() + WEIGH_EVERY_S
        for role in roles:
            if role.memory and set(self._plan.processes[role.rank].roles) <= {"actor", EXAMINER}:
                weights = self._weights.setdefault(role.rank, [])
                if weights and role.memory <= weights[-1]:
                    weights.clear()
                weights.append(role.memory)
                if len(weights) >= GROWING and role.memory > 1.25 * weights[0]:
                    since = duration(WEIGH_EVERY_S * (len(weights) - 1))
                    self._event(
                        f"the memory of {self._title(role.rank)} grows steadily: {memory(weights[0])} "
                        f"{since} ago, {memory(role.memory)} now; does its environment keep what is over?"
                    )
                    weights.clear()

    def check_start(self, missing: Iterable[int]) -> None:
        """Announce the ranks that all others wait for, if they take long to start."""
        if time.monotonic() - self._began > SLOW_START_S:
            self._once("start", f"not ready yet after {SLOW_START_S:g} s: {self._plan.titles(missing)}")

    def check_first_step(self, trained_s: float) -> None:
        """Announce the start-up time; the first step was ``trained_s`` ago, 0 before it."""
        if trained_s:
            start_up_s = time.monotonic() - BEGAN_S - trained_s
            self._once("first step", f"first environment step {start_up_s:.2f} s after the command began")

    def check_servers(self, suspended: Mapping[str, int]) -> None:
        """Announce fork servers that are suspended, with their process ids."""
        for title in suspended.keys() - self._suspended_servers:
            pid = suspended[title]
            self._event(
                f"{title} (process {pid}) is stopped: it starts no worker, and does not say how one ends; "
                f"kill -CONT {pid} lets it go on"
            )
        self._suspended_servers = set(suspended)

    def check_waiting(self, waits_for: Receiver | None) -> None:
        """Announce a role that holds actors back."""
        if waits_for is not None:
            why = "which claims its fragments too slowly or not at all"
            self._once(waits_for, f"actors wait for {waits_for}, {why}")

    def check_remarks(self, remarks: Mapping[str, str]) -> None:
        """Announce the actors' remarks about their environments, once for each subject."""
        for subject, remark in remarks.items():
            self._once(("remark", subject), remark)

    def check_evaluation(self, cut_off: str | None) -> None:
        """Announce, once, that a limit cut off an evaluation during training."""
        if cut_off is not None:
            self._once(
                "cut off",
                f"an evaluation was cut off after {cut_off}: it is neither the best nor ends the run "
                "(experiment.evaluation.max_s and episodes)",
            )

    def check_film(self, failure: str | None) -> None:
        """Announce, once, that an evaluation could not be filmed; the examiner's log has each failure."""
        if failure is not None:
            self._once("film", f"an evaluation could not be filmed, and the run goes on: {failure}")

    def lose_output(self, rank: int, cause: OSError) -> None:
        """Announce, once a rank, that the root cannot keep the output of a worker on another host."""
        self._once(("output", rank), f"what {self._title(rank)} writes to its log is lost: {cause}")

    def _once(self, of: object, text: str) -> None:
        """Announce a text, unless there was one on the same subject before."""
        if of not in self._announced:
            self._announced.add(of)
            self._event(text)

    def _title(self, rank: int) -> str:
        return self._plan.processes[rank].title


class LastHeard:
    """Remembers each rank's last sign of life, its longest silence, and whether it was reported as late."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._last_seen = dict.fromkeys(ranks, time.monotonic())
        self._counted_from = dict(self._last_seen)
        self._longest_s = dict.fromkeys(self._last_seen, 0.0)
        self._late: set[int] = set()

    def begin(self, rank: int) -> None:
        """Restart the silence of a rank at 0."""
        self._last_seen[rank] = self._counted_from[rank] = time.monotonic()
        self._late.discard(rank)

    def is_broken(self, rank: int, after_s: float) -> bool:
        """Note a sign of life from a rank; return whether the rank had been reported as late.

        Args:
            after_s: silence by the rank's own clock, since the root may have been suspended.
        """
        late = rank in self._late
        self._longest_s[rank] = max(self._longest_s[rank], min(after_s, self.of(rank)[0]))
        self.begin(rank)
        return late

    def of(self, rank: int) -> tuple[float, float]:
        """Return the silence of a rank, and the longest silence that is usual for it, in seconds."""
        return time.monotonic() - self._counted_from[rank], SLOW * self._longest_s[rank]

    def newly_late(self, ranks: Iterable[int]) -> list[int]:
        """Find the ranks that are late now and were not reported before."""
        now = time.monotonic()
        late = [rank for rank in ranks if rank not in self._late and now - self._last_seen[rank] > LATE_S]
        self._late.update(late)
        return late

    def pause(self, rank: int) -> None:
        """Count the silence of a rank from now on: the rank, or the root, was suspended."""
        self._counted_from[rank] = time.monotonic()


class Rejections:
    """Adds up the frames that roles, the control channel and the root's own endpoint reject."""

    def __init__(
        self,
        overview: Overview,
        control: ControlServer,
        endpoint: RootEndpoint,
        event: Callable[[str], None],
    ) -> None:
        self._overview = overview
        self._control = control
        self._endpoint = endpoint
        self._event = event
        self._reported: set[str] = set()

    @property
    def total(self) -> int:
        """Frames rejected so far."""
        return sum(count for _, count, _ in self._all())

    def report(self) -> None:
        """Announce each role's first rejection; the summary counts the rest."""
        for whom, count, why in self._all():
            if whom not in self._reported:
                self._reported.add(whom)
                self._event(f"{whom} refused {count} frame{'s' if count > 1 else ''} (such as: {why})")

    def _all(self) -> list[tuple[str, int, str]]:
        rejections = self._overview.rejections()
        if self._control.rejected:
            rejections.append(("the control channel", self._control.rejected, self._control.last_rejection))
        count, why = self._endpoint.rejected
        if count:
            rejections.append(("the root", count, why))
        return rejections
