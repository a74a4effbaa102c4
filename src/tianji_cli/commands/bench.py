"""The command line of `tianji bench`. Imports next to nothing, since `tianji --help` imports this module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from tianji_cli.commands.options import Config, Json, Out, Override, Quiet, Threshold

app = typer.Typer(
    help="Measure the transports: here, under mpiexec, or under Slurm (srun --mpi=pmi2); or whole trainings.",
    no_args_is_help=True,
)

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
Store = Annotated[
    Literal["copy", "inplace"], typer.Option(help="Copy messages into own memory, or read them in place.")
]


@app.command()
def comm(  # noqa: PLR0913, PLR0917 - the options of a command are its parameters
    backends: Backends = None,
    sizes_kb: Sizes = None,
    actors: Actors = None,
    sample_times_s: Annotated[
        list[float] | None,
        typer.Option(
            "--sample-time",
            metavar="S",
            min=0.0,
            help="Seconds that an actor takes for a sample; repeatable.",
        ),
    ] = None,
    messages: Messages = None,
    work: Annotated[Literal["sleep", "busy"], typer.Option(help="How actors pass that time.")] = "sleep",
    store: Store = "copy",
    figure: Annotated[
        Literal["5a", "5b", "5c", "5d"] | None,
        typer.Option(help="A part of the paper's Figure 5; other options replace its own."),
    ] = None,
    raw: Raw = False,
    window: Window = 8,
    repeats: Repeats = 3,
    link_mb_per_s: Annotated[
        float | None,
        typer.Option(
            "--link-mb",
            metavar="MB/S",
            min=0.001,
            help="What the link between hosts carries, if its driver does not know.",
        ),
    ] = None,
    out: Out = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """The paper's virtual communication experiment: actors make samples, a buffer stores 10,000 of them.

    Example: tianji bench comm --backend shm --backend zmq
    """
    _run("comm", **locals())


@app.command()
def latency(
    backends: Backends = None,
    sizes_kb: Sizes = None,
    messages: Messages = None,
    repeats: Repeats = 3,
    out: Out = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Half of a round trip between two processes.

    Example: tianji bench latency --backend shm
    """
    _run("latency", **locals())


@app.command()
def bandwidth(  # noqa: PLR0913, PLR0917
    backends: Backends = None,
    sizes_kb: Sizes = None,
    messages: Messages = None,
    store: Store = "copy",
    raw: Raw = False,
    window: Window = 64,
    repeats: Repeats = 3,
    out: Out = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Bandwidth from one sender to one receiver, in windows that the receiver acknowledges.

    Example: tianji bench bandwidth
    """
    _run("bandwidth", **locals())


@app.command()
def weights(
    backends: Backends = None,
    sizes_kb: Sizes = None,
    actors: Actors = None,
    messages: Messages = None,
    repeats: Repeats = 3,
    out: Out = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Time until the slowest actor has a learner's new parameters.

    Example: tianji bench weights
    """
    _run("weights", **locals())


def _run(experiment: Any, out: Path | None, json: str | None, quiet: bool, **options: Any) -> None:
    """Measure with the given options, whose names are those of a request's fields."""
    from tianji_lab.bench.request import Request  # noqa: PLC0415
    from tianji_lab.bench.run import bench  # noqa: PLC0415

    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    raise typer.Exit(bench(Request(experiment=experiment, **given), out=out, json_to=json, quiet=quiet))


@app.command()
def staleness(  # noqa: PLR0913, PLR0917 - the options of a command are its parameters
    config: Config,
    lag: Annotated[
        list[int] | None,
        typer.Option(metavar="K", min=1, help="Rollouts that the buffer holds, 1 for New; repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="Trainings of each setting.")] = 5,
    threshold: Threshold = None,
    figure: Annotated[
        Literal["12a", "6d"],
        typer.Option(help="12a: several lags. 6d: New and Lag8, each in two mappings."),
    ] = "12a",
    poor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECTION.KEY=VALUE",
            help="A setting of 6d's poor mapping; repeatable. 4 actors a core by default.",
        ),
    ] = None,
    set_: Override = None,
    out: Out = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Cost of stale samples to a training from rollouts: the paper's Figures 12(a) and 6(d)."""
    from tianji_lab.staleness.report import compare  # noqa: PLC0415
    from tianji_lab.staleness.study import plan_comparison  # noqa: PLC0415
    from tianji_lab.training import lasting_config  # noqa: PLC0415

    with lasting_config(config) as lasting:
        comparison = plan_comparison(
            lasting,
            figure=figure,
            lags=lag or (),
            seeds=seeds,
            threshold=threshold,
            overrides=set_ or (),
            poor=poor or (),
        )
        compare(comparison, out=out, json_to=json, quiet=quiet)


SECONDS: Final = 20.0
"""Default length of a training."""
REPEATS: Final = 3
"""Default trainings of each point, as in the paper."""
NODE_CORES: Final = 40
"""Cores of a node of the paper's cluster."""
LINK_MB_PER_S: Final = 1250.0
"""Speed of a predicted node's link: 10 Gbit/s."""


ScalingFigure = Annotated[
    Literal["6a", "6b", "6c", "4c", "table1", "12b"],
    typer.Option(
        "--figure",
        help="Against actors (6a), with larger batches (6b), groups (6c); time to a return (4c); "
        "two learners and 2 to 24 actors (table1 and 12b, one run).",
    ),
]
GroupActors = Annotated[
    list[int] | None, typer.Option("--actors", metavar="N", min=1, help="Of a group; repeatable.")
]
Groups = Annotated[list[int] | None, typer.Option(metavar="N", min=1, help="How many; repeatable.")]
Learners = Annotated[int | None, typer.Option(metavar="N", min=1, help="Of a group.")]
LearnerCores = Annotated[int | None, typer.Option(metavar="N", min=1, help="Of each learner.")]
Trainings = Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Trainings of each point.")]
Seconds = Annotated[float, typer.Option(metavar="S", help="That each training lasts.")]
Earlier = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="JSON", help="Predict from what `tianji profile --json` or this has measured."
    ),
]
NoPrediction = Annotated[bool, typer.Option("--no-prediction", help="Train only.")]
Nodes = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Predicted at most; what is needed by default.")
]
NodeCores = Annotated[
    int | None, typer.Option(metavar="M", min=1, help=f"Of a predicted node; {NODE_CORES} by default.")
]
NodeLink = Annotated[
    float | None,
    typer.Option(
        "--link-mb",
        metavar="MB/S",
        min=0.001,
        help=f"What the link of a predicted node carries; {LINK_MB_PER_S:g} by default.",
    ),
]
Hosts = Annotated[
    str | None,
    typer.Option(
        metavar="H,H..", help="Other hosts that take part; a Slurm allocation's by default; needs --out."
    ),
]
JoinWith = Annotated[
    str | None,
    typer.Option(metavar="CMD", help="Command that runs another on {host}; ssh, or Slurm's srun."),
]
Listen = Annotated[
    str | None, typer.Option(metavar="HOST", help="Name or address where they reach this host.")
]


