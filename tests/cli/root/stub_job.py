"""A job for observers whose processes, clock and messages are a test's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tianji_cli.plan.graph import EXAMINER
from tianji_cli.plan.plan import Plan
from tianji_cli.root.running_job import Phase, RunningJob


def stub_job(plan: Plan, events: list[str], **parts: Any) -> Any:
    """Make a training job that has told the user of ``events``; ``parts`` are what the observer needs."""
    shown: set[object] = set()
    job: Any = SimpleNamespace(
        plan=plan,
        event=events.append,
        phase=Phase.TRAINING,
        outcome=None,
        bound=False,
        stuck=None,
        worked_s=0.0,
        lost_ranks=set(),
        vacant=set(),
        parked=set(),
        examiners={process.rank for process in plan.carrying(EXAMINER)},
        title=lambda rank: plan.processes[rank].title,
        _shown=shown,
    )
    job.show_once = lambda subject, text: RunningJob.show_once(job, subject, text)
    vars(job).update(parts)
    return job
