"""`tianji bench scaling` over two hosts: with a wire between them, and in a Slurm allocation."""

import json
from pathlib import Path
from typing import Any

from beds.namespaces import Wire
from beds.slurm import Slurm
from beds.training import TIANJI, hosts_of, write_config

OPTIONS = (
    *("--actors", "2", "--repeats", "1", "--threshold", "15", "--no-prediction", "--quiet"),
    *("--seconds", "6"),  # A second apart, reports have to tell a rate also where the machine is busy.
)


def only_run(out: Path) -> dict[str, Any]:
    """Read the summary of the one training, and check that the figures are its."""
    (row,) = json.loads((out / "figure-6a.json").read_text())["rows"]
    (training,) = row["trainings"]
    assert row["setting"] == "L1A2"
    assert training["consumed_per_s"] > 0
    summary: dict[str, Any] = json.loads((Path(training["run"]) / "summary.json").read_text())
    assert summary["status"] == "finished"
    return summary


def test_a_host_behind_a_wire_is_brought_in_for_each_training(wire: Wire, tmp_path: Path) -> None:
    first, second = wire.hosts
    config = write_config(tmp_path, {"local": "shm", "remote": "zmq"})
    join = f"ip netns exec {second.namespace}"
    hosts = ("--hosts", "second", "--join-with", join, "--listen", first.address)
    out = tmp_path / "out"
    done = first.run(TIANJI, "bench", "scaling", config, *OPTIONS, *hosts, "--out", out, timeout=200)
    assert done.returncode == 0, done.stderr
    assert len(set(hosts_of(only_run(out)).values())) == 2
    assert second.sent_bytes > 16 * 1000, "a thousand of CartPole's observations"
    assert "# hosts: 2: here, second" in done.stdout


def test_in_an_allocation_its_other_node_takes_part(slurm: Slurm, tmp_path: Path) -> None:
    config = write_config(tmp_path, {"local": "shm", "remote": "zmq"})
    out = tmp_path / "out"
    script = tmp_path / "job.sh"
    command = " ".join(map(str, (TIANJI, "bench", "scaling", config, *OPTIONS, "--out", out)))
    script.write_text(f"#!/bin/sh\n#SBATCH --nodes=2 --mincpus=4\n{command}\n")
    output = tmp_path / "output"
    done = slurm.run("sbatch", "--wait", "--output", output, script, cwd=tmp_path, timeout_s=200)
    assert done.returncode == 0, output.read_text()
    assert set(hosts_of(only_run(out)).values()) == {"n1", "n2"}
    assert "# hosts: 2: here, n2" in output.read_text()
