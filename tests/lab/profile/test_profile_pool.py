"""A pool of probes asks several probes at once, names the one that fails, and leaves none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from select import select

import pytest
from cli.sessions import PATIENCE_S
from lab.profile.probing import COMMAND, PPO, SLOW, preparation, run, write_config

from tianji_lab.profile.probe.pool import ProbeFailed, ProbePool, start_probes
from tianji_lab.profile.probe.protocol import Acted, Average, Averaged, Prepared

FAKE = (sys.executable, str(Path(__file__).with_name("fake_probe.py")))


def pids(pool: ProbePool) -> list[int]:
    return [probe.child.pid for probe in pool._probes]


@contextmanager
def ending(*processes: int) -> Iterator[None]:
    """Wait afterwards until all of these have ended."""
    with ExitStack() as stack:
        watched = [stack.enter_context(os.fdopen(os.pidfd_open(pid), "rb")) for pid in processes]
        yield
        assert all(select([one], [], [], PATIENCE_S)[0] for one in watched)


def test_all_are_asked_at_once_and_each_gives_the_answer_to_its_own_step() -> None:
    average = Average(rank=0, size=2, store="", values=1, rounds=1)
    with start_probes(3, [*FAKE, "stutters"]) as pool:
        answers = pool.ask({2: average, 0: run("x")}, PATIENCE_S)
        assert answers == {2: Averaged(seconds=(0.25,)), 0: Acted(windows=())}
        prepare = preparation("actor", "some.toml", (), Path())
        again = pool.ask(dict.fromkeys(range(3), prepare), PATIENCE_S)
    assert [type(again[number]) for number in range(3)] == [Prepared] * 3


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("dies", r"probe 1 exited with status 3 when it had to run dies\n( .*\n){4}  out of luck$"),
        ("is killed", r"probe 1 was killed by SIGKILL when it had to run is killed$"),
        ("fails", r"probe 1 could not run fails: no such environment$"),
        ("chats", r"probe 1 had to run chats and answered 'Hello from .{100,} \.\.\.'"),
        ("misunderstands", r'probe 1 had to run misunderstands and answered .*"averaged"'),
    ],
)
def test_the_probe_that_failed_is_named_with_what_it_had_to_do(how: str, said: str) -> None:
    processes = []

    def ask_all() -> None:
        with start_probes(3, [*FAKE, "as asked"]) as pool:
            processes.extend(pids(pool))
            # The first one never answers, and nobody waits for it.
            pool.ask({0: run("is deaf"), 1: run(how), 2: run("fine")}, PATIENCE_S)

    with pytest.raises(ProbeFailed, match=said):
        ask_all()
    assert len(processes) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)


def test_who_did_not_answer_in_time_is_named() -> None:
    failure = pytest.raises(ProbeFailed, match=r"no answer within 1 s from probe 0, probe 1\n  thinking")
    with failure, start_probes(3, [*FAKE, "as asked"]) as pool:
        pool.ask({2: run("fine")}, PATIENCE_S)
        pool.ask({0: run("is deaf"), 1: run("is deaf"), 2: run("fine")}, 1.0)


def test_one_that_is_gone_before_it_is_asked_is_named() -> None:
    with start_probes(1, [sys.executable, "-c", "import sys; sys.exit('nothing to run')"]) as pool:
        pool._probes[0].child.wait()
        with pytest.raises(ProbeFailed, match=r"probe 0 exited with status 1 .*\n  nothing to run"):
            pool.ask({0: run("x")}, PATIENCE_S)


@pytest.mark.parametrize("how", ["fine", "is deaf"])
def test_whatever_is_raised_ends_all_of_them(how: str) -> None:
    processes = []

    def fail_in_the_middle() -> None:
        with start_probes(2, [*FAKE, how]) as pool:
            processes.extend(pids(pool))
            pool._send(pool._probes[0], run("x"))
            raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        fail_in_the_middle()
    assert processes
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)


def test_a_probe_finds_a_users_module_beside_its_config_and_none_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, theirs = tmp_path / "here", tmp_path / "theirs"
    for directory in (here, theirs):
        directory.mkdir()
        (directory / "queue.py").write_text("raise SystemExit('a queue of somebody else')")
    (theirs / "own_ones.py").write_text(SLOW)
    config = write_config(theirs / "own.toml", PPO, environment={"type": "own_ones:Slow", "id": None})
    monkeypatch.chdir(here)
    with start_probes(1) as pool:
        answers = pool.ask({0: preparation("actor", config, (), tmp_path)}, PATIENCE_S)
        assert isinstance(answers[0], Prepared)


def test_probes_have_time_to_end_what_they_have_started_once_all_is_done(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closes = f"sys.stdin.read(); time.sleep(1); pathlib.Path({str(closed)!r}).touch()"
    with start_probes(1, [sys.executable, "-c", f"import pathlib, sys, time; {closes}"]):
        pass
    assert closed.exists()


def test_what_a_probe_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = f"""
import subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
with open({str(fifo)!r}, "w") as fifo:
    fifo.write(str(left.pid))
"""
    with ExitStack() as stack, start_probes(1, [sys.executable, "-c", program]):
        stack.enter_context(ending(int(fifo.read_text())))


PARENT = """
import sys
from tianji_cli.signals import Interruption, raise_signals
from tianji_lab.profile.probe.pool import start_probes
from tianji_lab.profile.probe.protocol import STEP
raise_signals()
steps = [STEP.validate_json(line) for line in sys.argv[1].splitlines()]
try:
    with start_probes(2, sys.argv[2:]) as pool:
        for step in steps[:-1]:
            pool.ask({0: step, 1: step}, 100)
        print(*(probe.child.pid for probe in pool._probes), flush=True)
        pool.ask({0: steps[-1], 1: steps[-1]}, 1000)
except Interruption:
    sys.exit(130)
"""


@contextmanager
def someone_who_measures(
    *command: str, steps: list[str]
) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """Start a process with two probes, the last of whose steps never ends."""
    words = [sys.executable, "-c", PARENT, "\n".join(steps), *command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, process_group=0) as parent:
        assert parent.stdout is not None
        probes = [int(word) for word in parent.stdout.readline().split()]
        assert len(probes) == 2
        with ending(*probes):
            yield parent, probes


def test_a_ctrl_c_ends_probes_that_hear_nothing() -> None:
    steps = [run("fine").model_dump_json(), run("is deaf").model_dump_json()]
    with someone_who_measures(*FAKE, "as asked", steps=steps) as (parent, probes):
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.wait(PATIENCE_S) == 130
        assert not any(Path(f"/proc/{pid}").exists() for pid in probes)


def test_no_probe_outlives_a_parent_that_was_killed(tmp_path: Path) -> None:
    prepare = preparation("actor", write_config(tmp_path / "ppo.toml", PPO), (), tmp_path)
    steps = [prepare.model_dump_json(), run("actor", warm_s=1000.0).model_dump_json()]
    with someone_who_measures(*COMMAND, steps=steps) as (parent, _probes):
        parent.kill()
