"""The heading of a measurement, and when it is called worth little."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psutil
import pytest
import zmq
from lab.bench.made_up import record

from tianji_cli.telemetry.machine import cpu_model
from tianji_lab.bench.report import noisy_cases
from tianji_lab.environment import busy_share, describe, warnings, warnings_of_noise


def test_the_conditions_name_versions_cores_and_load() -> None:
    found = describe(["shm", "zmq"], 0.04)
    assert found["tianji"] == metadata.version("tianji")
    assert found["iceoryx2"] == metadata.version("iceoryx2")
    assert found["pyzmq"] == f"{zmq.__version__}, libzmq {zmq.zmq_version()}"
    assert found["cores"].startswith(f"{len(os.sched_getaffinity(0))} usable of ")
    assert found["load"].startswith("4 % of the cores at work with something else")
    assert found["CPU"]
    assert found["hosts"] == "1"
    assert "clocks" not in found


@pytest.mark.parametrize(
    ("engine", "named"), [("shm", {"iceoryx2"}), ("zmq", {"pyzmq"}), ("shm+zmq", {"iceoryx2", "pyzmq"})]
)
def test_only_libraries_of_the_engines_asked_for_are_named(engine: str, named: set[str]) -> None:
    found = describe([engine], 0.0)
    assert found.keys() & {"iceoryx2", "pyzmq", "mpi4py", "UCX"} == named


def test_libraries_of_mpi_and_ucx_are_named_without_starting_mpi() -> None:
    code = (
        "from tianji_lab.environment import describe; found = describe(['mpi', 'ucx'], 0);"
        "from mpi4py import MPI; assert not MPI.Is_initialized();"
        "print(found['mpi4py']); print(found['UCX'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    mpi, ucx = done.stdout.splitlines()
    assert mpi.startswith(f"{metadata.version('mpi4py')}, ")
    assert "MPI" in mpi.partition(", ")[2]
    assert "ucxx" in ucx


def test_settings_of_the_libraries_are_shown_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("UCX_", "MPI", "OMPI_", "FI_", "SLURM_")):
            monkeypatch.delenv(name)
    assert describe(["zmq"], 0.0)["settings"] == "none"
    for name in ("UCX_TLS", "MPIR_CVAR_X", "FI_PROVIDER", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "x,y")
    monkeypatch.setenv("SLURM_JWT", "secret")
    monkeypatch.setenv("MY_UCX_TLS", "not theirs")
    settings = describe(["zmq"], 0.0)["settings"]
    for name in ("UCX_TLS", "MPIR_CVAR_X", "FI_PROVIDER", "SLURM_JOB_ID"):
        assert f"{name}=x,y" in settings.split()
    assert "secret" not in settings
    assert "not theirs" not in settings


def test_hosts_are_named_once_with_the_error_of_their_clocks() -> None:
    found = describe(["zmq"], 0.0, hosts=["a", "b", "a"], clock_error_us=45.4)
    assert found["hosts"] == "2: a, b"
    assert found["clocks"] == "offset measured and removed, +- 45 us"


def test_the_processor_is_named_as_the_kernel_names_it(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Fast One @ 3 GHz\nmodel name\t: Other\n")
    assert cpu_model(info) == "Fast One @ 3 GHz"
    info.write_text("processor\t: 0\nCPU part\t: 0xd0c\n")
    assert cpu_model(info) == os.uname().machine


def test_the_busy_share_is_that_of_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda **_: [100.0, 20.0, 40.0])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2})
    assert busy_share() == pytest.approx(0.3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {40, 41})
    assert busy_share() == pytest.approx(160 / 300)


def test_a_busy_machine_and_runs_that_lie_apart_are_warned_of() -> None:
    assert 0 <= busy_share() <= 1
    noisy = record(backend="zmq", collection_min_s=0.8, collection_max_s=1.23)
    assert warnings(0.10) == noisy_cases([record()]) == []
    assert warnings(0.37) == [
        "this machine is too busy to measure: 37 % of its cores were at work with something else"
    ]
    said = "too noisy: repeated runs of zmq at 512 KB, 1 actor lay 43 % apart"
    assert noisy_cases([record(), noisy]) == [said]


def test_the_three_noisiest_are_named_and_others_counted() -> None:
    assert warnings_of_noise(((number / 10, f"case {number}") for number in range(1, 8)), "case") == [
        *(f"too noisy: case {number}" for number in (7, 6, 5)),
        "too noisy: 2 more cases, each above 25 %",
    ]


def test_neither_matplotlib_nor_torch_is_imported_by_what_heads_and_prints_results() -> None:
    code = (
        "import sys, tianji_lab.environment, tianji_lab.bench.report, tianji_cli.telemetry.progress;"
        "assert not {'matplotlib', 'torch', 'zmq', 'mpi4py', 'ucxx'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
