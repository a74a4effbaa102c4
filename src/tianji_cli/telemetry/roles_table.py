"""The table of roles in the live display: each of them where they fit, else each kind of role."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from tianji_cli.quantities import ranges, share
from tianji_cli.telemetry.snapshot import RoleStatus

MAX_ROLES: Final = 12
"""More roles than this are summed up even where there is room: nobody reads 64 lines a second."""

WIDE: Final = 100
"""Columns from which there is room for process ids."""


def roles_table(roles: Sequence[RoleStatus], width: int, lines: int) -> Table:
    """Show how busy the roles are.

    Args:
        roles: all roles of the job.
        width: columns of the terminal.
        lines: how many roles fit.
    """
    columns = ["role", "rank"]
    columns += ["group"] if len({role.group for role in roles} - {None}) > 1 else []
    columns += ["host"] if len({role.host for role in roles}) > 1 else []
    columns += ["pid"] if width >= WIDE else []
    columns += ["busy", "restarts", "state"]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="cyan", pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    for alike in _rows(roles, lines):
        cells = _cells(alike)
        table.add_row(*(cells[column] for column in columns))
    return table


def _rows(roles: Sequence[RoleStatus], lines: int) -> list[list[RoleStatus]]:
    """Sort roles into rows: one each if they fit, else one for each kind."""
    if len(roles) <= min(lines, MAX_ROLES):
        return [[role] for role in roles]
    return [
        [role for role in roles if role.role == kind] for kind in dict.fromkeys(role.role for role in roles)
    ]


def _cells(alike: Sequence[RoleStatus]) -> dict[str, str | Text]:
    states = Counter(role.state for role in alike)
    state = (
        ", ".join(f"{number} {state}" for state, number in states.items())
        if len(states) > 1
        else next(iter(states))
    )
    restarts = sum(role.restarts for role in alike)
    hosts = sorted({role.host for role in alike})
    pids = [role.pid for role in alike if role.pid is not None]
    return {
        "role": alike[0].role if len(alike) == 1 else f"{len(alike)} {alike[0].role}s",
        "rank": ranges(sorted({role.rank for role in alike})),
        "group": ranges(sorted({role.group for role in alike if role.group is not None})),
        "host": hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts",
        "pid": str(pids[0]) if len(alike) == 1 and pids else "",
        "busy": _busy([role.busy for role in alike if role.busy is not None]),
        "restarts": Text(str(restarts), style="yellow" if restarts else ""),
        "state": Text(state, style="" if set(states) == {"running"} else "yellow"),
    }


def _busy(shares: Sequence[float]) -> str:
    if not shares:
        return "-"
    if len(shares) == 1:
        return share(shares[0])
    return f"{100 * min(shares):.0f}-{share(max(shares))}, median {share(statistics.median(shares))}"
