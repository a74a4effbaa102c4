"""`tianji bench scaling`: its command line. Imports next to nothing: `tianji --help` reads it too."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from tianji_cli.commands.bench_options import Config, Json, Out, Override, Quiet, Threshold

SECONDS: Final = 20.0
"""Of a training."""
REPEATS: Final = 3
"""As in the paper."""
NODE_CORES: Final = 40
"""Of each node of the paper's cluster."""
LINK_MB_PER_S: Final = 1250.0
"""Of the link of each simulated node: 10 Gbit/s."""


class FigureName(enum.StrEnum):
    """A figure or table of the paper about growing with the cores."""

    ACTORS = "6a"
    LARGER_BATCHES = "6b"
    GROUPS = "6c"
    TIME = "4c"
    TABLE = "table1"
    CURVES = "12b"


Figure = Annotated[
    FigureName,
    typer.Option(
        help="Against actors (6a), with larger batches (6b), groups (6c); time to a return (4c); "
        "two learners and 2 to 24 actors (table1 and 12b, one run)."
    ),
]
Actors = Annotated[list[int] | None, typer.Option(metavar="N", min=1, help="Of a group; repeatable.")]
Groups = Annotated[list[int] | None, typer.Option(metavar="N", min=1, help="How many; repeatable.")]
Learners = Annotated[int | None, typer.Option(metavar="N", min=1, help="Of a group.")]
LearnerCores = Annotated[int | None, typer.Option(metavar="N", min=1, help="Of each learner.")]
Repeats = Annotated[int, typer.Option(metavar="N", min=1, help="Trainings of each point.")]
Seconds = Annotated[float, typer.Option(metavar="S", help="That each training lasts.")]
Earlier = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="JSON", help="Simulate from what `tianji profile --json` or this has measured."
    ),
]
NoSimulation = Annotated[bool, typer.Option("--no-simulation", help="Train only.")]
Nodes = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Simulated at most; what is needed by default.")
]
NodeCores = Annotated[
    int | None, typer.Option(metavar="M", min=1, help=f"Of a simulated node; {NODE_CORES} by default.")
]
LinkMB = Annotated[
    float | None,
    typer.Option(
        metavar="MB/S",
        min=0.001,
        help=f"What the link of a simulated node carries; {LINK_MB_PER_S:g} by default.",
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


def scaling(  # noqa: PLR0913, PLR0917 - the options of a command are its parameters
    config: Config,
    figure: Figure = FigureName.ACTORS,
    actors: Actors = None,
    groups: Groups = None,
    learners: Learners = None,
    learner_cores: LearnerCores = None,
    repeats: Repeats = REPEATS,
    threshold: Threshold = None,
    seconds: Seconds = SECONDS,
    set_: Override = None,
    earlier: Earlier = None,
    no_simulation: NoSimulation = False,
    nodes: Nodes = None,
    node_cores: NodeCores = None,
    link_mb: LinkMB = None,
    hosts: Hosts = None,
    join_with: JoinWith = None,
    listen: Listen = None,
    out: Out = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """How throughput and time change with actors, learners and groups: Figures 4(c), 6, 12(b) and Table 1."""
    from tianji_cli.errors import UsageError  # noqa: PLC0415
    from tianji_lab.scaling.hosts import others_of  # noqa: PLC0415
    from tianji_lab.scaling.report import compare  # noqa: PLC0415
    from tianji_lab.scaling.simulation import Machines  # noqa: PLC0415
    from tianji_lab.scaling.study import Request, plan_study  # noqa: PLC0415

    if no_simulation:
        _refuse({"--nodes": nodes, "--node-cores": node_cores, "--link-mb": link_mb, "--from": earlier})
    machines = None if no_simulation else Machines(nodes, node_cores or NODE_CORES, link_mb or LINK_MB_PER_S)
    names = None if hosts is None else [name for name in hosts.split(",") if name]
    others = others_of(names, join_with, listen)
    if others is not None and out is None:
        raise UsageError(
            "--hosts needs --out on a file system that all hosts see; others would take part: "
            + ", ".join(others.names)
        )
    request = Request(
        figure=figure.value,
        actors=tuple(actors or ()),
        groups=tuple(groups or ()),
        learners=learners,
        learner_cores=learner_cores,
        repeats=repeats,
        threshold=threshold,
        seconds=seconds,
        overrides=tuple(set_ or ()),
        others=others,
    )
    compare(plan_study(config, request), machines, earlier, out=out, json_to=json, quiet=quiet)


def _refuse(options: Mapping[str, object]) -> None:
    """Refuse options of the simulation where there is to be none."""
    from tianji_cli.errors import UsageError  # noqa: PLC0415

    for option, value in options.items():
        if value is not None:
            raise UsageError(f"{option} is of the simulation, and --no-simulation wants none")
