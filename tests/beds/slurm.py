"""A Slurm with two nodes on this host: `munged`, `slurmctld` and two `slurmd` in a process namespace.

Nothing of it outlives its maker: the first process of the namespace waits for the end of a pipe that
only the maker holds, then ends everything in the namespace, jobs included, and removes the directory. A
SIGKILL of the maker closes the pipe as well. Clients (`srun`, `sbatch`, ...) run outside, with
``SLURM_CONF`` in their environment.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ports import first_job, free_ports

from beds.unavailable import BedUnavailableError, attempt, require_programs, require_root

NODES: Final = ("n1", "n2")
CPUS: Final = 8
"""Cores of each node, whatever the machine has: tasks take turns on the real ones."""

MPI_SETTINGS: Final = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"}
"""The nodes are one machine, on which MPICH and UCX would take ways that two have not; and once in about
fifty starts MPICH failed to make the shared memory of one of them."""
START_S: Final = 90.0
PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo", "unshare")
PACKAGES: Final = "slurmctld slurmd slurm-client munge"

FIRST_PROCESS: Final = """\
exec 3<&0
munged --foreground --force --socket="$PWD/munge.socket" --key-file="$PWD/munge.key" \\
    --pid-file="$PWD/munged.pid" --seed-file="$PWD/munged.seed" --log-file="$PWD/munged.log" &
cat <&3 >/dev/null &
alive=$!
until [ -S munge.socket ]; do kill -0 $alive || break; sleep 0.02; done
slurmctld -D >slurmctld.log 2>&1 &
for node in NODES; do slurmd -D -N $node >$node.log 2>&1 & done
wait $alive
kill -KILL -1
rm -rf "$PWD"
"""
"""A shell script: the process that waits also reaps orphans."""

CONFIG: Final = """\
ClusterName=bed
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
FirstJobId={first_job}
KillWait=10
MailProg=/bin/true
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A running Slurm with the nodes n1 and n2; enter it to have both idle, leave it to have none.

    Attributes:
        environment: ours, with what tells Slurm's programs where this Slurm is.
    """

    def __init__(self) -> None:
        require_root("a Slurm")
        require_programs(PROGRAMS, PACKAGES)
        attempt("unshare", "--pid", "--fork", "--mount-proc", "true")
        self._place = Path(tempfile.mkdtemp(prefix="tianji-slurm-"))
        self._place.chmod(0o755)
        # Variables of a Slurm around us are about its own jobs.
        outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        self.environment = outside | MPI_SETTINGS | {"SLURM_CONF": str(self._place / "slurm.conf")}

    def __enter__(self) -> Self:
        self._write_files()
        # KILL, not TERM, is what --kill-child would send: the pipe does that and cleans up as well.
        self._namespace = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount-proc", "sh", "first.sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._place,
            env=self.environment,
            start_new_session=True,  # Ctrl-C on the tests' terminal ends the bed after them, not before.
        )
        try:
            self._wait_for_nodes()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(
        self,
        *command: str | Path,
        cwd: Path | None = None,
        timeout_s: float = 120.0,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a client, such as ``srun``; whether it succeeded is the caller's to look at."""
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd,
            timeout=timeout_s,
            env=self.environment | dict(environment or {}),
        )

    def job_state(self, job: int | str) -> str:
        """Slurm's word for how a job, or one of an array as ``7_0``, is doing: RUNNING, FAILED, ..."""
        return self._field(job, "JobState")

    def exit_status(self, job: int) -> int:
        """Exit status of a job's script; of one that has not ended it says 0."""
        return int(self._field(job, "ExitCode").partition(":")[0])

    def cancel_all(self) -> None:
        """End all jobs, and wait until their nodes are free."""
        self.run("scancel", "--user=root")
        self._wait_for_nodes()

    def _field(self, job: int | str, name: str) -> str:
        shown = self.run("scontrol", "show", "job", "--oneliner", str(job)).stdout
        return dict(word.partition("=")[::2] for word in shown.split())[name]

    def _write_files(self) -> None:
        host = socket.gethostname().partition(".")[0]
        controller_port, *ports = free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS}"
            for node, port in zip(NODES, ports, strict=True)
        )
        names = {"host": host, "place": self._place, "nodes": nodes}
        config = CONFIG.format(controller_port=controller_port, first_job=first_job(), **names)
        (self._place / "slurm.conf").write_text(config)
        (self._place / "first.sh").write_text(FIRST_PROCESS.replace("NODES", " ".join(NODES)))
        for directory in ("state", *(f"spool-{node}" for node in NODES)):
            (self._place / directory).mkdir()
        key = self._place / "munge.key"
        key.touch(0o400)
        key.write_bytes(secrets.token_bytes(1024))

    def _wait_for_nodes(self) -> None:
        """Wait until every node is idle.

        Raises:
            BedUnavailableError: it takes too long; the message has the ends of the daemons' logs.
        """
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._namespace.poll() is None:
            if self.run("sinfo", "--noheader", "--format=%D %t").stdout.split() == [f"{len(NODES)}", "idle"]:
                return
            time.sleep(0.05)
        logs = [f"{log.name}: {log.read_text()[-500:].strip()}" for log in sorted(self._place.glob("*.log"))]
        raise BedUnavailableError("\n".join([f"no Slurm within {START_S:g} s", *logs]))

    def _end(self) -> None:
        assert self._namespace.stdin is not None
        self._namespace.stdin.close()
        self._namespace.wait(START_S)
