"""Minutes of deaths: memory stays flat, the books stay exact, nothing is left. Run by `nox -s soak`."""

import os
import random
import re
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli.sessions import SHM, in_session

MINUTES = 3.0
ACTORS = 6

CROWD_MINUTES = float(os.environ.get("TIANJI_SOAK_MINUTES", "10"))
"""Minutes of the run with many actors; ``TIANJI_SOAK_MINUTES=1`` is for trying it."""
CROWD = 64
GROUPS = 2
KILL_EVERY_S = 10.0
SAMPLE_EVERY_S = 1.0
MOST_GROWTH = 32 << 20
"""Bytes by which each of root and learners may grow; a leak of a rollout, 20 KB, comes to more."""


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.soak
@pytest.mark.parametrize("transport", ["shm", "zmq"])
def test_minutes_of_random_kills_leave_memory_flat_and_the_books_exact(
    workplace: Any, transport: str
) -> None:
    dice = random.Random(5)
    run = workplace.train(
        {"experiment": {"stop": {"env_steps": 10**9}, "checkpoint_every_s": 5.0}},
        {"distribution": {"transport": transport, "max_restarts_per_minute": 1000, "actor": {"num": ACTORS}}},
    )
    run.train_until(10_000)
    learner = run.command.pid_of("buffer and learner")
    until = time.monotonic() + 60.0 * MINUTES
    early, kills = 0, 0
    while time.monotonic() < until:
        time.sleep(dice.uniform(0.2, 1.5))
        run.command.kill(f"actor {dice.randrange(ACTORS)}", dice.choice([signal.SIGKILL, signal.SIGSEGV]))
        kills += 1
        if kills == 10:
            early = resident_bytes(learner)
    grown = resident_bytes(learner) - early
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)

    restarts = sum(role["restarts"] for role in summary["roles"])
    assert kills - 1 <= restarts <= kills, "the last one may have died while the run stopped"
    assert grown < 32 << 20, f"the learner grew by {grown >> 20} MiB over {kills} kills"
    assert summary["rejected_frames"] == 0


class Watched:
    """Memory of root and learners, and the job's shared memory, as time goes by."""

    def __init__(self, command: Any) -> None:
        learners = sorted(command.pids("buffer and learner"))
        self.pids = [command.pid, *learners]
        mapped = re.search(rf"tianji-{os.getuid()}-.{{12}}", Path(f"/proc/{learners[0]}/maps").read_text())
        assert mapped is not None
        self._stem = mapped.group()
        self.resident: list[list[int]] = []
        self.descriptors: list[list[int]] = []
        self.names: list[int] = []

    def look(self) -> None:
        self.resident.append([resident_bytes(pid) for pid in self.pids])
        self.descriptors.append([len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids])
        self.names.append(len(list(SHM.glob(f"{self._stem}*"))))

    def __str__(self) -> str:
        resident = [
            [f"{nbytes / 2**20:.1f}" for nbytes in row] for row in self.resident[:: len(self.names) // 8]
        ]
        return (
            f"MiB {resident}, descriptors {self.descriptors[-1]}, names {min(self.names)}-{max(self.names)}"
        )

    def growth(self, of: list[Any]) -> list[float]:
        """Growth from the second quarter, when all is warm, to the last, by medians."""
        quarter = len(of) // 4
        rows = [row if isinstance(row, list) else [row] for row in of]
        early, late = (zip(*part, strict=True) for part in (rows[quarter : 2 * quarter], rows[-quarter:]))
        return [
            statistics.median(then) - statistics.median(before)
            for before, then in zip(early, late, strict=True)
        ]


@pytest.mark.soak
def test_64_actors_of_two_groups_and_a_death_every_ten_seconds_leave_memory_flat_and_the_books_exact(
    workplace: Any,
) -> None:
    dice = random.Random(7)
    run = workplace.train(
        {"experiment": {"stop": {"env_steps": 10**9}, "checkpoint_every_s": 10.0}},
        {"environment": {"num_envs": 2}, "training": {"rollout_steps": 1024}},
        {
            "distribution": {
                "groups": GROUPS,
                "sync_interval": 16,
                "max_restarts_per_minute": 100,
                "actor": {"num": CROWD // GROUPS, "send_size": 16, "window": 1},
            }
        },
    )
    run.train_until(10_000)
    watched = Watched(run.command)
    assert len(watched.pids) == 1 + GROUPS
    began = time.monotonic()
    killed, next_kill = 0, began + KILL_EVERY_S
    while (now := time.monotonic()) < began + 60.0 * CROWD_MINUTES:
        time.sleep(SAMPLE_EVERY_S)
        watched.look()
        if now >= next_kill:
            run.command.kill(f"actor {dice.randrange(CROWD)} ", dice.choice([signal.SIGKILL, signal.SIGSEGV]))
            killed, next_kill = killed + 1, next_kill + KILL_EVERY_S
    steps = run.env_steps
    alive = in_session(run.command.pid)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)

    who = ["root", *(f"learner of group {group}" for group in range(GROUPS))]
    sys.stdout.write(f"{killed} kills, {summary['averaging']}, {watched}\n")  # `-s` shows it.
    for name, grown in zip(who, watched.growth(watched.resident), strict=True):
        assert grown < MOST_GROWTH, f"the {name} grew by {grown / 2**20:.0f} MiB over {killed} kills"
    assert max(watched.growth(watched.descriptors)) <= 2, watched.descriptors[-1]
    assert max(watched.growth(watched.names)) <= 2, watched.names
    assert sum("tianji: actor" in title for title in alive.values()) >= CROWD - 1
    restarts = sum(role["restarts"] for role in summary["roles"])
    assert killed - 1 <= restarts <= killed, "the last one may have died while the run stopped"
    assert summary["produced"] >= steps
    assert summary["received"] == summary["env_steps"] == sum(of["env_steps"] for of in summary["by_group"])
    assert summary["averaging"]["rounds"] > 0
    assert summary["averaging"]["lost"] == []
    assert summary["rejected_frames"] == 0
