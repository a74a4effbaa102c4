"""Minutes of deaths: memory stays flat, the books stay exact, nothing is left. Run by `nox -s soak`."""

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

MINUTES = 3.0
ACTORS = 6


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
