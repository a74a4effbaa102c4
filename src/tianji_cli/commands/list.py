"""`tianji list`: lists names for a config, with sources and missing packages; configs; runs. No torch."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Final

import typer

from tianji_algos import registry as algorithms
from tianji_cli.commands.completion import KINDS, kinds
from tianji_cli.commands.options import Json, Runs
from tianji_cli.config.schema import ROLES
from tianji_cli.config.source import read, shipped_configs
from tianji_cli.errors import UsageError
from tianji_cli.files.directories import remove_stale
from tianji_cli.files.rundir import DEFAULT_OUT
from tianji_cli.telemetry.tables import print_table, write_json
from tianji_envs import registry as environments
from tianji_plugins import Plugins, did_you_mean
from tianji_transports import registry as transports

_FAMILIES: Final[Mapping[str, tuple[str, str]]] = {
    "box2d": ("Box2D", "pip install 'tianji[box2d]'"),
    "mujoco": ("mujoco", "pip install 'tianji[mujoco]'"),
    "phys2d": ("jax", "pip install 'gymnasium[jax]'"),
    "tabular": ("jax", "pip install 'gymnasium[jax]'"),
}
"""Modules of gymnasium's environments that need a library: its import name, and the command to install it."""


@dataclass(frozen=True)
class Entry:
    """One name that a config may use.

    Attributes:
        name: what to write as ``type`` (or ``transport``).
        id: what to write as ``id`` beside it; empty where there is none.
        description: one line.
        source: the distribution or module it comes from.
        missing: what to do before the name can be used; empty if nothing is missing.
    """

    name: str
    id: str
    description: str
    source: str
    missing: str = ""


def list_things(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="agents, models, environments, roles, transports, configs or runs.",
            autocompletion=kinds,
        ),
    ],
    json_to: Json = None,
    out: Runs = None,
) -> int:
    """Print everything of a kind.

    Example: tianji list environments

    Raises:
        UsageError: there are no such things.
    """
    if kind not in KINDS:
        raise UsageError(f"no list of {kind!r}; {did_you_mean(kind, KINDS, 'lists')}")
    if out is not None and kind != "runs":
        raise UsageError(f"--out says where runs are; {kind} are not there")
    remove_stale()
    if kind == "runs":
        from tianji_cli.commands.runs import list_runs  # noqa: PLC0415 - imports rich

        list_runs(DEFAULT_OUT if out is None else out, json_to)
        return 0
    if kind == "configs":
        _list_configs(json_to)
        return 0
    entries = list(_LISTS[kind]())
    if not write_json({kind: [asdict(entry) for entry in entries]}, json_to):
        return 0
    if not entries:
        print(f"no installed package brings {kind}; your own: 'module:Class'")  # noqa: T201 - the result
    else:
        columns = ("name", "id", "description", "source", "missing")
        shown = [column for column in columns if any(getattr(entry, column) for entry in entries)]
        print_table(shown, [[getattr(entry, column) for column in shown] for entry in entries], kind)
    return 0


def agents() -> Iterator[Entry]:
    """List agents, built-in and installed."""
    return _named(algorithms.PLUGINS["agent"])


def models() -> Iterator[Entry]:
    """List models, built-in and installed."""
    return _named(algorithms.PLUGINS["model"])


def environment_types() -> Iterator[Entry]:
    """List environment types and their ids; of gymnasium's environments only the newest versions."""
    for entry in _named(environments.TYPES):
        yield entry
        if entry.name in _IDS:
            yield from _IDS[entry.name]()


def roles() -> Iterator[Entry]:
    """List roles of installed packages for ``[roles.NAME]``; a config does not name the built-in roles."""
    return _named(ROLES)


def engines() -> Iterator[Entry]:
    """List transports, with the reason why one cannot be used."""
    missing = {engine.name: engine.error for engine in transports.available()}
    for entry in _named(transports.ENGINES):
        error = missing[entry.name]
        yield entry if error is None else replace(entry, missing=str(error))


_LISTS: Final[Mapping[str, Callable[[], Iterable[Entry]]]] = {
    "agents": agents,
    "models": models,
    "environments": environment_types,
    "roles": roles,
    "transports": engines,
}


def _list_configs(json_to: str | None) -> None:
    """Print the configs that come with tianji, each with its agent and environment."""
    configs = []
    for name, path in shipped_configs().items():
        values = read(name).values
        agent, environment = (values.get(section, {}) for section in ("agent", "environment"))
        about = {
            "agent": agent.get("type", ""),
            "environment": environment.get("id") or environment.get("type"),
        }
        configs.append({"name": path.stem, "path": str(path), **about, "description": _first_sentence(path)})
    if write_json({"configs": configs}, json_to):
        columns = ("name", "agent", "environment", "description")
        print_table(columns, [[config[column] for column in columns] for config in configs], "configs")


