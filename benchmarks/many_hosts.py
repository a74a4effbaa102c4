"""Measures a job with many actors on several hosts: network namespaces of this machine, on one bridge.

python benchmarks/many_hosts.py [--actors 250] [--hosts 8] [--seconds 60] [--json PATH]

DQN trains on a CartPole whose step waits half a second (``environment.step_ms``), as with a remote simulator:
a step takes time, but no core. The last host is killed in mid-training, and joins again. Prints
- start: seconds from the command until all actors have begun;
- private, all: private memory of an actor, and RAM of all processes together (MB, of 1e6 bytes);
- root, learner: share of a core that each takes while the job trains, and its open files;
- wire: bytes a second that an actor of another host costs the network, of samples, parameters and reports;
- lost, again: seconds until the root gives a killed host up, and from its second `tianji join` until all of
  its actors are there again;
- end: seconds from Ctrl-C to the end of the command.
It fails if the account is not exact. It needs root, and `ip` of iproute2.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
from many_actors import STEP_MS, TIANJI, memory_mb, until

PREFIX: Final = "tianji-many-"
ROOT: Final = "10.78.0.1"
ADDRESS: Final = f"tcp://{ROOT}:5555"
LOST: Final = "a host that joins takes its place"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def namespaces(hosts: int) -> Iterator[list[str]]:
    """Make a network namespace for each host; the first holds the bridge that connects all."""
    names = [f"{PREFIX}{number}" for number in range(hosts)]
    try:
        for number, name in enumerate(names):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            if not number:
                ip("-n", name, "link", "add", "bridge0", "type", "bridge")
                ip("-n", name, "addr", "add", f"{ROOT}/24", "dev", "bridge0")
                ip("-n", name, "link", "set", "bridge0", "up")
                continue
            there = ("peer", "name", "eth0", "netns", name)
            ip("-n", names[0], "link", "add", f"host{number}", "type", "veth", *there)
            ip("-n", names[0], "link", "set", f"host{number}", "master", "bridge0", "up")
            ip("-n", name, "addr", "add", f"10.78.0.{number + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def start(name: str, log: Path, *command: str) -> subprocess.Popen[bytes]:
    """Start a command on a host, in a session of its own."""
    with log.open("a") as output:
        return subprocess.Popen(
            ["ip", "netns", "exec", name, str(TIANJI), *command],
            start_new_session=True,
            stdout=output,
            stderr=output,
        )


def train_command(actors: int, hosts: int, out: str) -> list[str]:
    settings = {
        "experiment.stop": "{ wall_s = 3600 }",
        "experiment.evaluation": "false",
        "experiment.eval_episodes": "0",
        "environment.num_envs": "1",
        "environment.step_ms": str(STEP_MS),
        "training.warmup_steps": "512",
        "distribution.pin_cores": "false",
        "distribution.hosts": str(hosts),
        "distribution.transport": '{ local = "shm", remote = "zmq" }',
        "distribution.actor.num": str(actors),
        "distribution.actor.send_size": "4",
    }
    command = ["train", "dqn_cartpole", "--out", out, "--name", "many", "--quiet", "--listen", ADDRESS]
    return command + [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def processes(name: str, title: str) -> list[psutil.Process]:
    """Find the processes of a host whose title begins so."""
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True).stdout
    found = []
    for pid in map(int, pids.split()):
        try:
            process = psutil.Process(pid)
            if " ".join(process.cmdline()).startswith(title):
                found.append(process)
        except psutil.Error:
            continue
    return found


def wire_bytes(name: str) -> int:
    """Bytes that reached a host, or left it, so far."""
    shown = subprocess.run(
        ["ip", "-n", name, "-s", "-j", "link", "show", "eth0"], capture_output=True, check=True
    )
    (link,) = json.loads(shown.stdout)
    return sum(int(link["stats64"][way]["bytes"]) for way in ("rx", "tx"))


def measure(options: argparse.Namespace, names: list[str], place: Path) -> dict[str, Any]:
    """Run one job through all of its life."""
    run, began, last = place / "many/1", time.monotonic(), names[-1]
    root = start(names[0], place / "host-0", *train_command(options.actors, options.hosts, str(place)))
    log, key = run / "logs/root-0.log", run / "job.key"

    def says(what: str) -> bool:
        return log.exists() and what in log.read_text()

    try:
        until(root, key.exists, 60, "key")
        joins = {name: start(name, place / name, "join", ADDRESS, "--key", str(key)) for name in names[1:]}
        until(root, lambda: says("first environment step"), 900, "first step")
        row: dict[str, Any] = {"start_s": time.monotonic() - began}
        there = len(processes(last, "tianji: actor"))
        busy = [psutil.Process(root.pid), *processes(names[0], "tianji: buffer and learner")]
        cpu_s, at = [sum(one.cpu_times()[:2]) for one in busy], time.monotonic()
        sent = wire_bytes(last)
        time.sleep(options.seconds)
        for what, one, before_s in zip(("root", "learner"), busy, cpu_s, strict=True):
            row[f"{what}_share"] = (sum(one.cpu_times()[:2]) - before_s) / (time.monotonic() - at)
        row["wire"] = (wire_bytes(last) - sent) / (time.monotonic() - at) / there
        row |= {f"{what}_files": one.num_fds() for what, one in zip(("root", "learner"), busy, strict=True)}
        some = [memory_mb(one.pid)[0] for one in processes(last, "tianji: actor")[:50]]
        row["private_mb"] = statistics.median(some)
        row["all_mb"] = sum(memory_mb(one.pid)[1] for name in names for one in processes(name, ""))
        gone = time.monotonic()
        os.killpg(joins[last].pid, signal.SIGKILL)
        joins[last].wait()
        until(root, lambda: says(LOST), 120, "lost host")
        row["lost_s"], back = time.monotonic() - gone, time.monotonic()
        joins[last] = start(last, place / last, "join", ADDRESS, "--key", str(key))
        until(root, lambda: len(processes(last, "tianji: actor")) >= there, 600, "host that is back")
        row["again_s"] = time.monotonic() - back
        time.sleep(options.seconds / 2)
        over = time.monotonic()
        os.killpg(root.pid, signal.SIGINT)
        root.wait(600)
        row["end_s"] = time.monotonic() - over
    finally:
        for name in names:
            for one in processes(name, ""):
                one.kill()
    summary = json.loads((run / "summary.json").read_text())
    accounts = sum(summary[name] for name in ("received", "in_flight", "lost", "dropped"))
    if root.returncode != 130 or summary["produced"] != accounts:
        raise SystemExit(
            f"{run}: {summary['status']}, {summary['reason']}; {summary['produced']} != {accounts}"
        )
    row |= {name: summary[name] for name in ("produced", "received", "lost", "updates")}
    return row | {"per_s": summary["produced_per_s"], "bound": options.actors * 1000 / STEP_MS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--actors", type=int, default=250)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0, help="of training before a host is lost")
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    print(f"# load {os.getloadavg()[0]:.1f}, {len(os.sched_getaffinity(0))} cores")
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = stack.enter_context(namespaces(options.hosts))
        row = {"actors": options.actors, "hosts": options.hosts, **measure(options, names, place)}
    for name, value in row.items():
        print(f"{name:15} {value:12.5g}")
    if options.json:
        Path(options.json).write_text(json.dumps(row, indent=1) + "\n")


if __name__ == "__main__":
    main()
