"""`tianji bench`: measures the transports, on this host or over the ranks of an MPI launcher."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

from tianji_cli.conditions import check_machine
from tianji_cli.files.directories import remove_stale
from tianji_cli.launch.mpi import World, run_again_under_mpiexec
from tianji_cli.launch.ranks import Launch, launched
from tianji_cli.quantities import size
from tianji_cli.runs.results import check_places, print_header
from tianji_cli.signals import STOP_SIGNALS
from tianji_cli.telemetry.progress import Progress
from tianji_cli.wire.address import link_mb_per_s
from tianji_lab.bench.raw.loop import memcpy_mb_per_s
from tianji_lab.bench.report import noisy_cases, print_crossings, print_records, result_of
from tianji_lab.bench.request import Request, message_bytes
from tianji_lab.bench.sweep import Sweep
from tianji_lab.bench.worker import take_part
from tianji_lab.bench.workers import BenchWorkers, local_workers, mpi_workers
from tianji_lab.environment import busy_share, describe, warnings


def bench(asked: Request, *, out: Path | None, json_to: str | None, quiet: bool) -> int:
    """Measure, and show the results.

    If mpiexec or srun starts several tasks, all ranks call this function, and the first leads. A request that
    names ``mpi`` starts itself again under mpiexec.

    Returns:
        The exit status: 0, or that of mpiexec.

    Raises:
        UsageError: the request cannot be measured here.
        TrialFailed: a message was missing or wrong, or a process died: there are no figures.
    """
    launch = launched()
    if launch is not None and launch.rank > 0:
        return _serve(launch)
    with ExitStack() as stack:
        world = stack.enter_context(World(launch)) if launch is not None and launch.size > 1 else None
        check_places(out, json_to)
        remove_stale()
        check_machine()
        if world is None:
            request = asked.complete(["here"], can_start=True)
            if any("mpi" in case.engines for case in request.cases):
                # Under mpiexec, the default is one actor for each rank but the first.
                counts = [word for count in request.actors for word in ("--actors", str(count))]
                more = counts if asked.experiment in {"comm", "weights"} else []
                status = run_again_under_mpiexec(max(request.actors) + 1, more)
                return status if status >= 0 else 128 - status
            workers = stack.enter_context(local_workers(max(request.actors)))
        else:
            request = asked.complete([host.name for host in world.hosts], can_start=False)
            workers = stack.enter_context(mpi_workers(world))
        _measure(workers, request, out=out, json_to=json_to, quiet=quiet)
    return 0


def _serve(launch: Launch) -> int:
    """Be a rank other than the first."""
    for number in STOP_SIGNALS:  # The leading process receives them as well, and acts on them.
        signal.signal(number, signal.SIG_IGN)
    world = World(launch)
    root = world.brief(None)
    if root is not None and not take_part(root, f"rank {world.rank}"):
        world.abort("the leading process is gone")
    return 0


def _measure(
    workers: BenchWorkers, request: Request, *, out: Path | None, json_to: str | None, quiet: bool
) -> None:
    busy = busy_share()
    memcpy = {kb: memcpy_mb_per_s(message_bytes(kb)) for kb in request.sizes_kb} if request.raw else {}
    with Progress(0, quiet) as progress:
        sweep = Sweep(workers, request, progress)
        progress.total = sweep.steps
        records = sweep.measure()
    environment = describe(request.backends, busy, hosts=workers.hosts, clock_error_us=workers.clock_error_us)
    for kb, rate in memcpy.items():
        environment[f"memcpy of one core, {size(message_bytes(kb))}"] = f"{rate:.0f} MB/s"
    link = request.link_mb_per_s or link_mb_per_s(workers.interface)
    if len(workers.hosts) > 1:
        environment["link"] = f"{link:g} MB/s" if link else "of unknown speed (--link-mb names it)"
    cautions = [*warnings(busy), *noisy_cases(records)]
    name = f"figure-{request.figure}" if request.figure else request.experiment
    of_link = link if len(workers.hosts) > 1 else None
    result_of(name, environment, records, cautions, link_mb_per_s=of_link).hand_over(out=out, json_to=json_to)
    if json_to != "-":
        print_header(environment, cautions)
        print_records(records)
        print_crossings(records)
