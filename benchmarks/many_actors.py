"""Measures a job with many actors on one host: DQN on a CartPole whose step waits half a second.

python benchmarks/many_actors.py [--actors 8 64 250 1000] [--seconds 60] [--json PATH]

With each number of actors it trains once, interrupts a second job during its start, and prints
- start: seconds from the command to the first environment step;
- private, all: private memory of an actor, and RAM of all processes together (MB, of 1e6 bytes);
- root: share of a core that the root takes while the job trains;
- end: seconds from the end of training to the end of the command;
- Ctrl-C: seconds from an interrupt, when half of the actors have started, to the end of the command.
It fails if an account is not exact, a role was restarted, or a command ends too late.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

STEP_MS = 500
TIANJI = Path(sys.executable).with_name("tianji")
MB = 1e6
LATE_S = {True: 3.0, False: 10.0}
"""Maximum seconds of Ctrl-C during a start: with fewer than 1,000 actors (True), and with more (False)."""


def start(actors: int, seconds: float, out: str) -> subprocess.Popen[bytes]:
    """Start a job in a new session, so that a signal reaches only its processes."""
    settings = {
        "experiment.stop": f"{{ wall_s = {seconds:g} }}",
        "experiment.evaluation": "false",
        "experiment.eval_episodes": "0",
        "environment.step_ms": str(STEP_MS),
        "environment.num_envs": "1",
        "training.warmup_steps": "512",
        "distribution.pin_cores": "false",
        "distribution.actor.num": str(actors),
        "distribution.actor.send_size": "4",
    }
    command = [str(TIANJI), "train", "dqn_cartpole", "--out", out, "--name", f"actors-{actors}", "--quiet"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)


def until(job: subprocess.Popen[bytes], holds: Callable[[], bool], limit_s: float, what: str) -> None:
    """Wait until a condition of a job holds.

    Raises:
        SystemExit: the job has ended, or takes too long.
    """
    deadline = time.monotonic() + limit_s
    while not holds():
        if job.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"no {what}: the job {'ended' if job.poll() is not None else 'took too long'}")
        time.sleep(0.1)


def actors_of(job: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Find the processes of a job's actors."""
    found = []
    for process in psutil.Process(job.pid).children(recursive=True):
        try:
            if process.cmdline()[0].startswith("tianji: actor"):
                found.append(process)
        except (psutil.Error, IndexError):
            continue
    return found


def memory_mb(pid: int) -> tuple[float, float]:
    """Private memory of a process, and its proportional set size (private and its part of shared memory)."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        fields = {line.split(":")[0]: int(line.split()[1]) for line in file.readlines()[1:]}
    private = fields["Private_Clean"] + fields["Private_Dirty"]
    return private * 1024 / MB, fields["Pss"] * 1024 / MB


def train(actors: int, seconds: float, out: str) -> dict[str, Any]:
    """Train once; returns times, memory and counts, and exits if an account is wrong."""
    began = time.monotonic()
    job = start(actors, seconds, out)
    run = Path(out, f"actors-{actors}", "1")

    def has_begun() -> bool:
        log = run / "logs" / "root-0.log"
        return log.exists() and "first environment step" in log.read_text()

    until(job, has_begun, 600, "first step")
    start_s = time.monotonic() - began
    root = psutil.Process(job.pid)
    cpu_before, at = sum(root.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds / 2)
    root_share = (sum(root.cpu_times()[:2]) - cpu_before) / (time.monotonic() - at)
    everybody = [root, *root.children(recursive=True)]
    private = [memory_mb(process.pid)[0] for process in actors_of(job)[:50]]
    in_ram = sum(memory_mb(process.pid)[1] for process in everybody)
    time.sleep(max(0.0, at + seconds - time.monotonic()))
    over = time.monotonic()
    status = job.wait(600)
    summary = json.loads((run / "summary.json").read_text())
    accounts = sum(summary[name] for name in ("received", "in_flight", "lost", "dropped"))
    if status != 0 or summary["produced"] != accounts or any(role["restarts"] for role in summary["roles"]):
        raise SystemExit(
            f"{run}: {summary['status']}, {summary['reason']}; {summary['produced']} != {accounts}"
        )
    return {
        "start_s": start_s,
        "private_mb": statistics.median(private),
        "all_mb": in_ram,
        "root_share": root_share,
        "end_s": time.monotonic() - over,
        "produced": summary["produced"],
        "received": summary["received"],
        "lost": summary["lost"],
        "updates": summary["updates"],
    }


def interrupt(actors: int, out: str) -> float:
    """Interrupt a job when half of its actors have started; returns the seconds until it ends."""
    job = start(actors, 60, out)
    until(job, lambda: len(actors_of(job)) >= actors // 2, 600, "half of the actors")
    began = time.monotonic()
    os.killpg(job.pid, signal.SIGINT)
    job.wait(600)
    took = time.monotonic() - began
    late_s = LATE_S[actors < 1000]
    if job.returncode != 130 or took > late_s:
        raise SystemExit(f"Ctrl-C took {took:.1f} s ({late_s:g} s are allowed), status {job.returncode}")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--actors", type=int, nargs="+", default=[8, 64, 250, 1000])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each training")
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    # Commands in a shell's background ignore SIGINT, and so do their children; exec resets a handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(
        f"# load {os.getloadavg()[0]:.1f}, {len(os.sched_getaffinity(0))} cores, {options.seconds:g} s each"
    )
    headings = ("start s", "private", "all MB", "root", "end s", "Ctrl-C s", "produced", "lost", "updates")
    print("actors" + "".join(f"{heading:>9}" for heading in headings))
    rows = []
    for actors in options.actors:
        with tempfile.TemporaryDirectory() as out:
            row = {
                "actors": actors,
                **train(actors, options.seconds, out),
                "ctrl_c_s": interrupt(actors, out),
            }
        rows.append(row)
        print(
            f"{actors:6}{row['start_s']:9.1f}{row['private_mb']:9.1f}{row['all_mb']:9.0f}{row['root_share']:9.0%}"
            f"{row['end_s']:9.1f}{row['ctrl_c_s']:9.1f}{row['produced']:9}{row['lost']:9}{row['updates']:9}",
            flush=True,
        )
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
