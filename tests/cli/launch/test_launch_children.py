"""A child process runs what its parent would, and ends with its group, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select

import pytest
from cli.sessions import PATIENCE_S

from tianji_cli.errors import ProcessExit
from tianji_cli.launch.children import (
    Child,
    end_children,
    process_state,
    python_command,
    run_child,
    supervised,
)

FAMILY = """
import signal, subprocess, sys
for ignored in sys.argv[2:]:
    signal.signal(getattr(signal, ignored), signal.SIG_IGN)
family = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
with open(sys.argv[1], "w") as fifo:
    fifo.write(str(family.pid))
"""
"""A process that starts another and tells its number; whatever it ignores, the other does, too."""


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGUSR1 interrupts the main thread, as a Ctrl-C does."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyError("somebody interrupts")

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@contextmanager
def soon_over(pid: int) -> Iterator[None]:
    """Wait afterwards until it has ended."""
    with os.fdopen(os.pidfd_open(pid), "rb") as watched:
        yield
        assert select([watched], [], [], PATIENCE_S)[0]


def test_a_child_that_ended_says_how_and_what_it_wrote() -> None:
    program = "import sys; print('figures'); sys.stderr.write('a\\n' * 9 + 'why\\n'); sys.exit(3)"
    ended = run_child([sys.executable, "-c", program], patience_s=PATIENCE_S, limit_s=PATIENCE_S)
    assert ended == (ProcessExit(3, last_words="a\na\na\na\nwhy"), "figures\n")


def test_a_child_that_says_nothing_has_its_status_for_last_words() -> None:
    ended = run_child([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], patience_s=PATIENCE_S)
    assert ended == (ProcessExit(-9, last_words="exit status -9"), "")
    assert str(ended[0]) == "was killed by SIGKILL"


def test_more_output_than_a_pipe_holds_is_read() -> None:
    program = "import sys; sys.stdout.write('x' * 1_000_000); sys.stderr.write('y' * 1_000_000)"
    ended, output = run_child([sys.executable, "-c", program], patience_s=PATIENCE_S)
    assert len(output) == 1_000_000
    assert set(ended.last_words) == {"y"}


def test_a_child_that_takes_too_long_is_ended() -> None:
    with pytest.raises(TimeoutError, match=r"it takes longer than 0\.1 s"):
        run_child([sys.executable, "-c", "import signal; signal.pause()"], patience_s=PATIENCE_S, limit_s=0.1)


@pytest.mark.usefixtures("interruptible")
def test_a_child_that_ignores_sigterm_is_killed_with_all_of_its_group(fifo: Path) -> None:
    program = f"{FAMILY}\nimport os; os.kill(os.getppid(), signal.SIGUSR1); signal.pause()"
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(KeyError, match="somebody interrupts"):
        run_child([sys.executable, "-c", program, str(fifo), "SIGTERM"], patience_s=0.1)
    pid = int(os.read(reader, 100))
    os.close(reader)
    with suppress(ProcessLookupError), soon_over(pid):  # It may be a zombie yet.
        pass


def test_whatever_is_raised_meanwhile_ends_the_child_in_good_order(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    program = f"""
import pathlib, signal, sys
def save(*_):
    pathlib.Path({str(saved)!r}).write_text("all of it")
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    signal.pause()
"""
    child = Child([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.process.stdout is not None
    assert child.process.stdout.readline() == b"ready\n"
    with pytest.raises(KeyError, match="somebody interrupts"), supervised([child], PATIENCE_S):
        raise KeyError("somebody interrupts")
    assert saved.read_text() == "all of it"


@pytest.mark.usefixtures("interruptible")
def test_a_second_interruption_has_no_patience_left() -> None:
    program = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.kill(os.getppid(), signal.SIGUSR1)
signal.sigwait({signal.SIGTERM})
os.kill(os.getppid(), signal.SIGUSR1)
signal.pause()
"""
    with pytest.raises(KeyError, match="somebody interrupts") as raised:
        run_child([sys.executable, "-c", program], patience_s=10 * PATIENCE_S)
    assert isinstance(raised.value.__context__, KeyError)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_that_another_thread_gets_ends_the_wait(fifo: Path) -> None:
    """As does one that comes just before the wait begins: the wait itself hears of neither."""
    program = "import signal, sys; open(sys.argv[1], 'w').write('here'); signal.pause()"

    def interrupt() -> None:
        assert fifo.read_text() == "here"
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyError, match="somebody interrupts"):
        run_child([sys.executable, "-c", program, str(fifo)], patience_s=PATIENCE_S)
    thread.join()


def test_a_signal_that_raises_nothing_does_not_end_the_wait() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: heard.append(number))
    program = "import os, signal, sys; os.kill(os.getppid(), signal.SIGUSR1); sys.exit(3)"
    try:
        ended, _ = run_child([sys.executable, "-c", program], patience_s=PATIENCE_S, limit_s=PATIENCE_S)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (ended.status, heard) == (3, [signal.SIGUSR1])


def test_what_a_child_leaves_behind_ends_with_it(fifo: Path) -> None:
    child = Child([sys.executable, "-c", FAMILY, str(fifo)])
    with soon_over(int(fifo.read_text())):
        end_children([child], PATIENCE_S)
    assert child.process.returncode == 0


def test_a_child_that_has_ended_keeps_its_number_until_its_group_has_ended(fifo: Path) -> None:
    child = Child([sys.executable, "-c", FAMILY, str(fifo)])
    with soon_over(int(fifo.read_text())):
        assert child.wait().status == 0
        child.terminate()
        assert process_state(child.pid) == "Z"
        end_children([child], PATIENCE_S)
    assert process_state(child.pid) is None


def test_a_child_ends_when_its_parent_is_killed(fifo: Path) -> None:
    program = f"""
import sys
from tianji_cli.errors import ProcessExit
from tianji_cli.launch.children import run_child
child = "import os, signal; open({str(fifo)!r}, 'w').write(str(os.getpid())); signal.pause()"
run_child([sys.executable, "-c", child], patience_s=60)
"""
    parent = subprocess.Popen([sys.executable, "-c", program])
    with soon_over(int(fifo.read_text())):
        parent.kill()
        parent.wait()


def test_a_child_of_many_threads_ends_though_its_parent_is_killed_as_it_begins() -> None:
    program = """
import os, signal, sys, threading
from tianji_cli.errors import ProcessExit
from tianji_cli.launch.children import Child
for _ in range(8):
    threading.Thread(target=signal.pause, daemon=True).start()
child = Child([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False)
        assert ended.returncode == -signal.SIGKILL
        with suppress(ProcessLookupError), soon_over(int(ended.stdout)):  # It may be gone.
            pass


def test_a_program_that_is_not_there_is_an_error_of_the_system() -> None:
    with pytest.raises(FileNotFoundError, match="no_such_program"):
        Child(["no_such_program"])


def test_modules_are_found_where_the_parent_finds_them_and_not_where_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "else, where"
    for directory in (here, elsewhere):
        directory.mkdir()
    for name in ("queue", "random"):
        (here / f"{name}.py").write_text("raise SystemExit('no module of Python')")
    (elsewhere / "mine.py").write_text("import sys, queue; print(*sys.argv[1:], __name__, queue.Queue)")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(elsewhere)
    ended, output = run_child(python_command("mine", "a word", ""), patience_s=PATIENCE_S)
    assert (ended.status, output) == (0, "a word  __main__ <class 'queue.Queue'>\n"), ended.last_words


def test_the_state_of_a_process_is_known_while_there_is_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert process_state(process.pid) == "T"
        process.kill()
    assert process_state(process.pid) is None
