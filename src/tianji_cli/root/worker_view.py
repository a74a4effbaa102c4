"""What the root knows of each worker, and how its roles are shown and summed up."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tianji_cli.plan.plan import Plan
from tianji_cli.root.work import MOST_MARKS
from tianji_cli.telemetry.snapshot import RoleStatus, RoleSummary
from tianji_cli.wire.messages import Report


class WorkerView:
    """What the root knows of one rank.

    Attributes:
        report: its last one.
        pid: of its process; None while it has none.
        restarts: so far.
        state: one or two words.
    """

    def __init__(self) -> None:
        self.report: Report | None = None
        self.pid: int | None = None
        self.restarts = 0
        self.state = "planned"
        self._marks: deque[tuple[float, float, Sequence[float]]] = deque(maxlen=MOST_MARKS)

    def update(self, report: Report) -> None:
        """Take a newer report."""
        last, self.report = self.report, report
        if last is None or last.incarnation != report.incarnation:
            self._marks.clear()
            self._marks.append((-math.inf, 0.0, [0.0] * len(report.busy_s)))

    def busy(self, now_s: float, since_s: float) -> list[float] | None:
        """Say which share of the time each of its roles has worked; None if that is unknown, or it has ended.

        Args:
            now_s: seconds on any clock, later with each call.
            since_s: from when on, on the same clock; later with each call, too.
        """
        if self.report is None or self.pid is None:
            return None
        self._marks.append((now_s, self.report.running_s, self.report.busy_s))
        while len(self._marks) > 2 and self._marks[1][0] <= since_s:
            self._marks.popleft()
        (_, running_then_s, then), (_, running_s, now) = self._marks[0], self._marks[-1]
        interval_s = running_s - running_then_s
        if interval_s <= 0:
            return None
        return [min(1.0, (after - before) / interval_s) for after, before in zip(now, then, strict=True)]


def role_states(
    plan: Plan, views: Mapping[int, WorkerView], now_s: float, since_s: float
) -> tuple[RoleStatus, ...]:
    """Say how every role of a job is doing.

    Args:
        plan: the processes of the job.
        views: what is known of each.
        now_s: seconds on any clock, later with each call.
        since_s: from when on it counts how busy they were: as for the bottleneck, or the two contradict.
    """
    return tuple(_states(plan, views, now_s, since_s))


def _states(
    plan: Plan, views: Mapping[int, WorkerView], now_s: float, since_s: float
) -> Iterator[RoleStatus]:
    for process in plan.processes:
        view = views[process.rank]
        busy = view.busy(now_s, since_s)
        for i, role in enumerate(process.roles):
            yield RoleStatus(
                process.rank,
                role,
                process.group,
                process.host,
                view.pid,
                busy[i] if busy else None,
                view.restarts,
                view.state,
            )


def role_summaries(plan: Plan, views: Mapping[int, WorkerView]) -> tuple[RoleSummary, ...]:
    """Say how every role of a job did over the whole session."""
    return tuple(_summaries(plan, views))


def _summaries(plan: Plan, views: Mapping[int, WorkerView]) -> Iterator[RoleSummary]:
    for process in plan.processes:
        view = views[process.rank]
        for i, role in enumerate(process.roles):
            report = view.report
            busy = report.busy_s[i] / report.running_s if report and report.running_s else None
            yield RoleSummary(
                process.rank, role, process.group, process.host, process.cores, view.restarts, busy
            )


def extra_reports(
    plan: Plan, views: Mapping[int, WorkerView], names: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Say what roles of the user's own reported last, by name and rank.

    Messages that they refused are left out: those are counted with everybody's.

    Args:
        plan: the processes of the job.
        views: what is known of each.
        names: of the user's roles.
    """
    found = {}
    for process in plan.trainers:
        report = views[process.rank].report
        for name, said in zip(process.roles, report.roles if report else (), strict=False):
            if name in names:
                found[f"{name}-{process.rank}"] = {
                    key: value for key, value in said.items() if key != "rejected"
                }
    return found
