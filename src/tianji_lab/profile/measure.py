"""Measures the parts of a job on this machine: roles alone and side by side, and the transport between them.

The budget of ``BUDGET_S`` goes first to starting; what is left, but for the transport and the averaging of
gradients, is for the runs of ``rounds``. Those two come last: it is known then which sizes were measured.
`tianji bench` measures the transport in a process of its own, since an engine may have to be started by its
launcher.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.files.directories import temporary_directory
from tianji_cli.launch.children import python_command, run_child
from tianji_cli.limits import usable_cores
from tianji_cli.quantities import number
from tianji_cli.telemetry.progress import Progress
from tianji_lab.bench.contents import LEAST_BYTES, WORD
from tianji_lab.bench.record import KB, ExperimentName, Store
from tianji_lab.environment import busy_share, describe
from tianji_lab.model.costs import powers_of_two
from tianji_lab.profile.building import SHARES, Built, ProbeBuilds, Room, Subject, all_phases
from tianji_lab.profile.measurements import (
    AveragingFigures,
    Measured,
    Measurements,
    Repeated,
    TransportFigures,
    WeightsFigures,
)
from tianji_lab.profile.probe.pool import ProbeFailed, ProbePool, start_probes
from tianji_lab.profile.probe.protocol import Average, Averaged
from tianji_lab.profile.schedule import LEAST_ROUNDS, Schedule
from tianji_lab.profile.settings import fingerprint
from tianji_transports import registry

MESSAGES: Final = 300
FEWEST_MESSAGES: Final = 10
MOST_BYTES: Final = 200e6
"""What one run sends at most, if these are enough messages; and what is on its way at most."""
WINDOW: Final = 8
"""Messages on their way: so many that no side waits for a wake-up, which is no work of either side."""
VERSIONS: Final = 50
END_S: Final = 0.3
"""How long it may take to end once its figures are not wanted any more; its own processes end with it."""
LIMIT_S: Final = 120.0
"""How long one measurement may take, in seconds."""


def measured_engines(job: JobConfig) -> list[str]:
    """List the engines of the job's edges that go from process to process, that inside a host first."""
    transport = job.distribution.transport
    engines = [transport.local, transport.remote] if job.distribution.hosts > 1 else [transport.local]
    return [engine for engine in dict.fromkeys(engines) if registry.load(engine).capabilities.cross_process]


def measure_messages(job: JobConfig, sizes: Sequence[int]) -> tuple[TransportFigures, ...]:
    """Measure how long messages take to send and to receive.

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
    """Describe how fragments are received: where the engine has them, if it lends.

    The copy that a replay makes of them is in what its buffer's work costs, which is measured over an engine
    that lends. Over one that does not, the same copy is counted here, too: a little too much.
    """
    return "inplace" if registry.load(engine).capabilities.lends else "copy"


def _affordable(messages: int, nbytes: int) -> str:
    """Return how many messages a run has."""
    return str(max(FEWEST_MESSAGES, min(messages, int(MOST_BYTES / nbytes))))


def _rows(experiment: ExperimentName, engine: str, sizes: Sequence[int], more: Sequence[str]) -> list[Any]:
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
        ended, output = run_child(command, patience_s=END_S, limit_s=LIMIT_S)
    except TimeoutError as cause:
        raise ProbeFailed(f"{what} was not measured within {LIMIT_S:g} s") from cause
    if ended.status != 0:
        raise ProbeFailed(f"{what} cannot be measured:\n{ended.last_words}")
    return output


BUDGET_S: Final = 48.0
"""What measuring aims at, in seconds."""
TRANSPORT_S: Final = 4.0
"""Of it for the transport."""
AVERAGING_S: Final = 0.5
"""Of it for each number of learners that average gradients."""
AVERAGING_LIMIT_S: Final = 120.0
AVERAGINGS: Final = 200
FEWEST_AVERAGINGS: Final = 12
MOST_AVERAGED: Final = 40_000_000
"""Values that are averaged in all, if these are enough averagings."""
REPEATS_OF_AVERAGING: Final = 4
MOST_AVERAGING: Final = 8
"""Learners whose gradients are averaged, at most."""


def measure_here(
    subject: Subject, num_envs_options: Sequence[int], *, quiet: bool, budget_s: float = BUDGET_S
) -> Measured:
    """Measure a job's parts on all usable cores of this machine, and describe it; see ``measure``."""
    cores = list(usable_cores())
    with Progress(0, quiet) as progress:
        measurements = measure(subject, cores, num_envs_options, progress, budget_s)
    engine = subject.job.distribution.transport.local
    # MPI's version is MPI's to tell, and it would have to be initialised here for that.
    environment = describe([] if engine == "mpi" else [engine], ["here"], None, measurements.busy)
    return Measured(measurements, environment)


