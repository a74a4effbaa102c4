"""`tianji cp`: copies a config that comes with tianji, so that it can be changed."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from tianji_cli.commands.completion import shipped
from tianji_cli.config.source import shipped_configs
from tianji_cli.errors import TianjiError, UsageError, os_errors_as
from tianji_cli.files.rundir import write_whole
from tianji_cli.telemetry.report import print_lines
from tianji_plugins import nearest

ShippedConfig = Annotated[
    str,
    typer.Argument(metavar="CONFIG", help="Name of a config; tianji list configs.", autocompletion=shipped),
]
Target = Annotated[
    Path | None, typer.Argument(metavar="[PATH]", help="File or directory; here, under its name, by default.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]


def cp(config: ShippedConfig, path: Target = None, *, force: Force = False) -> int:
    """Copy a config with its comments; what it extends stays the one that comes with tianji.

    Example: tianji cp ppo_cartpole my_config.toml

    Raises:
        UsageError: there is no such config, or a file is there already.
        TianjiError: the copy cannot be written.
    """
    known = shipped_configs()
    name = f"configs/{Path(config).name.removesuffix('.toml')}.toml"
    source = known.get(name)
    if source is None or Path(config).parent.name not in {"", "configs"}:
        near = nearest(Path(name).stem, [Path(one).stem for one in known])
        hint = f"did you mean {near[0]!r}?" if near else "`tianji list configs` names them"
        raise UsageError(f"no config {config!r} comes with tianji; {hint}")
    target = Path(path or ".").expanduser()
    if target.is_dir():
        target /= source.name
    if os.path.lexists(target) and not force:
        raise UsageError(f"{target} is there already: name another path, or replace it with --force")
    # Another file of that name beside the copy must not replace the base.
    text = re.sub(
        r'^extends = "([^/"]+)"',
        r'extends = "configs/\1"',
        source.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    with os_errors_as(TianjiError, f"cannot write {target}"):
        write_whole(target, text.encode())
    written = shlex.quote(str(target))
    print_lines([f"tianji train {written}"], to_copy=True)
    return 0
