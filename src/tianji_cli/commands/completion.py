"""Completes words behind `tianji` in a shell: names of configs, runs, agents, environments; keys of `--set`.

A shell waits for the words, so this module imports nothing heavy, and reads each name where it is cheapest to
find. It leaves out names that it cannot find.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final, ParamSpec

import typer

from tianji_cli.errors import ConfigError

KINDS: Final = ("agents", "models", "environments", "roles", "transports", "configs", "runs")
"""Kinds of things that `tianji list` lists."""

AGENTS: Final = ("dqn", "ppo", "sac", "td3")
"""Agents that train without a config file."""

_ID: Final = re.compile(r'\bid="([^"]+)"')

P = ParamSpec("P")


def _matching(complete: Callable[P, Iterable[str]]) -> Callable[P, list[str]]:
    """Keep the words that begin with the incomplete one; any exception ends the list."""

    @wraps(complete)
    def completed(*args: P.args, **kwargs: P.kwargs) -> list[str]:
        found: dict[str, None] = {}
        with contextlib.suppress(Exception):  # An error must not show in a shell's line.
            for one in complete(*args, **kwargs):
                found[one] = None
        return [one for one in found if one.startswith(str(kwargs["incomplete"]))]

    return completed


@_matching
def configs(incomplete: str) -> Iterator[str]:
    """Name shipped configs, TOML files, and directories on the way to these."""
    yield from shipped(incomplete=incomplete)
    folder = incomplete.rpartition("/")[0] + "/" if "/" in incomplete else ""
    with os.scandir(folder or ".") as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.endswith(".toml"):
                yield folder + entry.name
            elif incomplete and entry.is_dir() and not entry.name.startswith("."):
                yield f"{folder}{entry.name}/"


@_matching
def shipped(incomplete: str) -> Iterator[str]:
    """Name the configs that come with tianji."""
    from tianji_cli.config.source import shipped_configs  # noqa: PLC0415

    for name in shipped_configs():
        yield name if incomplete.startswith("configs/") else Path(name).stem


@_matching
def runs(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """Name the experiments below `--out`, and the runs of the one that the word begins."""
    yield from _runs(_place(ctx), incomplete)


@_matching
def compared(incomplete: str) -> Iterator[str]:
    """Name experiments, their runs and directories of seeds, in the default place: `--out` is for figures."""
    from tianji_cli.files.rundir import DEFAULT_OUT  # noqa: PLC0415

    yield from _runs(DEFAULT_OUT, incomplete)
    if "/" in incomplete:
        found = sorted((DEFAULT_OUT / incomplete.partition("/")[0]).glob("seeds-*"))
        yield from (str(path.relative_to(DEFAULT_OUT)) for path in found)


@_matching
def configs_and_runs(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """Name the configs and runs that a config can be read from."""
    yield from configs(incomplete=incomplete)
    yield from _runs(_place(ctx), incomplete)


@_matching
def kinds(incomplete: str) -> Iterable[str]:  # noqa: ARG001 - the shell's, as in the next ones
    """Name the kinds that `tianji list` lists."""
    return KINDS


@_matching
def agents(incomplete: str) -> Iterable[str]:  # noqa: ARG001
    """Name agents that train without a file."""
    return AGENTS


@_matching
def transports(incomplete: str) -> Iterable[str]:  # noqa: ARG001
    """Name the transport engines."""
    from tianji_transports.registry import ENGINES  # noqa: PLC0415

    return ENGINES.names()


@_matching
def environments(incomplete: str) -> Iterator[str]:  # noqa: ARG001
    """Name gymnasium's environments, read from its source, and the games of Atari."""
    from tianji_envs.atari.games import GAMES, title  # noqa: PLC0415

    found = importlib.util.find_spec("gymnasium")  # Importing it takes half a second.
    if found is not None and found.origin is not None:
        yield from _ID.findall(Path(found.origin).with_name("envs").joinpath("__init__.py").read_text())
    yield from map(title, GAMES)


@_matching
def processes(ctx: typer.Context, incomplete: str) -> Iterator[str]:  # noqa: ARG001
    """Name the processes of a run that have logs."""
    return (path.stem for path in sorted((_run(ctx).path / "logs").glob("*.log")))


@_matching
def checkpoints(ctx: typer.Context, incomplete: str) -> Iterable[str]:  # noqa: ARG001
    """Name the checkpoints of a run."""
    names: tuple[str, ...] = _run(ctx).checkpoint_names
    return names


@_matching
def keys(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """Name the keys of a config, also those of its agent, model and update rule; and those of a sweep."""
    from tianji_cli.config.sweep import Sweep  # noqa: PLC0415

    yield from (f"{key}=" for key in _keys(_config_values(ctx)))
    if ctx.info_name == "sweep":
        yield from (f"sweep.{key}=" for key in Sweep.model_fields)
        if incomplete.startswith("sweep.parameters."):
            yield from (f"sweep.parameters.{key}=" for key in _keys(_config_values(ctx)))


def _keys(values: Mapping[str, Any]) -> Iterator[str]:
    """Name the keys of a config with these values."""
    from tianji_algos import registry  # noqa: PLC0415
    from tianji_cli.config.problems import all_paths  # noqa: PLC0415
    from tianji_cli.config.schema import KINDS as SECTIONS  # noqa: PLC0415
    from tianji_cli.config.schema import JobConfig  # noqa: PLC0415

    yield from (".".join(path) for path in all_paths(JobConfig) if path[0] not in {*SECTIONS, "roles"})
    agent = values.get("agent", {}).get("type", "ppo")
    usual = registry.agent_defaults(agent)
    types = {"agent": agent, "model": usual.model, "training": usual.embryo}
    for section, kind in SECTIONS.items():
        name = values.get(section, {}).get("type", types[section])
        fields = registry.settings_type(kind, name).model_fields
        yield from (f"{section}.{key}" for key in ("type", *fields))


def _config_values(ctx: typer.Context) -> dict[str, Any]:
    """Read the values of the config on the command line, or of the options in its place."""
    from tianji_cli.config.source import read  # noqa: PLC0415

    config, agent = _argument(ctx, "config"), ctx.params.get("agent")
    if config:
        with contextlib.suppress(ConfigError):
            return read(config).values
    return {"agent": {"type": agent}} if agent else {}


def _argument(ctx: typer.Context, name: str) -> str | None:
    """Find a command's first argument; click has not named it yet if an option's value follows."""
    found = ctx.params.get(name) or next(iter(ctx.args), None)
    return None if found is None else str(found)


def _run(ctx: typer.Context) -> Any:
    from tianji_cli.files.rundir import RunDirectory  # noqa: PLC0415

    return RunDirectory.find(_argument(ctx, "run") or "", _place(ctx))


def _place(ctx: typer.Context) -> Path:
    from tianji_cli.files.rundir import DEFAULT_OUT  # noqa: PLC0415

    return Path(ctx.params.get("out") or DEFAULT_OUT)


def _runs(place: Path, incomplete: str) -> Iterator[str]:
    names = [path.name for path in sorted(place.iterdir()) if path.is_dir()]
    meant = [name for name in names if name.startswith(incomplete.partition("/")[0])]
    if "/" not in incomplete:
        yield from meant
    if len(meant) == 1 or "/" in incomplete:
        for name in meant:
            numbers = [path.name for path in (place / name).iterdir() if (path / "config.toml").is_file()]
            yield from (f"{name}/{number}" for number in sorted(numbers, key=lambda one: (len(one), one)))
