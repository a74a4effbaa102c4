"""`tianji_transports` as a distribution of its own: its example, its contract as a command, and its wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ports import free_ports

ROOT = Path(__file__).parents[2]
SQUARES = "".join(f"{number * number}\n" for number in range(10))
CONTRACT = ("-m", "tianji_transports.testing")
BOTH = (
    r"transport 'shm' is in two packages, .*, with the same files: pip uninstall .*, then install one of them"
)


def run(command: Sequence[str | Path], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def project(folder: str) -> dict[str, Any]:
    described: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    return described


def write_example(folder: Path, engine: str) -> None:
    """Write the page's program, for an engine and a port of the test."""
    page = (ROOT / "docs/transports.md").read_text()
    found = re.search(r'```python title="squares.py"\n(.*?)```', page, re.DOTALL)
    assert found is not None
    assert len(found[1].splitlines()) <= 30
    text = found[1].replace('ENGINE = "shm"', f'ENGINE = "{engine}"')
    (folder / "squares.py").write_text(text.replace(":5555", f":{free_ports(1)[0]}"))


def run_example(python: Path, folder: Path) -> str:
    """Run the producer and the consumer; returns what the consumer printed."""
    producer = subprocess.Popen([python, "squares.py", "1"], cwd=folder)
    try:
        done = run([python, "squares.py", "0"], folder)
        assert producer.wait(60) == 0
    finally:
        producer.kill()
        producer.wait()
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("engine", ["shm", "zmq", "ucx"])
def test_the_example_runs_over_any_engine_by_one_word(engine: str, tmp_path: Path) -> None:
    write_example(tmp_path, engine)
    assert run_example(Path(sys.executable), tmp_path) == SQUARES


def test_the_example_runs_over_mpi_under_its_launcher(tmp_path: Path) -> None:
    write_example(tmp_path, "mpi")
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = beside if beside.exists() else shutil.which("mpiexec") or "mpiexec"
    ranks = [["-n", "1", sys.executable, "squares.py", rank] for rank in "01"]
    done = run([mpiexec, *ranks[0], ":", *ranks[1]], tmp_path)
    assert (done.returncode, done.stdout) == (0, SQUARES), done.stderr


@pytest.mark.parametrize("engine", ["inproc", "mpi", "pigeons"])
def test_the_contract_is_run_over_an_engine_by_its_name(engine: str, tmp_path: Path) -> None:
    text = "from tianji_transports.shm.transport import ShmTransport\nclass Pigeons(ShmTransport): ...\n"
    (tmp_path / "pigeons.py").write_text(text)
    install(tmp_path, "pigeons", {"pigeons": "pigeons:Pigeons"})
    some = "probe_for_one_source or what_it_says_it_can_do"
    done = run([sys.executable, *CONTRACT, engine, "-q", "-k", some], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_contract_fails_for_an_engine_that_does_not_keep_it(tmp_path: Path) -> None:
    text = """
from tianji_transports.inproc import InprocTransport

class Deaf(InprocTransport):
    def probe(self, channel, source=-1):
        return super().probe(channel, {1: 2, 2: 1}.get(source, source))
"""
    (tmp_path / "deaf.py").write_text(text)
    done = run([sys.executable, *CONTRACT, "deaf:Deaf", "-q", "-k", "probe_for_one_source"], tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr


def test_what_the_contract_cannot_run_is_named_in_a_line(tmp_path: Path) -> None:
    unknown = run([sys.executable, *CONTRACT, "smh"], tmp_path)
    assert unknown.stderr.startswith("tianji_transports.testing: error: no transport is named 'smh'; did you")
    assert "ENGINE is a registered name" in run([sys.executable, *CONTRACT], tmp_path).stderr
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pytest'] = None\n")
    lacking = run([sys.executable, *CONTRACT, "shm"], tmp_path, PYTHONPATH=str(tmp_path))
    assert lacking.returncode != 0
    assert "the contract needs pytest: pip install pytest" in lacking.stderr
    assert "Traceback" not in lacking.stderr


def install(folder: Path, name: str, engines: dict[str, str]) -> None:
    """Write what pip leaves of a distribution that registers engines."""
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [f"{engine} = {target}\n" for engine, target in engines.items()]
    (info / "entry_points.txt").write_text("".join(["[tianji.transports]\n", *lines]))


def test_both_distributions_together_are_refused_by_name(tmp_path: Path) -> None:
    install(tmp_path, "tianji-transports", project("transports")["entry-points"]["tianji.transports"])
    load = [sys.executable, "-c", "from tianji_transports.registry import load; load('shm')"]
    refused = run(load, tmp_path, PYTHONPATH=str(tmp_path))
    assert re.search(BOTH, refused.stderr), refused.stderr
    assert set(re.findall("tianji[a-z-]*", refused.stderr.rpartition("pip uninstall")[2])) == {
        "tianji",
        "tianji-transports",
    }
    tianji = [sys.executable, "-m", "tianji_cli", "train", "--env", "CartPole-v1", "--out", tmp_path]
    refused = run(tianji, tmp_path, PYTHONPATH=str(tmp_path))
    assert refused.returncode == 2
    assert re.search(BOTH, " ".join(refused.stderr.split())), refused.stderr


def test_both_distributions_describe_the_same_engines() -> None:
    whole, alone = project("."), project("transports")
    assert alone["entry-points"]["tianji.transports"] == whole["entry-points"]["tianji.transports"]
    assert set(alone["dependencies"]) <= set(whole["dependencies"])
    for extra in ("mpi", "ucx"):
        assert alone["optional-dependencies"][extra] == whole["optional-dependencies"][extra]


@pytest.mark.soak  # pip fetches what builds a wheel.
def test_pip_installs_the_transports_alone_and_both_are_refused(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"

    def pip(*words: str | Path) -> str:
        done = run([python, "-m", "pip", *words], tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip("install", ROOT / "transports")
    for engine in ("shm", "zmq"):
        write_example(tmp_path, engine)
        assert run_example(python, tmp_path) == SQUARES
    installed = pip("list")
    assert "tianji-transports" in installed
    assert "torch" not in installed
    assert "numpy" not in installed
    lacking = run([python, "-c", "from tianji_transports.registry import load; load('mpi')"], tmp_path)
    assert "pip install 'tianji-transports[mpi]'" in lacking.stderr

    pip("install", "--no-deps", ROOT)
    refused = run([python, "squares.py", "0"], tmp_path)
    found = re.search(r"pip (uninstall [\w -]+), then install one", refused.stderr)
    assert found is not None, refused.stderr
    pip(*found[1].split(), "--yes")
    pip("install", "--no-deps", ROOT)
    assert run_example(python, tmp_path) == SQUARES
