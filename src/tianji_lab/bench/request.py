"""Requests of `tianji bench`: parts of the paper's Figure 5, defaults, and the cases that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tianji_cli.errors import UsageError
from tianji_cli.launch.mpi import has_mpiexec
from tianji_cli.quantities import several
from tianji_lab.bench.contents import LEAST_BYTES, WORD
from tianji_lab.bench.experiment import Case
from tianji_lab.bench.raw.loop import LOOPS
from tianji_lab.bench.record import KB, ExperimentName, Store, Work
from tianji_transports import registry
from tianji_transports.composite import edge_capabilities
from tianji_transports.errors import TransportError

OUR_ENGINES: Final = ("shm", "zmq", "mpi", "ucx")
"""Built-in engines, in the order in which they are measured."""
FIGURE_KB: Final = 512.0
POWERS_KB: Final = tuple(float(1 << power) for power in range(14))
"""Message sizes of 1 KB to 8 MB, in KB."""
COUNTS: Final = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Figure:
    """Axes of a part of Figure 5.

    Attributes:
        hosts: of the processes: exactly one, exactly two, or at least two (``MANY``).
    """

    sizes_kb: Sequence[float]
    actors: Sequence[int]
    sample_times_s: Sequence[float]
    hosts: str


ONE, TWO, MANY = "one host", "two hosts", "several hosts"

FIGURES: Final[Mapping[str, Figure]] = {
    "5a": Figure(POWERS_KB, (1,), (0.0,), ONE),
    "5b": Figure((FIGURE_KB,), COUNTS, (0.001, 0.01), ONE),
    "5c": Figure((FIGURE_KB,), COUNTS, (0.001, 0.01), MANY),
    "5d": Figure(POWERS_KB, (1,), (0.0,), TWO),
}


def figure_named(name: str, hosts: int, most_actors: int | None) -> Figure:
    """Find a figure, and fit it to the hosts and the actors that a launcher has started.

    Args:
        most_actors: that the launcher has started; None without a launcher.

    Raises:
        UsageError: there is no such figure, or it needs other hosts.
    """
    if name not in FIGURES:
        raise UsageError(f"no figure {name!r}; there are: {', '.join(FIGURES)}")
    figure = FIGURES[name]
    fits = {ONE: hosts == 1, TWO: hosts == 2, MANY: hosts > 1}[figure.hosts]
    if not fits:
        where = f"these processes are on {several(hosts, 'host')}"
        raise UsageError(
            f"figure {name} is measured on {figure.hosts}, and {where}: start it so, "
            "such as mpiexec -hosts A,B -n 3 tianji bench ... or srun --mpi=pmi2 -N2 -n3 tianji bench ..."
            if figure.hosts != ONE
            else f"figure {name} is measured on one host, and {where}"
        )
    actors = [count for count in figure.actors if most_actors is None or count <= most_actors]
    return Figure(figure.sizes_kb, actors, figure.sample_times_s, figure.hosts)


SIZES_KB: Final[Mapping[ExperimentName, Sequence[float]]] = {
    "comm": (FIGURE_KB,),
    "latency": (0.0625, 0.25, 1, 4, 16, 64, 256, 1024),
    "bandwidth": (0.0625, 0.25, 1, 4, 16, 64, 256, 1024, 4096),
    "weights": (64, 256, 1024, 4096, 16384, 65536),
}
"""Default message sizes of each experiment, in KB."""


@dataclass(frozen=True)
class Request:
    """Request of a command; every combination is a case. None and () stand for the experiment's defaults.

    Attributes:
        backends: engines, in the order in which they take turns.
        sizes_kb: of messages, in KB of 1024 bytes.
        messages: that count in one run; None for fewer messages as sizes grow.
        window: messages that a sender may have unclaimed.
        store: whether the receiver copies messages into its own memory.
        figure: of the paper, ``5a`` to ``5d``; None for another.
        link_mb_per_s: speed of the link between two hosts; None asks its driver.
    """

    experiment: ExperimentName
    backends: Sequence[str] = ()
    sizes_kb: Sequence[float] = ()
    actors: Sequence[int] = ()
    messages: int | None = None
    sample_times_s: Sequence[float] = ()
    window: int = 8
    work: Work = "sleep"
    store: Store = "copy"
    repeats: int = 3
    raw: bool = False
    figure: str | None = None
    link_mb_per_s: float | None = None

    def complete(self, hosts: Sequence[str], *, can_start: bool) -> Request:
        """Fill in the defaults.

        Args:
            hosts: of the processes, the leading one's first.
            can_start: this host can start more processes.

        Raises:
            UsageError: the request cannot be measured with these processes.
        """
        crossing = len(set(hosts)) > 1
        most = None if can_start else len(hosts) - 1
        if self.figure is not None:
            preset = figure_named(self.figure, len(set(hosts)), most)
        else:
            preset = Figure(SIZES_KB[self.experiment], _counts(self.experiment, most), (0.0,), "")
        whole = replace(
            self,
            backends=list(dict.fromkeys(self.backends)) or default_backends(crossing, self.raw),
            sizes_kb=list(dict.fromkeys(self.sizes_kb)) or preset.sizes_kb,
            actors=list(dict.fromkeys(self.actors)) or preset.actors,
            sample_times_s=list(dict.fromkeys(self.sample_times_s)) or preset.sample_times_s,
        )
        whole.check(hosts, can_start=can_start)
        return whole

    @property
    def cases(self) -> list[Case]:
        """All cases; engines vary fastest, so that the engines of one point are measured side by side."""
        return [
            Case(
                experiment=self.experiment,
                backend=backend,
                nbytes=message_bytes(size),
                actors=actors,
                messages=self.messages or default_messages(self.experiment, message_bytes(size)),
                window=self.window,
                sample_time_s=sample_time,
                work=self.work,
                store=self.store,
            )
            for sample_time in self.sample_times_s
            for size in self.sizes_kb
            for actors in self.actors
            for backend in self.backends
        ]

    def check(self, hosts: Sequence[str], *, can_start: bool) -> None:
        """Refuse a request that cannot be measured.

        Raises:
            UsageError: names the problem, and the remedy.
        """
        if not all(math.isfinite(seconds) for seconds in self.sample_times_s):
            raise UsageError("--sample-time takes a finite number of seconds, such as 0.001")
        if self.experiment in {"latency", "bandwidth"} and set(self.actors) != {1}:
            raise UsageError(f"{self.experiment} is measured between two processes")
        most = max(self.actors)
        if most >= len(hosts) and not can_start:
            raise UsageError(
                f"{most} actors need {most + 1} processes, and the launcher has started {len(hosts)}: "
                f"mpiexec -n {most + 1}"
            )
        for case in self.cases:
            if case.backend.count("+") > 1 or "" in case.backend.split("+"):
                raise UsageError(f"--backend {case.backend}: write one engine, or two as in shm+zmq")
            try:
                can = edge_capabilities(*case.engines, dict(enumerate(hosts)))
            except TransportError as cause:
                raise UsageError(f"--backend {case.backend}: {cause}") from cause
            if not can.cross_process:
                raise UsageError(
                    f"transport {case.backend!r} stays inside a process; this measures what goes between two"
                )


def _counts(experiment: ExperimentName, most: int | None) -> Sequence[int]:
    """Default numbers of workers: all that a launcher has started, if there is one."""
    if experiment in {"latency", "bandwidth"}:
        return (1,)
    if most is not None:
        return (most,)
    return (1, 4) if experiment == "weights" else (1,)


def default_messages(experiment: ExperimentName, nbytes: int) -> int:
    """Default messages of a run: the paper's 10,000 for ``comm``, fewer as sizes grow for the others."""
    if experiment == "comm":
        return 10_000
    most, fewest, most_bytes = {
        "latency": (2000, 100, 512e6),
        "bandwidth": (10_000, 100, 2e9),
        "weights": (100, 10, 1e9),
    }[experiment]
    return int(max(fewest, min(most, most_bytes / nbytes)))


def message_bytes(size_kb: float) -> int:
    """Turn a size in KB of 1024 bytes into bytes.

    Raises:
        UsageError: the size is too small for a message's stamp and clock, or no multiple of 8 bytes.
    """
    nbytes = size_kb * KB
    if nbytes < LEAST_BYTES or nbytes % WORD:
        least = LEAST_BYTES / KB
        raise UsageError(
            f"--msg-kb {size_kb:g}: a message has at least {least:g} KB, and a multiple of {WORD} bytes"
        )
    return int(nbytes)


def default_backends(crossing: bool, raw: bool = False) -> list[str]:
    """List the engines that load and can be measured here, engines of other packages last.

    Args:
        crossing: messages go between hosts.
        raw: only engines that have a raw loop.
    """
    loads = {row.name: row.capabilities for row in registry.available()}
    if not crossing and not has_mpiexec():  # Without it mpi cannot be started here.
        loads.pop("mpi", None)
    return [
        name
        for name in dict.fromkeys((*OUR_ENGINES, *loads))
        if (can := loads.get(name)) is not None
        and can.cross_process
        and (can.cross_host or not crossing)
        and (name in LOOPS or not raw)
    ]
