"""`tianji new`: makes a project to begin with: an environment, a config, a test and a README."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from tianji_cli.errors import TianjiError, UsageError
from tianji_cli.telemetry.report import print_lines

PROJECT: Final = Path(__file__).with_name("project")
"""Directory of the files to copy; NAME in them stands for the project's name."""

FILES: Final = ("README.md", "config.toml", "my_env.py", "pytest.ini", "test_training.py")

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="To be made; it may be there if it is empty.")]


def new(directory: Directory) -> int:
    """Make a project that trains as it is.

    Example: tianji new my_project

    Raises:
        UsageError: the directory has something in it, or is none.
        TianjiError: it cannot be written.
    """
    place = directory.expanduser()
    # A run's name allows fewer characters than a directory's.
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", place.absolute().name).strip("_-") or "project"
    try:
        place.mkdir(parents=True, exist_ok=True)
        there = next(place.iterdir(), None)
        if there is not None:
            raise UsageError(f"{place} is not empty, it has {there.name}: name a new directory")
        for file in FILES:
            text = (PROJECT / file).read_text(encoding="utf-8").replace("NAME", name)
            (place / file).write_text(text, encoding="utf-8")
    except FileExistsError as cause:
        raise UsageError(f"{place} is a file: name a new directory") from cause
    except OSError as cause:
        raise TianjiError(f"cannot make {cause.filename or place}: {cause.strerror}") from cause
    print_lines(
        [
            f"cd {shlex.quote(str(place))}",
            "tianji check my_env:Docking    # what would go wrong with the environment",
            "tianji train config.toml       # README.md says more",
        ],
        to_copy=True,
    )
    return 0
