"""Claims about `tianji bench`, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.sessions import PATIENCE_S, SHM, in_session, kill_session, stale_shared_memory, until

TIANJI = Path(sys.executable).with_name("tianji")
MPIEXEC = Path(sys.executable).with_name("mpiexec")
TESTS = Path(__file__).parents[2]
FOUR = ("shm", "zmq", "ucx", "mpi")
KEYS = {
    *("backend", "msg_kb", "actors", "sample_time_s", "messages", "collection_s", "msgs_per_s", "mb_per_s"),
    *("send_s", "receive_s", "predicted_s", "store", "p50_us", "p95_us", "p99_us", "cpu_s", "refused"),
    *("verified", "raw_msgs_per_s", "raw_ratio"),
}
ENDLESS = ["comm", "--backend", "shm", "--actors", "2", "--sample-time", "0.01", "--messages", "1000000"]
QUICK = ["--msg-kb", "4", "--messages", "300", "--repeats", "1"]


def backends(*names: str) -> list[str]:
    return [word for name in names for word in ("--backend", name)]


class Bench:
    """One command, in a session and a directory for shared memory names of its own."""

    def __init__(self, arguments: list[str], launcher: list[str]) -> None:
        self.process = subprocess.Popen(
            [*launcher, str(TIANJI), "bench", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )
        self.out = self.err = ""

    def end(self) -> Bench:
        self.out, self.err = self.process.communicate(timeout=PATIENCE_S)
        return self

    @property
    def status(self) -> int:
        return self.process.returncode

    @property
    def others(self) -> dict[int, str]:
        return {pid: title for pid, title in in_session(self.process.pid).items() if pid != self.process.pid}

    def partner(self, number: int) -> int:
        """Wait for a partner; its pid."""
        title = f"tianji: bench partner {number}"
        return int(until(lambda: [pid for pid, found in self.others.items() if found == title], title)[0])

    def measuring(self) -> None:
        """Wait until shared memory is in use."""
        until(lambda: set(SHM.iterdir()) - self.before, "shared memory")

    before: frozenset[Path] = frozenset()
    stale_before: frozenset[str] = frozenset()


Start = Callable[..., Bench]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Bench] = []

    def begin(*arguments: str, launcher: tuple[str, ...] = ()) -> Bench:
        before, stale_before = frozenset(SHM.iterdir()), frozenset(stale_shared_memory())
        bench = Bench(list(arguments), list(launcher))
        bench.before, bench.stale_before = before, stale_before
        started.append(bench)
        return bench

    yield begin
    for bench in started:
        kill_session(bench.process.pid)
        bench.process.communicate()


def assert_nothing_left(bench: Bench) -> None:
    until(lambda: not in_session(bench.process.pid), "the end of every process")
    assert stale_shared_memory() <= bench.stale_before


# -- what is measured ------------------------------------------------------------------------------------


def test_comm_measures_four_engines_and_writes_every_figure(start: Start, tmp_path: Path) -> None:
    bench = start(
        "comm", *backends(*FOUR), *QUICK, "--raw", "--json", "-", "--out", str(tmp_path / "o")
    ).end()
    assert bench.status == 0, bench.err
    rows = json.loads(bench.out)["rows"]
    assert [row["backend"] for row in rows if row["backend"] in FOUR] == list(FOUR)
    for row in rows:
        assert row.keys() >= KEYS
        assert row["verified"] is True
        assert row["raw_msgs_per_s"] > 0
        assert row["raw_ratio"] > 0
    assert {place.suffix for place in (tmp_path / "o").iterdir()} >= {".csv", ".json", ".png"}
    assert_nothing_left(bench)


@pytest.mark.parametrize("experiment", ["latency", "bandwidth", "weights"])
def test_the_other_experiments_measure_four_engines(start: Start, experiment: str) -> None:
    bench = start(
        experiment, *backends(*FOUR), "--msg-kb", "4", "--messages", "50", "--repeats", "1", "--json", "-"
    ).end()
    assert bench.status == 0, bench.err
    rows = json.loads(bench.out)["rows"]
    counts = [1, 4] if experiment == "weights" else [1]
    measured = [(row["backend"], row["actors"], row["verified"]) for row in rows]
    assert measured == [(name, actors, True) for actors in counts for name in FOUR]
    assert_nothing_left(bench)


def test_comm_measures_busy_actors_in_place_with_the_smallest_message(start: Start) -> None:
    options = ["--store", "inplace", "--work", "busy", "--actors", "2", "--sample-time", "0.0001"]
    small = ["--msg-kb", "0.03125", "--messages", "50", "--repeats", "1", "--json", "-"]
    bench = start("comm", "--backend", "shm", *options, *small).end()
    assert bench.status == 0, bench.err
    (row,) = json.loads(bench.out)["rows"]
    assert (row["store"], row["work"], row["actors"], row["msg_kb"]) == ("inplace", "busy", 2, 0.03125)


def test_figure_5b_prints_the_crossing(start: Start) -> None:
    options = ["--messages", "20", "--actors", "1", "--actors", "2", "--sample-time", "0.001"]
    bench = start("comm", "--figure", "5b", *options, "--backend", "shm", "--repeats", "1").end()
    assert bench.status == 0, bench.err
    assert "predicted s" in bench.out
    assert "the critical path moves from the actors to the buffer at" in bench.out


# -- what is damaged ---------------------------------------------------------------------------------------

DAMAGES = [
    *("FlipsShm", "FlipsMpi", "FlipsUcx", "FlipsBetween", "LosesZmq", "DoublesShm", "SwapsZmq"),
    *(
        pytest.param(one, marks=pytest.mark.soak)
        for one in ("FlipsZmq", "LosesShm", "DoublesZmq", "SwapsShm")
    ),
]


@pytest.mark.parametrize("engine", DAMAGES)
def test_a_damaged_message_leaves_no_figure(start: Start, engine: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    launcher = (str(MPIEXEC), "-n", "2") if engine.endswith("Mpi") else ()
    options = [*backends(f"cli.bench.damaging:{engine}"), *QUICK, "--json", str(figures)]
    bench = start("comm", *options, launcher=launcher).end()
    assert bench.status == 1
    assert "rank 1" in bench.err
    assert re.search(r"message 15 of rank 1|message 16 of rank 1|the last \d+ of rank 1", bench.err)
    assert "Traceback" not in bench.err
    assert bench.out == ""
    assert not figures.exists()
    assert_nothing_left(bench)


# -- who dies ----------------------------------------------------------------------------------------------


def test_a_killed_partner_ends_the_benchmark_by_name(start: Start) -> None:
    bench = start(*ENDLESS)
    partner = bench.partner(2)
    bench.measuring()
    os.kill(partner, signal.SIGKILL)
    bench.end()
    assert bench.status == 1
    assert "partner 2" in bench.err
    assert "SIGKILL" in bench.err
    assert bench.out == ""
    assert_nothing_left(bench)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_stop_signal_ends_everything(start: Start, number: signal.Signals) -> None:
    bench = start(*ENDLESS)
    bench.partner(2)
    bench.measuring()
    if number == signal.SIGINT:
        os.killpg(bench.process.pid, number)
    else:
        bench.process.send_signal(number)
    bench.end()
    assert bench.status == 130
    assert bench.out == ""
    assert_nothing_left(bench)


def test_partners_of_a_killed_root_end_and_doctor_cleans_up(start: Start) -> None:
    bench = start(*ENDLESS)
    bench.partner(2)
    bench.measuring()
    bench.process.kill()
    bench.end()
    until(lambda: not in_session(bench.process.pid), "the end of every partner")
    subprocess.run([str(TIANJI), "doctor"], capture_output=True, timeout=PATIENCE_S, check=False)
    assert_nothing_left(bench)


# -- launchers ---------------------------------------------------------------------------------------------


def test_under_a_launcher_every_other_rank_is_an_actor(start: Start) -> None:
    bench = start(
        "comm", *backends("ucx", "mpi"), *QUICK, "--json", "-", launcher=(str(MPIEXEC), "-n", "3")
    ).end()
    assert bench.status == 0, bench.err
    assert [row["actors"] for row in json.loads(bench.out)["rows"]] == [2, 2]


def test_under_a_launcher_too_many_actors_are_refused(start: Start) -> None:
    bench = start("comm", "--backend", "ucx", "--actors", "4", launcher=(str(MPIEXEC), "-n", "3")).end()
    assert bench.status == 2
    assert "mpiexec -n 5" in bench.err


# -- mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--backend", "zqm"], "zmq"),
        (["--backend", "inproc"], "inside a process"),
        (["--figure", "5d"], "mpiexec"),
        (["--sample-time", "inf"], "finite"),
        (["--msg-kb", "0"], "KB"),
        (["--msg-kb", "0.05"], "8"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_measured(
    start: Start, options: list[str], said: str
) -> None:
    bench = start("comm", *options).end()
    assert bench.status == 2
    assert said in bench.err
    assert 1 <= len(bench.err.strip().splitlines()) <= 5
    assert bench.out == ""


def test_an_unwritable_directory_is_refused_before_anything_is_measured(start: Start) -> None:
    bench = start("comm", "--backend", "shm", *QUICK, "--out", "/proc/nowhere").end()
    assert bench.status in {1, 2}
    assert "/proc/nowhere" in bench.err
    assert "checking every byte" not in bench.err
    assert "Traceback" not in bench.err
