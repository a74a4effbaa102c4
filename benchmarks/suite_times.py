"""Measures the time of each test in a test run: wall seconds, and seconds of work of a core.

    PYTHONPATH=benchmarks pytest -p suite_times --times times.jsonl
    python benchmarks/suite_times.py times.jsonl

Work of a child process counts, and work of its own children once it has waited for them. The time of a test's
fixtures counts as the test's.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

DEPTH: Final = 3
"""Number of a path's parts that name a line of the table."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, help="file for the seconds of each test, a line of JSON each")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Time a test with its fixtures."""
    began, worked = time.monotonic(), _worked_s()
    result = yield
    row = {
        "test": item.nodeid,
        "wall_s": round(time.monotonic() - began, 3),
        "cpu_s": round(_worked_s() - worked, 3),
    }
    with item.config.getoption("--times").open("a") as file:
        file.write(json.dumps(row) + "\n")
    return result


def _worked_s() -> float:
    """CPU seconds of this process, of its children, and of processes that these have waited for."""
    children = psutil.Process().children()
    return sum(sum(of.cpu_times()[:4]) for of in (psutil.Process(), *children) if of.is_running())


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Sum up the times by directory, or by file if its path is short."""
    parts = defaultdict(list)
    for row in rows:
        parts["/".join(Path(row["test"].partition("::")[0]).parts[:DEPTH])].append(row)
    yield f"{'part':40} {'tests':>6} {'wall':>8} {'at work':>8}"
    spent = {
        part: (len(of), sum(one["wall_s"] for one in of), sum(one["cpu_s"] for one in of))
        for part, of in parts.items()
    }
    spent["all"] = tuple(map(sum, zip(*spent.values(), strict=True)))
    for part, (tests, wall_s, cpu_s) in sorted(spent.items(), key=lambda item: -item[1][1]):
        yield f"{part:40} {tests:6} {wall_s:6.0f} s {cpu_s:6.0f} s"


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text().splitlines()
    print("\n".join(table([json.loads(line) for line in lines])))
