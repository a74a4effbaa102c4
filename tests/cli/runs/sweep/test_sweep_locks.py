"""The lock that those share who take part in a sweep: from whom it is taken, and when."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tianji_cli.runs.sweep import locks
from tianji_cli.runs.sweep.locks import SharedLock

OWNER = """
import sys
from pathlib import Path

from tianji_cli.runs.sweep.locks import SharedLock

SharedLock(Path(sys.argv[1])).acquire()
print("here", flush=True)
sys.stdin.read()
"""


class WaitedError(Exception):
    """It is not free."""


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise instead of waiting, but for others who may take over what is a dead owner's."""

    def refuse(seconds: float) -> None:
        if seconds != locks.SETTLE_S:
            raise WaitedError

    monkeypatch.setattr("time.sleep", refuse)


@pytest.mark.usefixtures("at_once")
def test_it_is_taken_from_a_killed_process_of_this_machine_at_once_and_from_a_living_one_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "it"
    words = (sys.executable, "-c", OWNER, str(path))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"here\n"
        with pytest.raises(WaitedError):
            SharedLock(path).acquire()
        owner.kill()
        owner.wait()
    assert (tmp_path / "it.lock").exists()
    lock = SharedLock(path)
    lock.acquire()
    with pytest.raises(WaitedError):
        SharedLock(path).acquire()
    lock.release()
    assert not (tmp_path / "it.lock").exists()
    SharedLock(path).acquire()


@pytest.mark.usefixtures("at_once")
def test_one_that_has_lost_it_does_not_release_that_of_the_next(tmp_path: Path) -> None:
    asleep, another = SharedLock(tmp_path / "it"), f"{locks.this_machine()}-2 0123"
    asleep.acquire()
    (tmp_path / "it.lock").write_text(another)
    asleep.release()
    assert (tmp_path / "it.lock").read_text() == another


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("owner", ["another-12345678", ""])
def test_what_may_be_another_machines_is_waited_for(tmp_path: Path, owner: str) -> None:
    (tmp_path / "it.lock").write_text(owner)
    with pytest.raises(WaitedError):
        SharedLock(tmp_path / "it").acquire()


@pytest.mark.usefixtures("at_once")
def test_a_file_that_the_disk_has_no_room_to_sign_is_a_lock_all_the_same(tmp_path: Path) -> None:
    lock, before = SharedLock(tmp_path / "it"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        lock.acquire()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "it.lock").read_bytes() == b""
    with pytest.raises(WaitedError):
        SharedLock(tmp_path / "it").acquire()
    lock.release()
    SharedLock(tmp_path / "it").acquire()


@pytest.mark.usefixtures("at_once")
def test_one_that_was_held_up_while_it_took_over_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, replace = [0.0], Path.replace

    def late(path: Path, target: Path) -> Path:
        now_s[0] += locks.SETTLE_S
        return replace(path, target)

    (tmp_path / "it.lock").write_text(f"{locks.this_machine()} 0123")
    monkeypatch.setattr(locks.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(Path, "replace", late)
    with pytest.raises(WaitedError):
        SharedLock(tmp_path / "it").acquire()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it.here", "it.lock"]


@pytest.mark.usefixtures("at_once")
def test_it_is_waited_for_where_a_file_that_is_there_may_not_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sshfs does of a file that is there, since SFTP has no word for that."""
    make = os.open

    def not_permitted(path: Path, flags: int, *mode: int, **options: int) -> int:
        try:
            return make(path, flags, *mode, **options)
        except FileExistsError as cause:
            raise PermissionError(errno.EPERM, "Operation not permitted") from cause

    monkeypatch.setattr("os.open", not_permitted)
    (tmp_path / "it.lock").write_text("another-12345678 0123")
    with pytest.raises(WaitedError):
        SharedLock(tmp_path / "it").acquire()


def test_without_locks_of_the_file_system_the_file_alone_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    def none(_descriptor: int, _operation: int) -> None:
        raise OSError("no locks")

    monkeypatch.setattr(locks.fcntl, "flock", none)
    first, second = (SharedLock(tmp_path / "it") for _ in range(2))
    first.acquire()
    with pytest.raises(WaitedError):
        second.acquire()
    first.release()
    second.acquire()
    second.release()