def measure(
    subject: Subject,
    cores: Sequence[int],
    num_envs_options: Sequence[int],
    progress: Progress,
    budget_s: float = BUDGET_S,
) -> Measurements:
    """Measure a job's parts.

    Args:
        num_envs_options: numbers of environments of an actor with which the config is valid.
        budget_s: what measuring aims at.

    Raises:
        ProbeFailed: something could not be measured, so there are no figures.
    """
    job = subject.job
    began = time.monotonic()
    busy = busy_share()
    room = Room.of(cores, job.distribution.actor.cores)
    shares = [share for share in SHARES if subject.divides_by(share)]
    phases = all_phases(room, subject.num_envs, num_envs_options, shares)
    with temporary_directory() as directory, start_probes(room.probes) as pool:
        most = min(len(pool), len(room.cores), MOST_AVERAGING)
        averaging = [size for size in powers_of_two(most) if size > 1]
        progress.total = len(phases) * LEAST_ROUNDS + len(averaging) + 2
        progress.begin(f"starting {len(pool)} processes and building what they run")
        builder = ProbeBuilds(pool, subject, directory)
        builder.start()
        progress.done(f"{time.monotonic() - began:.1f} s")
        rounds, built = Schedule(builder, room, progress), builder.built
        spent_s = time.monotonic() - began
        rounds.run(phases, budget_s - spent_s - TRANSPORT_S - AVERAGING_S * len(averaging))
        transport, weights = _transport(room, job, built, progress)
        store = directory / "averaging"
        averaged = tuple(_average(pool, room, built, size, store, progress) for size in averaging)
    return Measurements(
        config=subject.config,
        fingerprint=fingerprint(job),
        cores=len(cores),
        at_work=len(room.cores),
        rho=built.rho,
        parameters=built.parameters,
        fragment_bytes=dict(sorted(built.fragment_bytes.items())),
        batch_bytes=built.batch_bytes,
        policy_bytes=built.policy_bytes,
        startup_s=built.startup_s,
        busy=busy,
        actors=rounds.notebook.actors(),
        learners=rounds.notebook.learners(),
        sharing=rounds.notebook.sharing(),
        transport=transport,
        weights=weights,
        averaging=averaged,
        seconds=time.monotonic() - began,
        unmeasured=tuple(map(str, rounds.unmeasured)),
    )


def _transport(
    room: Room, job: JobConfig, built: Built, progress: Progress
) -> tuple[tuple[TransportFigures, ...], tuple[WeightsFigures, ...]]:
    """Measure what connects the roles, with messages of this job's sizes."""
    progress.begin(f"transport {job.distribution.transport.local}")
    sizes = [min(built.fragment_bytes.values()), max(built.fragment_bytes.values())]
    if built.batch_bytes and not job.distribution.buffer.colocate:
        sizes.append(built.batch_bytes)
    messages = measure_messages(job, sizes)
    most = max(1, room.actors_beside(1))
    weights = measure_policy(job, built.policy_bytes, sorted({1, most}))
    said = [f"{number(1e6 * (one.send_s + one.receive_s))} us" for one in messages]
    progress.done(", ".join(said) or "none: all roles share one process")
    return messages, weights


def _average(
    pool: ProbePool, room: Room, built: Built, size: int, store: Path, progress: Progress
) -> AveragingFigures:
    """Measure what so many learners take to average their gradients."""
    progress.begin(f"averaging of gradients among {size} learners")
    rounds = max(FEWEST_AVERAGINGS, min(AVERAGINGS, MOST_AVERAGED // max(built.parameters, 1)))
    steps = {
        rank: Average(
            rank=rank,
            size=size,
            store=f"{store}-{size}",
            values=built.parameters,
            rounds=rounds,
            cores=(room.cores[rank],),
        )
        for rank in range(size)
    }
    answers = pool.ask(steps, AVERAGING_LIMIT_S).values()
    by_rank = [answer.seconds for answer in answers if isinstance(answer, Averaged)]
    # All have the average when the last of them has it.
    last = [max(of_round) for of_round in zip(*by_rank, strict=True)]
    each = len(last) // REPEATS_OF_AVERAGING
    repeats = (last[first * each : (first + 1) * each] for first in range(REPEATS_OF_AVERAGING))
    seconds = Repeated(values=tuple(median(repeat) for repeat in repeats))
    progress.done(f"{number(1e6 * seconds.cost)} us")
    return AveragingFigures(learners=size, seconds=seconds)
