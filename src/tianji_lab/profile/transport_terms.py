"""What the job's transport takes for its messages: T_sd and T_rv of Equation 1, and the way of a policy.

`tianji bench` measures it in a process of its own, since an engine may have to be started by its launcher.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.launch.children import python_command, run_child
from tianji_lab.bench.contents import LEAST_BYTES, WORD
from tianji_lab.bench.record import KB, Experiment, Store
from tianji_lab.profile.probe.crew import ProbeFailed
from tianji_lab.profile.measurements import TransportFigures, WeightsFigures
from tianji_transports import registry

MESSAGES: Final = 300
FEWEST_MESSAGES: Final = 10
MOST_BYTES: Final = 200e6
"""What one run sends at most, if these are enough messages; and what is on its way at most."""
WINDOW: Final = 8
"""Messages on their way: so many that nobody waits for a wake-up, which is no work of either side."""
VERSIONS: Final = 50
END_S: Final = 0.3
"""How long it may take to end once nobody wants its figures; its own processes end with it."""
LIMIT_S: Final = 120.0
"""How long one measurement may take, in seconds."""


def measured_engines(job: JobConfig) -> list[str]:
    """List the engines of the job's edges that go from process to process, that inside a host first."""
    transport = job.distribution.transport
    engines = [transport.local, transport.remote] if job.distribution.hosts > 1 else [transport.local]
    return [engine for engine in dict.fromkeys(engines) if registry.load(engine).capabilities.cross_process]


def measure_messages(job: JobConfig, sizes: Sequence[int]) -> tuple[TransportFigures, ...]:
    """Measure how long messages take to send and to receive.

    Args:
        job: says which engines.
        sizes: of messages, in bytes.

    Returns:
        Figures for each engine and size; nothing if all roles share a process.

    Raises:
        ProbeFailed: `tianji bench` failed.
    """
    figures: list[TransportFigures] = []
    for engine in measured_engines(job):
        largest = max(sizes)
        window = str(max(1, min(WINDOW, int(MOST_BYTES / largest))))
        more = ["--messages", _affordable(MESSAGES, largest), "--window", window]
        rows = _rows("comm", engine, sizes, [*more, "--store", _store(engine)])
        figures += [
            TransportFigures(
                engine=engine,
                nbytes=round(row["msg_kb"] * KB),
                send_s=row["term_send_s"],
                receive_s=row["term_receive_s"],
            )
            for row in rows
        ]
    return tuple(figures)


def measure_policy(job: JobConfig, nbytes: int, readers: Sequence[int]) -> tuple[WeightsFigures, ...]:
    """Measure how long a policy takes until all actors of a host have it.

    Args:
        job: says which engine.
        nbytes: of the policy.
        readers: numbers of actors.

    Returns:
        Figures for each number; nothing if all roles share a process.

    Raises:
        ProbeFailed: `tianji bench` failed.
    """
    if job.distribution.transport.local not in measured_engines(job):
        return ()
    counts = [word for number in readers for word in ("--actors", str(number))]
    more = ["--messages", _affordable(VERSIONS, nbytes * max(readers)), *counts]
    rows = _rows("weights", job.distribution.transport.local, [nbytes], more)
    return tuple(WeightsFigures(actors=row["actors"], seconds=row["p50_us"] / 1e6) for row in rows)


def message_bytes(nbytes: int) -> int:
    """Round a size up to what `tianji bench` can check.

    >>> message_bytes(1001), message_bytes(3)
    (1008, 32)
    """
    return max(LEAST_BYTES, math.ceil(nbytes / WORD) * WORD)


def _store(engine: str) -> Store:
    """Say how fragments are received: where the engine has them, if it lends.

    The copy that a replay makes of them is in what its buffer's work costs, which is measured over an engine
    that lends. Over one that does not, the same copy is counted here, too: a little too much.
    """
    return "inplace" if registry.load(engine).capabilities.lends else "copy"


def _affordable(messages: int, nbytes: int) -> str:
    """Say how many messages a run has."""
    return str(max(FEWEST_MESSAGES, min(messages, int(MOST_BYTES / nbytes))))


def _rows(experiment: Experiment, engine: str, sizes: Sequence[int], more: Sequence[str]) -> list[Any]:
    asked = sorted({message_bytes(nbytes) for nbytes in sizes})
    # All digits: a size is a whole number of words again when it is read.
    in_kb = [word for nbytes in asked for word in ("--msg-kb", repr(nbytes / KB))]
    options = ["--backend", engine, *in_kb, *more, "--repeats", "1", "--quiet", "--json", "-"]
    said = _run(python_command("tianji_cli", "bench", experiment, *options), f"transport {engine!r}")
    try:
        rows: list[Any] = json.loads(said)["rows"]
    except (ValueError, KeyError, TypeError) as cause:
        raise ProbeFailed(
            f"transport {engine!r} was not measured: tianji bench printed no figures"
        ) from cause
    return rows


def _run(command: Sequence[str], what: str) -> str:
    try:
        ended = run_child(command, patience_s=END_S, limit_s=LIMIT_S)
    except TimeoutError as cause:
        raise ProbeFailed(f"{what} was not measured within {LIMIT_S:g} s") from cause
    if ended.status != 0:
        raise ProbeFailed(f"{what} cannot be measured:\n{ended.last_words}")
    return ended.output
