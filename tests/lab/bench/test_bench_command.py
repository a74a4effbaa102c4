"""Claims about `tianji bench`, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.sessions import PATIENCE_S, SHM, TIANJI, Start, Started, commands, in_session, until
from cli.warm import WarmCommands
from lab.bench.damaging import DAMAGED

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


@pytest.fixture
def start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    warm_commands: WarmCommands,
    request: pytest.FixtureRequest,
) -> Iterator[Start]:
    """Starts the command, as a shell does if its parameter says so, and otherwise with everything imported.

    Nothing is left of it at the end, in shared memory neither.
    """
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    warm = None if getattr(request, "param", None) == "cold" else warm_commands
    with commands("bench", cwd=tmp_path, warm=warm) as begin:
        yield begin


COLD = pytest.mark.parametrize("start", ["cold"], indirect=True)


def end(bench: Started) -> tuple[int, str, str]:
    """Wait for the end of all processes of the command; its status and what it said."""
    out, err = bench.communicate(timeout=PATIENCE_S)
    until(lambda: not in_session(bench.pid), "the end of every process")
    return bench.returncode, out, err


def measured(bench: Started) -> list[dict[str, Any]]:
    """Rows of the command, which has to succeed."""
    status, out, err = end(bench)
    assert status == 0, err
    rows: list[dict[str, Any]] = json.loads(out)["rows"]
    return rows


def endless(start: Start) -> tuple[Started, int]:
    """Start a command that never ends; it measures with its second worker, whose pid is given."""
    before = set(SHM.iterdir())
    bench = start(*ENDLESS)
    title = "tianji: bench worker 2"
    pids = until(lambda: [pid for pid, found in in_session(bench.pid).items() if found == title], title)
    until(lambda: set(SHM.iterdir()) - before, "shared memory")
    return bench, pids[0]


# -- what is measured ------------------------------------------------------------------------------------


@COLD
def test_comm_measures_four_engines_and_writes_every_figure(start: Start, tmp_path: Path) -> None:
    sizes = ["--msg-kb", "512", "--messages", "100", "--repeats", "1"]
    rows = measured(start("comm", *backends(*FOUR), *sizes, "--raw", "--json", "-", "--out", "o"))
    assert [row["backend"] for row in rows] == list(FOUR)
    for row in rows:
        assert row.keys() >= KEYS
        assert row["verified"] is True
        assert row["raw_msgs_per_s"] > 0
        assert row["raw_ratio"] > 0
    assert {place.suffix for place in (tmp_path / "o").iterdir()} >= {".csv", ".json", ".png"}


@pytest.mark.parametrize("experiment", ["latency", "bandwidth", "weights"])
def test_the_other_experiments_measure_four_engines(start: Start, experiment: str) -> None:
    few = ["--msg-kb", "4", "--messages", "50", "--repeats", "1", "--json", "-"]
    rows = measured(start(experiment, *backends(*FOUR), *few))
    counts = [1, 4] if experiment == "weights" else [1]
    assert [(row["backend"], row["actors"], row["verified"]) for row in rows] == [
        (name, actors, True) for actors in counts for name in FOUR
    ]


def test_comm_measures_busy_actors_in_place_with_the_smallest_message(start: Start) -> None:
    options = ["--raw", "--store", "inplace", "--work", "busy", "--actors", "2", "--sample-time", "0.0001"]
    small = ["--msg-kb", "0.03125", "--messages", "50", "--repeats", "1", "--json", "-"]
    rows = measured(start("comm", *backends(*FOUR), *options, *small))
    assert [row["backend"] for row in rows] == list(FOUR)
    for row in rows:
        assert (row["store"], row["work"], row["actors"], row["msg_kb"]) == ("inplace", "busy", 2, 0.03125)
        assert row["raw_msgs_per_s"] > 0


def test_figure_5b_prints_the_crossing(start: Start) -> None:
    options = ["--messages", "20", "--actors", "1", "--actors", "2", "--sample-time", "0.001"]
    status, out, err = end(start("comm", "--figure", "5b", *options, "--backend", "shm", "--repeats", "1"))
    assert status == 0, err
    assert "predicted s" in out
    assert "the critical path moves from the actors to the buffer at" in out


# -- what is damaged ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "engine",
    [
        *("FlipsShm", "FlipsMpi", "LosesZmq", "DoublesShm", "SwapsZmq"),
        *(pytest.param(engine, marks=pytest.mark.soak) for engine in ("FlipsUcx", "FlipsBetween")),
    ],
)
def test_a_damaged_message_leaves_no_figure(start: Start, engine: str, tmp_path: Path) -> None:
    launcher = (str(MPIEXEC), "-n", "2") if engine.endswith("Mpi") else ()
    options = [*backends(f"lab.bench.damaging:{engine}"), *QUICK, "--json", "figures.json"]
    status, out, err = end(start("comm", *options, launcher=launcher))
    assert (status, out) == (1, "")
    assert "rank 1" in err
    assert re.search(rf"message ({DAMAGED}|{DAMAGED + 1}) of rank 1|the last \d+ of rank 1", err)
    assert "Traceback" not in err
    assert not (tmp_path / "figures.json").exists()


# -- who dies ----------------------------------------------------------------------------------------------


def test_a_killed_worker_ends_the_benchmark_by_name(start: Start) -> None:
    bench, worker = endless(start)
    os.kill(worker, signal.SIGKILL)
    status, out, err = end(bench)
    assert (status, out) == (1, "")
    assert "worker 2" in err
    assert "SIGKILL" in err


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_stop_signal_ends_everything(start: Start, number: signal.Signals) -> None:
    bench, _ = endless(start)
    if number == signal.SIGINT:
        os.killpg(bench.pid, number)
    else:
        bench.send_signal(number)
    status, out, _ = end(bench)
    assert (status, out) == (130, "")


def test_an_endpoint_that_is_being_made_at_an_interruption_leaves_nothing_behind(start: Start) -> None:
    status, out, err = end(start("comm", *backends("lab.bench.damaging:InterruptsShm"), *QUICK))
    assert (status, out) == (130, ""), err


@COLD
def test_workers_of_a_killed_root_end_and_doctor_cleans_up(start: Start) -> None:
    bench, _ = endless(start)
    bench.kill()
    end(bench)
    subprocess.run([str(TIANJI), "doctor"], capture_output=True, timeout=PATIENCE_S, check=False)


# -- launchers ---------------------------------------------------------------------------------------------


def test_under_a_launcher_every_other_rank_is_an_actor_and_more_are_refused(start: Start) -> None:
    launcher = (str(MPIEXEC), "-n", "3")
    rows = measured(start("comm", *backends("ucx", "mpi"), *QUICK, "--json", "-", launcher=launcher))
    assert [row["actors"] for row in rows] == [2, 2]
    status, _, err = end(start("comm", "--backend", "ucx", "--actors", "4", launcher=launcher))
    assert status == 2
    assert "mpiexec -n 5" in err


# -- mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--backend", "zqm"], 2, "zmq"),
        (["--backend", "inproc"], 2, "inside a process"),
        (["--figure", "5d"], 2, "mpiexec"),
        (["--sample-time", "inf"], 2, "finite"),
        (["--msg-kb", "0"], 2, "KB"),
        (["--msg-kb", "0.05"], 2, "8"),
        (["--backend", "shm", *QUICK, "--out", "/proc/nowhere"], 1, "/proc/nowhere"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_measured(
    start: Start, options: list[str], status: int, said: str
) -> None:
    ended, out, err = end(start("comm", *options))
    assert (ended, out) == (status, "")
    assert said in err
    assert 1 <= len(err.strip().splitlines()) <= 5
    assert "checking every byte" not in err
    assert "Traceback" not in err
