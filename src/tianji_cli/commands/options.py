"""Options that commands share. Imports next to nothing, since `tianji --help` imports this module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tianji_cli.commands import completion

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write the figures, and what they are drawn from, into DIR."),
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="PATH", help="Write the figures as JSON; - is stdout.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]

Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG", help="A TOML file, or a shipped one's name.", autocompletion=completion.configs
    ),
]
ConfigToTrain = Annotated[
    str | None,
    typer.Argument(
        metavar="[CONFIG]", help="A TOML file, or a shipped one's name.", autocompletion=completion.configs
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="RUN", help="Go on with a run from its last checkpoint.", autocompletion=completion.runs
    ),
]
Override = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Replace a setting; repeatable.",
        autocompletion=completion.keys,
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(metavar="RETURN", help="Time to this mean return; the config's first by default."),
]

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Path of a run, NAME/N, or NAME for its newest.", autocompletion=completion.runs
    ),
]
SeveralRuns = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Paths of runs, or of directories of them; NAME/N, NAME/seeds-N, or NAME for its newest.",
        autocompletion=completion.compared,
    ),
]
Runs = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Runs are in DIR, not experiments/.")]
Name = Annotated[str | None, typer.Option(help="Name of the experiment.")]
