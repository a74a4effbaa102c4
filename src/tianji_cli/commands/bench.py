"""The command line of `tianji bench`. Imports next to nothing: `tianji --help` reads it too."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from tianji_cli.commands.bench_options import Json, Out, Quiet
from tianji_cli.commands.bench_scaling import scaling
from tianji_cli.commands.bench_staleness import staleness

app = typer.Typer(
    help="Measure the transports: here, under mpiexec, or under Slurm (srun --mpi=pmi2); or whole trainings.",
    no_args_is_help=True,
)


class Work(enum.StrEnum):
    """How an actor passes the time of a sample."""

    SLEEP = "sleep"
    BUSY = "busy"


class Store(enum.StrEnum):
    """What a receiver does with a message."""

    COPY = "copy"
    INPLACE = "inplace"


class FigureName(enum.StrEnum):
    """A part of the paper's Figure 5."""

    A = "5a"
    B = "5b"
    C = "5c"
    D = "5d"


Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend", metavar="T", help="shm, zmq, mpi, ucx, shm+zmq, ...; repeatable. All by default."
    ),
]
Sizes = Annotated[
    list[float] | None,
    typer.Option("--msg-kb", metavar="K", min=0.0, help="Message size in KB of 1024 bytes; repeatable."),
]
Actors = Annotated[
    list[int] | None, typer.Option("--actors", metavar="N", min=1, help="How many; repeatable.")
]
Messages = Annotated[int | None, typer.Option("--messages", metavar="N", min=1, help="Of each run.")]
Window = Annotated[int, typer.Option(min=1, help="Messages that a sender may have unclaimed.")]
Repeats = Annotated[int, typer.Option(min=1, help="Runs of each case; the median counts.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="Measure memcpy, and a plain loop over each engine's library, beside.")
]
StoreOption = Annotated[Store, typer.Option(help="Copy messages into own memory, or read them in place.")]


@app.command()
def comm(  # noqa: PLR0913, PLR0917 - the options of a command are its parameters
    backend: Backends = None,
    msg_kb: Sizes = None,
    actors: Actors = None,
    sample_time: Annotated[
        list[float] | None,
        typer.Option(metavar="S", min=0.0, help="Seconds that an actor takes for a sample; repeatable."),
    ] = None,
    messages: Messages = None,
    work: Annotated[Work, typer.Option(help="How actors pass that time.")] = Work.SLEEP,
    store: StoreOption = Store.COPY,
    figure: Annotated[
        FigureName | None, typer.Option(help="A part of the paper's Figure 5; other options replace its own.")
    ] = None,
    raw: Raw = False,
    window: Window = 8,
    repeats: Repeats = 3,
    link_mb: Annotated[
        float | None,
        typer.Option(
            metavar="MB/S",
            min=0.001,
            help="What the link between hosts carries, if its driver does not know.",
        ),
    ] = None,
    out: Out = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """The paper's virtual communication experiment: actors make samples, a buffer stores 10,000 of them."""
    _run(
        {
            "experiment": "comm",
            "backends": backend or (),
            "sizes_kb": msg_kb or (),
            "actors": actors or (),
            "sample_times_s": sample_time or (),
            "messages": messages,
            "work": work.value,
            "store": store.value,
            "window": window,
            "repeats": repeats,
            "figure": figure and figure.value,
            "raw": raw,
            "link_mb_per_s": link_mb,
        },
        out,
        json,
        quiet,
    )


@app.command()
def latency(
    backend: Backends = None,
    msg_kb: Sizes = None,
    messages: Messages = None,
    repeats: Repeats = 3,
    out: Out = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Half of a round trip between two processes."""
    _run(
        {
            "experiment": "latency",
            "backends": backend or (),
            "sizes_kb": msg_kb or (),
            "messages": messages,
            "repeats": repeats,
        },
        out,
        json,
        quiet,
    )


@app.command()
def bandwidth(  # noqa: PLR0913, PLR0917
    backend: Backends = None,
    msg_kb: Sizes = None,
    messages: Messages = None,
    store: StoreOption = Store.COPY,
    raw: Raw = False,
    window: Window = 64,
    repeats: Repeats = 3,
    out: Out = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """What one sender gets to one receiver, in windows that the receiver acknowledges."""
    _run(
        {
            "experiment": "bandwidth",
            "backends": backend or (),
            "sizes_kb": msg_kb or (),
            "messages": messages,
            "store": store.value,
            "raw": raw,
            "window": window,
            "repeats": repeats,
        },
        out,
        json,
        quiet,
    )


@app.command()
def weights(
    backend: Backends = None,
    msg_kb: Sizes = None,
    actors: Actors = None,
    messages: Messages = None,
    repeats: Repeats = 3,
    out: Out = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """From a learner to its actors: how long until the slowest has the new parameters."""
    _run(
        {
            "experiment": "weights",
            "backends": backend or (),
            "sizes_kb": msg_kb or (),
            "actors": actors or (),
            "messages": messages,
            "repeats": repeats,
        },
        out,
        json,
        quiet,
    )


app.command()(staleness)
app.command()(scaling)


def _run(options: dict[str, Any], out: Path | None, json: str | None, quiet: bool) -> None:
    from tianji_lab.bench.request import Request  # noqa: PLC0415
    from tianji_lab.bench.run import bench  # noqa: PLC0415

    raise typer.Exit(bench(Request(**options), out=out, json_to=json, quiet=quiet))