def _first_sentence(config: Path) -> str:
    """Read the first sentence of the comment at a config's top."""
    comment = takewhile(lambda line: line.startswith("#"), config.read_text(encoding="utf-8").splitlines())
    text = " ".join(line.lstrip("# ") for line in comment)
    return re.split(r"(?<!al)[.:;] ", text, maxsplit=1)[0].rstrip(".")


def _named(plugins: Plugins) -> Iterator[Entry]:
    for name in plugins.names():
        yield Entry(name, "", _describe(plugins.target(name)), plugins.source(name))


def _gymnasium_ids() -> Iterator[Entry]:
    import gymnasium  # noqa: PLC0415 - only this list needs it

    newest: dict[tuple[str | None, str], gymnasium.envs.registration.EnvSpec] = {}
    for spec in gymnasium.registry.values():
        key = (spec.namespace, spec.name)
        if key not in newest or (spec.version or 0) > (newest[key].version or 0):
            newest[key] = spec
    for spec in sorted(newest.values(), key=lambda spec: spec.id):
        module = (
            spec.entry_point.partition(":")[0]
            if isinstance(spec.entry_point, str)
            else getattr(spec.entry_point, "__module__", "")
        )
        if module == "gymnasium.envs":
            continue  # Stand-ins for packages that wrap environments of the old gym.
        source, _, below = module.partition(".")
        family = below.removeprefix("envs.").partition(".")[0] if source == "gymnasium" else ""
        library, command = _FAMILIES.get(family, ("", ""))
        missing = command if library and importlib.util.find_spec(library) is None else ""
        yield Entry("gym", spec.id, family.replace("_", " "), source, missing)


def _atari_ids() -> Iterator[Entry]:
    from tianji_envs.atari.games import GAMES, title  # noqa: PLC0415 - only this list needs it

    missing = (
        "" if any(map(importlib.util.find_spec, ("ale_py", "envpool"))) else "pip install 'tianji[atari]'"
    )
    for game in GAMES:
        yield Entry("atari", title(game), "", "tianji", missing)


def _matrix_games() -> Iterator[Entry]:
    from tianji_envs.teams.matrix_game import IDS  # noqa: PLC0415 - only this list needs it

    for game in IDS:
        yield Entry("matrix_game", game, "", "tianji")


def _particle_worlds() -> Iterator[Entry]:
    from tianji_envs.teams.mpe import installed_worlds  # noqa: PLC0415 - only this list needs it

    usual = ("simple_adversary", "simple_speaker_listener", "simple_spread", "simple_tag")
    for world in installed_worlds() or usual:
        yield Entry("mpe", world, "", "mpe2", _lacking("mpe2", "marl"))


def _parallel_environments() -> Iterator[Entry]:
    example = "any module with a parallel_env, such as mpe2.simple_spread_v3"
    yield Entry("pettingzoo", "PACKAGE.MODULE", example, "pettingzoo", _lacking("pettingzoo", "marl"))


def _smac_maps() -> Iterator[Entry]:
    from tianji_envs.errors import MissingExtraError  # noqa: PLC0415 - only this list needs it
    from tianji_envs.teams.smac import PACKAGES, SMACFactory  # noqa: PLC0415

    for package in PACKAGES:
        try:
            SMACFactory().check_options("", {"package": package})
            missing = ""
        except MissingExtraError as lacking:
            missing = str(lacking)
        described = f'with options.package = "{package}": any of its maps, such as 3m'
        yield Entry("smac", "MAP", described, package, missing)


def _smax_scenarios() -> Iterator[Entry]:
    from tianji_envs.teams.smax import SCENARIOS  # noqa: PLC0415 - only this list needs it

    for scenario in SCENARIOS:
        yield Entry("smax", scenario, "", "jaxmarl", _lacking("jaxmarl", "smax"))


def _lacking(library: str, extra: str) -> str:
    """Return the command that installs a library; empty if it is installed."""
    return f"pip install 'tianji[{extra}]'" if importlib.util.find_spec(library) is None else ""


_IDS: Final[Mapping[str, Callable[[], Iterable[Entry]]]] = {
    "atari": _atari_ids,
    "gym": _gymnasium_ids,
    "matrix_game": _matrix_games,
    "mpe": _particle_worlds,
    "pettingzoo": _parallel_environments,
    "smac": _smac_maps,
    "smax": _smax_scenarios,
}
"""Functions that list the ids of environment types."""


def _describe(target: str) -> str:
    """Read the first line of a docstring from the source: importing the class might import torch."""
    module, _, attribute = target.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return ""
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == attribute:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""
