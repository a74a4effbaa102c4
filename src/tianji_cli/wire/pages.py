"""Production pages on their way from another host to the root, whose clock is another."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tianji_cli.files.counters import Production, ProductionFile
from tianji_cli.wire.messages import PageReport


def report_pages(file: ProductionFile, actors: Iterable[int]) -> list[PageReport]:
    """Read the pages of some actors for the root."""
    now_ns = time.monotonic_ns()
    return [
        PageReport(
            actor=page.actor,
            incarnation=page.incarnation,
            first_step_age_s=(now_ns - page.first_step_ns) / 1e9 if page.first_step_ns else None,
            produced=page.produced,
            unfinished=page.unfinished,
            abandoned=page.abandoned,
            pushed=page.pushed,
        )
        for page in map(file.read, actors)
    ]


def read_report(report: PageReport) -> Production:
    """See a reported page as if it were on this host."""
    age_s = report.first_step_age_s
    return Production(
        actor=report.actor,
        incarnation=report.incarnation,
        first_step_ns=0 if age_s is None else time.monotonic_ns() - int(age_s * 1e9),
        produced=report.produced,
        unfinished=report.unfinished,
        abandoned=report.abandoned,
        pushed=report.pushed,
    )
