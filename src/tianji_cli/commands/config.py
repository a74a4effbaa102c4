"""`tianji config`: shows a config with every key, two configs' differences, or the JSON Schema. No torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tianji_cli.commands.completion import configs_and_runs
from tianji_cli.commands.options import Json, Override, Runs
from tianji_cli.config.loader import dump_config, fill_in_later_keys, resolve
from tianji_cli.config.source import KeyPath, Tree, differing, find_config, read, shown
from tianji_cli.errors import printable
from tianji_cli.files.rundir import DEFAULT_OUT, NoSuchRunError, RunDirectory
from tianji_cli.telemetry.tables import print_table, write_json

ConfigOrRun = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG", help="A TOML file, a shipped one's name, or a run.", autocompletion=configs_and_runs
    ),
]

ABSENT: Final = "-"
"""Cell of a key that a config does not have."""


def show(config: ConfigOrRun, *, overrides: Override = None, out: Runs = None) -> int:
    """Print a config as it would run, and where values come from that its file does not say.

    Its environment need not be installed.

    Example: tianji config show ppo_cartpole --set environment.num_envs=8

    Raises:
        ConfigError: it cannot be run.
    """
    import tomlkit  # noqa: PLC0415 - only this command writes comments

    tree = _read(config, overrides or (), out)
    job = resolve(tree, to_run=False)
    document = tomlkit.parse(dump_config(job))
    for path, value in _values(document, ()):
        origin = _origin(tree, path)
        if origin:
            value.comment(printable(origin))
    sys.stdout.writelines(f"# {printable(note)}\n" for note in job.notes)
    sys.stdout.write(tomlkit.dumps(document))
    return 0


def _values(table: Any, at: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the values below a container of tomlkit, with their paths."""
    for key in table:
        value = table.item(key)
        is_table = isinstance(value, Mapping)
        if is_table:
            yield from _values(value.value, (*at, key))
        else:
            yield (*at, key), value


def _origin(tree: Tree, path: KeyPath) -> str:
    """Name the origin of a value; empty if the file that was asked for sets it."""
    if not tree.was_set(path):
        return "default"
    origin = tree.origin(path)
    return "" if origin == shown(tree.files[0]) else origin


def diff(first: ConfigOrRun, second: ConfigOrRun, *, out: Runs = None, json_to: Json = None) -> int:
    """Print the keys whose values differ between two configs as they would run.

    Example: tianji config diff ppo_cartpole ppo_acrobot

    Raises:
        ConfigError: one of them cannot be run.
    """
    names = first, second
    found = differing(
        *(resolve(_read(name, (), out), to_run=False).model_dump(mode="json") for name in names)
    )
    if not write_json({"configs": list(names), "differing": found}, json_to):
        return 0
    if not found:
        sys.stdout.write("they do not differ\n")
        return 0
    rows = [(key, *map(_written, values)) for key, values in found.items()]
    print_table(("key", *map(printable, names)), rows, "what differs")
    return 0


def _written(value: object) -> str:
    return ABSENT if value is None else printable(json.dumps(value, ensure_ascii=False))


def schema() -> int:
    """Print JSON Schema of a config file, with the agents, models and update rules that there are.

    Example: tianji config schema > tianji.schema.json
    """
    from tianji_cli.config.json_schema import config_schema  # noqa: PLC0415 - only this command needs it

    sys.stdout.write(json.dumps(config_schema(), indent=2) + "\n")
    return 0


def _read(name: str, overrides: Sequence[str], out: Path | None) -> Tree:
    """Read a config, or the config of a run; it names modules, so only its user may write to the run.

    Raises:
        ConfigError: the config does not exist, or is no TOML.
        UntrustedPlaceError: other users may change the run.
    """
    if find_config(name, Path.cwd()) is None:
        try:
            run = RunDirectory.find(name, DEFAULT_OUT if out is None else out)
        except NoSuchRunError:
            return read(name, overrides)  # The error names the nearest config.
        run.check()
        tree = read(str(run.config), overrides)
        fill_in_later_keys(tree)
        return tree
    return read(name, overrides)