@app.command()
def scaling(  # noqa: PLR0913 - the options of a command are its parameters
    config: Config,
    *,
    figure: ScalingFigure = "6a",
    actors: GroupActors = None,
    groups: Groups = None,
    learners: Learners = None,
    learner_cores: LearnerCores = None,
    repeats: Trainings = REPEATS,
    threshold: Threshold = None,
    seconds: Seconds = SECONDS,
    set_: Override = None,
    earlier: Earlier = None,
    no_prediction: NoPrediction = False,
    nodes: Nodes = None,
    node_cores: NodeCores = None,
    link_mb: NodeLink = None,
    hosts: Hosts = None,
    join_with: JoinWith = None,
    listen: Listen = None,
    out: Out = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Throughput and time over actors, learners and groups: Figures 4(c), 6, 12(b) and Table 1."""
    from tianji_cli.errors import UsageError  # noqa: PLC0415
    from tianji_lab.scaling.hosts import others_of  # noqa: PLC0415
    from tianji_lab.scaling.prediction import Machines  # noqa: PLC0415
    from tianji_lab.scaling.report import compare  # noqa: PLC0415
    from tianji_lab.scaling.study import Request, plan_study  # noqa: PLC0415
    from tianji_lab.training import lasting_config  # noqa: PLC0415

    predicted = {"--nodes": nodes, "--node-cores": node_cores, "--link-mb": link_mb, "--from": earlier}
    for option, value in predicted.items():
        if no_prediction and value is not None:
            raise UsageError(f"{option} needs the prediction: leave out --no-prediction")
    machines = None if no_prediction else Machines(nodes, node_cores or NODE_CORES, link_mb or LINK_MB_PER_S)
    request = Request(
        figure=figure,
        actors=tuple(actors or ()),
        groups=tuple(groups or ()),
        learners=learners,
        learner_cores=learner_cores,
        repeats=repeats,
        threshold=threshold,
        seconds=seconds,
        overrides=tuple(set_ or ()),
        others=others_of(None if hosts is None else [*filter(None, hosts.split(","))], join_with, listen),
    )
    with lasting_config(config) as lasting:
        compare(plan_study(lasting, request), machines, earlier, out=out, json_to=json, quiet=quiet)
