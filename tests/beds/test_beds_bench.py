"""`tianji bench` over two hosts: on a real Slurm, and across a shaped wire with clocks that differ."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from beds.namespaces import LINK_BYTES_PER_S
from beds.slurm import Slurm
from beds.training import TIANJI
from beds.two_hosts_mpi import TwoHosts, two_hosts
from beds.unavailable import BedUnavailableError

NBYTES = 512 << 10
BURST_BYTES = 300_000
"""More than what the link lets through at once."""
CLOCK_AHEAD_S = 1000
ENGINES = ("zmq", "mpi", "ucx")
BACKENDS = [word for name in ENGINES for word in ("--backend", name)]
SHORT = ("--messages", "10", "--repeats", "1", "--quiet", "--json", "-")


def shown(done: subprocess.CompletedProcess[str]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The environment and the rows of what a command has printed."""
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    return document["environment"], document["rows"]


def clock_error_s(environment: dict[str, str]) -> float:
    found = re.search(r"\+- ([\d.]+) us", environment["clocks"])
    assert found is not None, environment["clocks"]
    return float(found[1]) / 1e6


# -- Slurm -----------------------------------------------------------------------------------------------


def bench(slurm: Slurm, tasks: int, *command: str | Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    srun = ("srun", "--mpi=pmi2", "-N2", f"-n{tasks}")
    return shown(slurm.run(*srun, TIANJI, "bench", *command, timeout_s=200))


@pytest.mark.soak
def test_figure_5c_spreads_its_actors_over_slurms_nodes(slurm: Slurm) -> None:
    environment, rows = bench(slurm, 3, "comm", "--figure", "5c", *BACKENDS, *SHORT)
    points = [(row["sample_time_s"], row["actors"], row["backend"]) for row in rows]
    assert points == [(time, n, name) for time in (0.001, 0.01) for n in (1, 2) for name in ENGINES]
    assert {row["hosts"] for row in rows} == {2}
    assert environment["hosts"] == "2: n1, n2"
    assert clock_error_s(environment) > 0


def test_figure_5d_measures_between_slurms_nodes_and_writes_its_files(slurm: Slurm, tmp_path: Path) -> None:
    sizes = ("--msg-kb", "1", "--msg-kb", "8192")
    options = (*BACKENDS, *sizes, *SHORT, "--link-mb", "125", "--out", str(tmp_path))
    environment, rows = bench(slurm, 2, "comm", "--figure", "5d", *options)
    assert [(row["msg_kb"], row["backend"]) for row in rows] == [
        (size, name) for size in (1, 8192) for name in ENGINES
    ]
    assert {row["hosts"] for row in rows} == {2}
    assert environment["link"] == "125 MB/s"
    assert {path.name for path in tmp_path.iterdir()} == {
        f"figure-5d.{kind}" for kind in ("csv", "json", "png")
    }


def test_weights_reach_readers_on_both_of_slurms_nodes(slurm: Slurm) -> None:
    _, rows = bench(slurm, 3, "weights", *BACKENDS, "--msg-kb", "64", "--msg-kb", "1024", *SHORT)
    assert [row["backend"] for row in rows] == [*ENGINES, *ENGINES]
    assert {(row["actors"], row["hosts"]) for row in rows} == {(2, 2)}


# -- a wire ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Figure 5d at one size, between two hosts whose clocks differ.

    Attributes:
        environment: as shown.
        rows: one an engine.
        clocks_s: what the hosts' monotonic clocks say.
        crossed_bytes: what left the second host meanwhile.
    """

    environment: dict[str, str]
    rows: list[dict[str, Any]]
    clocks_s: list[float]
    crossed_bytes: int


@pytest.fixture(scope="module")
def measured() -> Measured:
    """One measurement for the tests below."""
    # One write, of a fixed number of decimals: what two ranks print may come without a line's end between.
    clock = (sys.executable, "-c", "import os, time; os.write(1, b'%.3f ' % time.monotonic())")
    options = ("--figure", "5d", "--msg-kb", "512", *BACKENDS, *SHORT, "--link-mb", "125")
    try:
        with two_hosts(second_clock_ahead_s=CLOCK_AHEAD_S) as hosts:
            clocks = re.findall(r"\d+\.\d{3}", run(hosts, *clock).stdout)
            before = hosts.wire.hosts[1].sent_bytes
            environment, rows = shown(run(hosts, TIANJI, "bench", "comm", *options))
            crossed = hosts.wire.hosts[1].sent_bytes - before
    except BedUnavailableError as error:
        pytest.skip(str(error))
    return Measured(environment, rows, sorted(map(float, clocks)), crossed)


def run(hosts: TwoHosts, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in one rank on each host."""
    return subprocess.run(
        hosts.mpiexec((1, 1), *command),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | hosts.environment,
        timeout=200,
    )


def test_what_figure_5d_measures_goes_over_the_wire(measured: Measured) -> None:
    assert measured.environment["hosts"] == "2: first, second"
    assert [(row["backend"], row["hosts"]) for row in measured.rows] == [(name, 2) for name in ENGINES]
    for row in measured.rows:
        assert row["collection_s"] > (row["messages"] * NBYTES - BURST_BYTES) / LINK_BYTES_PER_S, row
    # Of each, the run that checks every byte, that which warms up, and the timed one.
    assert measured.crossed_bytes > sum(3 * row["messages"] * NBYTES for row in measured.rows)


def test_a_clock_that_is_ahead_does_not_show_in_latencies(measured: Measured) -> None:
    here, there = measured.clocks_s
    assert CLOCK_AHEAD_S - 10 < there - here < CLOCK_AHEAD_S + 10
    error_s = clock_error_s(measured.environment)
    for row in measured.rows:
        shortest_s = (NBYTES - BURST_BYTES) / LINK_BYTES_PER_S
        assert shortest_s - error_s < row["p50_us"] / 1e6 < 1, row
