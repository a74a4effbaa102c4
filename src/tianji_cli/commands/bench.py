"""`tianji bench`: measures the transports, on this host or over the ranks of an MPI launcher."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tianji_cli.errors import TianjiError
from tianji_cli.files.directories import remove_stale
from tianji_cli.launch.mpi import Launch, World, launched, run_again_under_mpiexec
from tianji_cli.quantities import size
from tianji_cli.signals import STOP_SIGNALS
from tianji_cli.telemetry.report import write_json
from tianji_cli.wire.address import link_mb_per_s
from tianji_lab.bench.ensemble import Ensemble, local_ensemble, mpi_ensemble
from tianji_lab.bench.figures import FIGURE_KB, Figure, figure_named
from tianji_lab.bench.partner import take_part
from tianji_lab.bench.raw.loop import memcpy_mb_per_s
from tianji_lab.bench.record import KB, ExperimentName, Record, Store, Work
from tianji_lab.bench.report import document, print_header, print_records, write_all
from tianji_lab.bench.sweep import Request, Sweep, default_backends, message_bytes
from tianji_lab.environment import busy_share, describe, warnings
from tianji_lab.progress import Progress

SIZES_KB: Final[Mapping[ExperimentName, Sequence[float]]] = {
    "comm": (FIGURE_KB,),
    "latency": (0.0625, 0.25, 1, 4, 16, 64, 256, 1024),
    "bandwidth": (0.0625, 0.25, 1, 4, 16, 64, 256, 1024, 4096),
    "weights": (64, 256, 1024, 4096, 16384, 65536),
}
"""What is measured unless the user says so."""


@dataclass(frozen=True)
class Options:
    """What the command line says; None and () leave it to the experiment or the figure.

    Attributes:
        experiment: what is measured.
        backends: engines.
        sizes_kb: of messages, in KB of 1024 bytes.
        actors: numbers of partners.
        sample_times_s: what actors take for a sample.
        messages: of one run.
        work: how an actor passes the time of a sample.
        store: whether the receiver copies messages into its own memory.
        window: messages that a sender may have unclaimed.
        repeats: runs of each case.
        figure: the paper's.
        raw: measure raw loops beside.
        link_mb_per_s: what the link between two hosts carries; None asks its driver.
    """

    experiment: ExperimentName
    backends: Sequence[str] = ()
    sizes_kb: Sequence[float] = ()
    actors: Sequence[int] = ()
    sample_times_s: Sequence[float] = ()
    messages: int | None = None
    work: Work = "sleep"
    store: Store = "copy"
    window: int = 8
    repeats: int = 3
    figure: str | None = None
    raw: bool = False
    link_mb_per_s: float | None = None

    def request(self, hosts: Sequence[str], *, can_start: bool) -> Request:
        """Fill in what the user left open.

        Args:
            hosts: where each process is, the leading one first.
            can_start: there may be as many more on this host as are wanted.

        Raises:
            UsageError: it cannot be measured with these processes.
        """
        crossing = len(set(hosts)) > 1
        most = None if can_start else len(hosts) - 1
        if self.figure is not None:
            preset = figure_named(self.figure, len(set(hosts)), most)
        else:
            counts = _counts(self.experiment, most)
            preset = Figure(SIZES_KB[self.experiment], counts, (0.0,), "")
        request = Request(
            experiment=self.experiment,
            backends=list(dict.fromkeys(self.backends)) or default_backends(crossing),
            sizes_kb=list(dict.fromkeys(self.sizes_kb)) or preset.sizes_kb,
            actors=list(dict.fromkeys(self.actors)) or preset.actors,
            messages=self.messages,
            sample_times_s=list(dict.fromkeys(self.sample_times_s)) or preset.sample_times_s,
            window=self.window,
            work=self.work,
            store=self.store,
            repeats=self.repeats,
            raw=self.raw,
            figure=self.figure,
        )
        request.check(hosts, can_start=can_start)
        return request


def _counts(experiment: ExperimentName, most: int | None) -> Sequence[int]:
    """How many partners take part unless the user says so: all that a launcher has started, where it has."""
    if experiment in {"latency", "bandwidth"}:
        return (1,)
    if most is not None:
        return (most,)
    return (1, 4) if experiment == "weights" else (1,)


def bench(options: Options, *, out: Path | None, json_to: str | None, quiet: bool) -> int:
    """Measure, and show what was measured.

    Started by mpiexec or srun with several tasks, all ranks come here: the first leads. A request that names
    ``mpi`` starts itself under mpiexec.

    Args:
        options: what is asked for.
        out: directory for CSV, JSON and PNG files.
        json_to: file for the figures as JSON, ``-`` for stdout.
        quiet: show no progress.

    Returns:
        The exit status, 0.

    Raises:
        UsageError: it cannot be measured here.
        TrialFailed: a message was missing or wrong, or a process died: there are no figures.
    """
    launch = launched()
    if launch is not None and launch.rank > 0:
        return _serve(launch)
    with ExitStack() as stack:
        world = stack.enter_context(World(launch)) if launch is not None and launch.size > 1 else None
        check_places(out, json_to)
        remove_stale()
        if world is None:
            request = options.request([_HERE], can_start=True)
            if any("mpi" in case.engines for case in request.cases):
                # There, as many actors as ranks would be the default.
                counts = [word for count in request.actors for word in ("--actors", str(count))]
                more = counts if options.experiment in {"comm", "weights"} else []
                status = run_again_under_mpiexec(max(request.actors) + 1, more)
                return status if status >= 0 else 128 - status
            ensemble = stack.enter_context(local_ensemble(max(request.actors)))
        else:
            request = options.request([host.name for host in world.hosts], can_start=False)
            ensemble = stack.enter_context(mpi_ensemble(world))
        _measure(ensemble, request, options, out=out, json_to=json_to, quiet=quiet)
    return 0


_HERE: Final = "here"


def check_places(out: Path | None, json_to: str | None) -> None:
    """Refuse, before anything is measured, to write where nothing can be written.

    Args:
        out: directory for several files, made if missing.
        json_to: a file, ``-`` for stdout.

    Raises:
        TianjiError: it says where.
    """
    folder = None if json_to is None or json_to == "-" else Path(json_to).parent
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise TianjiError(
            f"cannot write into {out}: {cause.strerror}; --out takes another directory"
        ) from cause
    for option, place in (("--out", out), ("--json", folder)):
        if place is not None and not (place.is_dir() and os.access(place, os.W_OK)):
            raise TianjiError(f"cannot write into {place}: {option} takes another place")


def _serve(launch: Launch) -> int:
    """Be one of the ranks but the first."""
    for number in STOP_SIGNALS:
        signal.signal(
            number, signal.SIG_IGN
        )  # They reach the leading process as well, whose business they are.
    world = World(launch)
    root = world.brief(None)
    if root is not None and not take_part(root, f"rank {world.rank}"):
        world.abort("the leading process is gone")
    return 0


def _measure(
    ensemble: Ensemble,
    request: Request,
    options: Options,
    *,
    out: Path | None,
    json_to: str | None,
    quiet: bool,
) -> None:
    busy = busy_share()
    memcpy = {kb: memcpy_mb_per_s(message_bytes(kb)) for kb in request.sizes_kb} if request.raw else {}
    with Progress(0, quiet) as progress:
        sweep = Sweep(ensemble, request, progress)
        progress.total = sweep.steps
        records = sweep.measure()
    environment = describe(request.backends, ensemble.hosts, ensemble.clock_error_us, busy)
    for kb, rate in memcpy.items():
        environment[f"memcpy of one core, {size(message_bytes(kb))}"] = f"{rate:.0f} MB/s"
    link = options.link_mb_per_s or link_mb_per_s(ensemble.interface)
    if len(ensemble.hosts) > 1:
        environment["link"] = f"{link:g} MB/s" if link else "of unknown speed (--link-mb names it)"
    cautions = warnings(busy, records)
    if json_to != "-":
        print_header(environment, cautions)
        print_records(records)
        _print_crossings(records)
    if json_to is not None:
        write_json(document(environment, records, cautions), json_to)
    if out is not None:
        name = f"figure-{request.figure}" if request.figure else request.experiment
        write_all(
            out,
            name,
            environment,
            records,
            cautions,
            link_mb_per_s=link if len(ensemble.hosts) > 1 else None,
        )


def _print_crossings(records: Sequence[Record]) -> None:
    """Return where the critical path moves from the actors to the buffer, by Equation 1."""
    said = set()
    for record in records:
        where = (record.backend, record.msg_kb, record.sample_time_s)
        if record.crossing_actors is None or not record.sample_time_s or where in said:
            continue
        said.add(where)
        assert record.term_sample_s is not None
        assert record.term_send_s is not None
        assert record.term_receive_s is not None
        sys.stdout.write(
            f"{record.backend}, {size(record.msg_kb * KB)}, sample time {record.sample_time_s:g} s: "
            "the critical path moves from the actors to the buffer at "
            f"{record.crossing_actors} actors (T_sp {1e3 * record.term_sample_s:.3f} ms, "
            f"T_sd {1e6 * record.term_send_s:.1f} us, T_rv {1e6 * record.term_receive_s:.1f} us)\n"
        )
