"""Command line of `tianji profile`. Imports next to nothing, since `tianji --help` imports this module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tianji_cli.commands.options import Config, Json, Override, Quiet


def profile(  # noqa: PLR0913, PLR0917 - the options of a command are its parameters
    config: Config = "configs/ppo_cartpole.toml",
    cores: Annotated[
        int | None,
        typer.Option(metavar="M", min=1, help="Cores of each node; as many as measured by default."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="How many, like this one; the config's hosts by default."),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(metavar="G", min=1, help="Of each node, for learners on cuda.")
    ] = None,
    link_mb: Annotated[
        float | None,
        typer.Option(metavar="MB/S", help="What the link between nodes carries; else no limit."),
    ] = None,
    race_s: Annotated[
        float, typer.Option("--race-s", metavar="S", min=1, help="Seconds of the race.")
    ] = 60.0,
    verify: Annotated[
        bool, typer.Option("--verify", help="A longer race: five trainings with each of the candidates.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write the config with the recommended split.")
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="Take what an earlier profile's --json measured."),
    ] = None,
    set_: Override = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write profile.json and profile.png into DIR.")
    ] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Find how to split the cores between learners and actors: measure, predict, and race the best splits.

    Example: tianji profile ppo_cartpole --write split.toml

    Splits are trained with on this machine, for about a minute and a half in all.
    Those of other machines (--cores, --nodes, --gpus) are predicted; so is everything with --from.
    """
    from tianji_lab.profile.run import Options  # noqa: PLC0415
    from tianji_lab.profile.run import profile as run  # noqa: PLC0415
    from tianji_lab.training import lasting_config  # noqa: PLC0415

    with lasting_config(config) as lasting:
        options = Options(
            config=lasting,
            overrides=tuple(set_ or ()),
            cores=cores,
            nodes=nodes,
            gpus=gpus,
            link_mb_per_s=link_mb,
            race_s=race_s,
            verify=verify,
            write=write,
            out=out,
            earlier=from_,
            quiet=quiet,
            json_to=json,
        )
        status = run(options)
    raise typer.Exit(status)
