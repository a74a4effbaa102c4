"""Options that all of `tianji bench` has. Imports next to nothing: `tianji --help` reads it too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write the figures, and what they are drawn from, into DIR."),
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="PATH", help="Write the figures as JSON; - is stdout.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
