"""What the root knows of each worker, and how its roles are shown and summed up."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tianji_cli.cluster.messages import Report
from tianji_cli.cluster.plan import Plan
from tianji_cli.telemetry.snapshot import RoleStatus, RoleSummary


@dataclass
class WorkerView:
    """What the root knows of one rank.

    Attributes:
        report: its last one.
        pid: of its process; None while it has none.
        restarts: so far.
        state: one or two words.
        busy: share of the last interval each of its roles worked.
    """

    report: Report | None = None
    pid: int | None = None
    restarts: int = 0
    state: str = "planned"
    busy: list[float | None] = field(default_factory=list)

    def update(self, report: Report) -> None:
        """Take a newer report."""
        last = self.report
        if last is None or last.incarnation != report.incarnation:
            interval, before = report.running_s, [0.0] * len(report.busy_s)
        else:
            interval, before = report.running_s - last.running_s, last.busy_s
        if interval > 0:
            self.busy = [
                min(1.0, (now - then) / interval) for now, then in zip(report.busy_s, before, strict=True)
            ]
        self.report = report


def role_states(plan: Plan, views: Mapping[int, WorkerView]) -> tuple[RoleStatus, ...]:
    """Say how every role of a job is doing."""
    return tuple(_states(plan, views))


def _states(plan: Plan, views: Mapping[int, WorkerView]) -> Iterator[RoleStatus]:
    for process in plan.processes:
        view = views[process.rank]
        for i, role in enumerate(process.roles):
            yield RoleStatus(
                process.rank,
                role,
                process.group,
                process.host,
                view.pid,
                view.busy[i] if view.busy else None,
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
