"""The lock of a sweep between two hosts of different names whose locks do not reach one another."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from beds.unavailable import BedUnavailableError, attempt, require_programs, require_root

NO_LOCKS = """
import os, random, sys, time
from pathlib import Path

from tianji_cli.runs.sweep import locks

def none(_descriptor, _operation):
    raise OSError("no locks")

place = Path(sys.argv[1])
lock = locks.SharedLock(place / "it")
"""
OWNER = """
lock.acquire()
print((place / "it.lock").read_text(), flush=True)
sys.stdin.read()
"""
IMPATIENT = """
def wait(seconds):
    if seconds != locks.SETTLE_S:
        print("waits", flush=True)
        os._exit(0)
locks.time.sleep = wait
"""
ONE_OF_MANY = """
locks.fcntl.flock = none
locks.GRACE_S, locks.SETTLE_S, locks.MOST_S = 4, 2.0, 0.05
# As slow as a network may be: what was seen is no longer so when it is acted on.
replace, rename, unlink, drawn = os.replace, os.rename, os.unlink, random.Random(sys.argv[2])

def late(does):
    def do(*words, **options):
        time.sleep(drawn.uniform(0.0, 0.3))
        does(*words, **options)
    return do

print("ready", flush=True)
sys.stdin.readline()
os.replace, os.rename = late(replace), late(rename)
lock.acquire()
with (place / "turns").open("ab", buffering=0) as turns:
    turns.write(b"in ")
    time.sleep(0.4)
    turns.write(b"out ")
lock.release()
"""


@contextmanager
def on(host: str, code: str, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run a script on a host of that name; one that has not ended is killed."""
    python = [sys.executable, "-c", NO_LOCKS + code, *map(str, words)]
    command = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host, *python]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture(autouse=True)
def hosts() -> None:
    try:
        require_root("host names")
        require_programs(("unshare", "hostname"), "util-linux hostname")
        attempt("unshare", "--uts", "true")
    except BedUnavailableError as error:
        pytest.skip(str(error))


def test_a_killed_owner_is_waited_for_on_another_host_and_on_its_own_is_not(tmp_path: Path) -> None:
    with on("first", OWNER, tmp_path) as owner:
        signature = said(owner)
    assert signature.startswith("first-")
    with on("second", IMPATIENT + OWNER, tmp_path) as other:
        assert said(other) == "waits"
    assert (tmp_path / "it.lock").read_text() == signature
    with on("first", IMPATIENT + OWNER, tmp_path) as heir:
        assert said(heir).startswith("first-")
    with on("second", "locks.GRACE_S = 0\n" + OWNER, tmp_path) as other:
        assert said(other).startswith("second-")


def test_of_all_who_find_an_owner_dead_one_at_a_time_goes_on(tmp_path: Path) -> None:
    (tmp_path / "it.lock").write_text("third-12345678 0123456789abcdef")
    with (
        on("first", ONE_OF_MANY, tmp_path, "1") as one,
        on("first", ONE_OF_MANY, tmp_path, "2") as two,
        on("second", ONE_OF_MANY, tmp_path, "3") as three,
        on("second", ONE_OF_MANY, tmp_path, "4") as four,
    ):
        everyone = (one, two, three, four)
        assert [said(process) for process in everyone] == ["ready"] * 4
        for process in everyone:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        assert [process.wait(120) for process in everyone] == [0] * 4
    assert (tmp_path / "turns").read_text() == "in out " * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it.here", "turns"]
