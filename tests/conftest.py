"""What all tests share: the rule that continuous integration skips nothing."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes, unless it is asked for by its mark."""
    if config.option.markexpr:
        return
    soak = [item for item in items if item.get_closest_marker("soak")]
    config.hook.pytest_deselected(items=soak)
    items[:] = [item for item in items if item not in soak]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which skipped tests fail the session; see ``pytest_sessionfinish``."""
    for report in _forbidden_skips(terminalreporter):
        terminalreporter.write_line(f"skipped where nothing may be: {report.nodeid}", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a session that skipped a test where TIANJI_NO_SKIPS is set."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and _forbidden_skips(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _forbidden_skips(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    return reporter.stats.get("skipped", []) if os.environ.get("TIANJI_NO_SKIPS") else []
