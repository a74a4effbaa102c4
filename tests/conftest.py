"""Fixtures of all tests: commands, a small disk, a quick config, repeatable examples, skips that fail."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w
import torch
from cli.quick import CONFIG
from cli.sessions import kill_session
from cli.warm import Tianji, WarmChildren, WarmCommands
from hypothesis import settings

# Every run tries the same examples, and a busy machine may take its time over each.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

CLONE_NEWNS = 0x20000
NO_GPU = "torch finds no CUDA device on this machine"


@pytest.fixture(scope="session")
def warm_commands() -> Iterator[WarmCommands]:
    """The process that begins commands without their imports."""
    with WarmCommands() as commands:
        yield commands


@pytest.fixture
def warm_children(warm_commands: WarmCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that this process starts by `tianji_cli.launch.children` begin with everything imported."""
    monkeypatch.setattr("tianji_cli.launch.children.subprocess", WarmChildren(warm_commands))


@pytest.fixture
def tianji(warm_commands: WarmCommands, tmp_path: Path) -> Tianji:
    """Runs a command to its end, which has to be a good one."""

    def run(*arguments: str) -> None:
        with (tmp_path / "said").open("wb") as said:
            command = warm_commands.begin(arguments, said.fileno(), said.fileno(), tmp_path, os.environ)
        try:
            assert command.wait(200) == 0, (tmp_path / "said").read_text()
        finally:
            kill_session(command.pid)

    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this machine lets nobody mount: {mounted.stderr.strip()}")
    # Out of the tree at once, so that no crash leaves a mount behind; it lives while the descriptor does.
    descriptor = os.open(disk, os.O_RDONLY | os.O_DIRECTORY)
    subprocess.run(["umount", "--lazy", str(disk)], check=True)
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A config that is trained in seconds."""
    path = tmp_path / "quick.toml"
    path.write_text(tomli_w.dumps(CONFIG))
    return str(path)


def pytest_configure() -> None:
    """Have commands under test heed SIGINT, as a shell's background commands do not, and nohup's SIGHUP."""
    if "PYTEST_XDIST_WORKER" in os.environ and os.geteuid() == 0:
        _have_own_shared_memory()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; leave out what takes minutes, unless it is asked for."""
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason=NO_GPU))
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


def _have_own_shared_memory() -> None:
    """Mount a /dev/shm that only this worker and its children see: tests look at what is left behind there.

    Where a container keeps root from it, workers may find one another's.
    """
    if ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0:
        apart = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, check=False)
        if apart.returncode == 0:
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True, check=False)


def _forbidden_skips(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    if not os.environ.get("TIANJI_NO_SKIPS"):
        return []
    return [report for report in reporter.stats.get("skipped", []) if NO_GPU not in str(report.longrepr)]
