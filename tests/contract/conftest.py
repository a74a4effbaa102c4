"""Runs the contract of `mpi` under mpiexec, where every rank is a process of one MPI job.

A session outside starts one inside with the same tests and takes its reports for its own, one by one.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REPORTS = "TIANJI_MPI_REPORTS"
"""Set inside: names the pipe to the session outside."""
STATIONS = "TIANJI_STATIONS"
PEERS, SOAK_PEERS = 16, 32
LOOK_S = 0.2
ENDED = "the session under mpiexec has ended"


def needs_mpiexec(item: pytest.Item) -> bool:
    """Say whether a test is of the contract of `mpi`."""
    return getattr(getattr(item, "cls", None), "engine", None) == "mpi"


class Inside:
    """The session under mpiexec."""

    def __init__(self, session: pytest.Session) -> None:
        assert "PYTEST_XDIST_WORKER" not in os.environ, "MPI's tests are run in order: by pytest without -n"
        folder = Path(tempfile.mkdtemp(prefix="tianji-mpi-"))
        self._folder = folder
        os.mkfifo(folder / "reports")
        # Opened for writing, too: there is no end of file before the other side comes.
        self._reports = os.open(folder / "reports", os.O_RDWR)
        self._unread = b""
        self._config = session.config
        items = [item for item in session.items if needs_mpiexec(item)]
        peers = SOAK_PEERS if any(item.get_closest_marker("soak") for item in items) else PEERS
        beside = Path(sys.executable).with_name("mpiexec")
        options = ["-p", "no:cacheprovider", "-m", session.config.option.markexpr, "--override-ini=addopts="]
        self._output = (folder / "output").open("w+b")
        self._process = subprocess.Popen(
            [str(beside) if beside.exists() else shutil.which("mpiexec") or "mpiexec"]
            + ["-n", "1", sys.executable, "-m", "pytest", *options, "--import-mode=importlib"]
            + [item.nodeid for item in items]
            + [":", "-n", str(peers), sys.executable, "-m", "tianji_transports.testing.stations"],
            cwd=session.config.rootpath,
            env={**os.environ, REPORTS: str(folder / "reports"), STATIONS: f"{peers}:{folder / 'stations'}"},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def reports(self, nodeid: str) -> Iterator[pytest.TestReport]:
        """Give the reports of one test as they come; the tests come in the order of this session."""
        hook = self._config.hook
        while True:
            while b"\n" not in self._unread:
                self._read()
            line, _, self._unread = self._unread.partition(b"\n")
            report = hook.pytest_report_from_serializable(config=self._config, data=json.loads(line))
            assert report.nodeid == nodeid, f"{report.nodeid} was run for {nodeid}"
            yield report
            if report.when == "teardown":
                return

    def _read(self) -> None:
        ended = self._process.poll() is not None
        if select.select([self._reports], (), (), 0 if ended else LOOK_S)[0]:
            self._unread += os.read(self._reports, 1 << 16)
        elif ended:
            pytest.fail(f"{ENDED} with status {self._process.returncode}:\n{self.output()}", pytrace=False)

    def output(self) -> str:
        """The output inside the block."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def close(self) -> int:
        """Wait for its end, or end it; its status."""
        try:
            status = self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            status = self._process.wait()
        os.close(self._reports)
        self._output.close()
        shutil.rmtree(self._folder)
        return status


inside_of = pytest.StashKey[Inside]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Take what was reported inside for what happened here."""
    if not needs_mpiexec(item) or REPORTS in os.environ:
        return None
    stash = item.session.stash
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    try:
        if inside_of not in stash:
            stash[inside_of] = Inside(item.session)
        for report in stash[inside_of].reports(item.nodeid):
            item.ihook.pytest_runtest_logreport(report=report)
    except (pytest.fail.Exception, AssertionError) as error:
        keywords = dict.fromkeys(item.keywords, 1)
        report = pytest.TestReport(item.nodeid, item.location, keywords, "failed", str(error), "call")
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Inside, report to the session outside."""
    path = os.environ.get(REPORTS)
    if path:
        data = _config[0].hook.pytest_report_to_serializable(config=_config[0], report=report)
        with open(path, "ab", buffering=0) as pipe:
            pipe.write(json.dumps(data).encode() + b"\n")


_config: list[pytest.Config] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    """Inside, keep what turns reports into bytes, and wait for the peers."""
    if REPORTS in os.environ:
        from tianji_transports.testing.stations import invite  # noqa: PLC0415 - needs MPI

        _config[:] = [session.config]
        invite()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Outside, see that the session inside ends well; inside, send the peers home."""
    inside = session.stash.get(inside_of, None)
    if inside is not None and inside.close() != 0 and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
    if REPORTS in os.environ:
        from tianji_transports.testing.stations import dismiss  # noqa: PLC0415

        dismiss()
