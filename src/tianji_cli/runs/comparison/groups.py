"""Groups of runs that differ in their seed alone, named by the keys in which the groups differ.

Keys that only say where a run is, or what it writes down, do not separate groups: its name, the thresholds
that it watches for, checkpoints, plots, directories, the cores of its processes. A key that an earlier
version did not write has its default.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from tianji_algos import registry as algorithms
from tianji_algos.errors import AlgorithmError
from tianji_cli.config.loader import DEFAULTS_OF_OLD_RUNS, PLAIN
from tianji_cli.config.schema import KINDS
from tianji_cli.config.source import flat
from tianji_cli.errors import printable
from tianji_cli.files.rundir import DEFAULT_OUT
from tianji_cli.runs.comparison.runs import ComparedRun, Config

NO_DIFFERENCE: Final = frozenset(
    {
        *(f"experiment.{key}" for key in ("name", "seed", "thresholds", "track", "plots", "extensions")),
        *("experiment.files", "experiment.checkpoint_every_s", "experiment.keep_checkpoints"),
        *("distribution.pin_cores", "distribution.max_restarts_per_minute"),
        *(f"environment.{key}" for key in ("trust_wrappers", "start_limit_s", "step_limit_s", "on_error")),
    }
)
"""Keys that do not separate groups."""

MOST_KEYS: Final = 3
"""Most keys in a name; groups that differ in more keys are named by their experiments."""
LONGEST_NAME: Final = 60
LONGEST_VALUE: Final = 30

ABSENT: Final = "none"
"""Text for a value that a config does not have."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    Attributes:
        differs: its values of the keys in which groups differ; None for a key that it does not have.
    """

    name: str
    runs: tuple[ComparedRun, ...]
    differs: Mapping[str, Any]


def group_runs(runs: Sequence[ComparedRun]) -> list[Group]:
    """Sort runs into groups, in the order in which the runs were named."""
    members: dict[str, list[ComparedRun]] = {}
    flats: dict[str, dict[str, Any]] = {}
    for one in runs:
        values = flat(with_defaults(one.config))
        keys = {key: value for key, value in values if value is not None and key not in NO_DIFFERENCE}
        identity = json.dumps(keys, sort_keys=True, default=str)
        members.setdefault(identity, []).append(one)
        flats[identity] = keys
    apart = _differing(list(flats.values()))
    differs = [{key: of.get(key) for key in apart} for of in flats.values()]
    names = _names(differs, list(members.values()))
    return [
        Group(name, tuple(of), values)
        for name, of, values in zip(names, members.values(), differs, strict=True)
    ]


def with_defaults(config: Config) -> dict[str, Any]:
    """Add the defaults to a config; a section that this version cannot read stays as it is."""
    filled = dict(config)
    for section, model in PLAIN.items():
        filled[section] = _filled(model, {**DEFAULTS_OF_OLD_RUNS.get(section, {}), **config.get(section, {})})
    for section, kind in KINDS.items():
        table = config.get(section, {})
        type_ = table.get("type") if isinstance(table, Mapping) else None
        # The user's modules are not imported: the config that the run wrote has all of their settings.
        if isinstance(type_, str) and ":" not in type_:
            try:
                model = algorithms.settings_type(kind, type_)
            except AlgorithmError:
                continue
            older = {
                key: one
                for key, one in DEFAULTS_OF_OLD_RUNS.get(section, {}).items()
                if key in model.model_fields
            }
            own = older | {key: value for key, value in table.items() if key != "type"}
            filled[section] = {"type": type_, **_filled(model, own)}
    return filled


def _filled(model: type[BaseModel], table: Any) -> Any:
    try:
        found = model.model_validate_json(to_json(table, inf_nan_mode="constants"))
    except ValidationError:
        return table
    return found.model_dump(mode="json", by_alias=True)


def _differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the keys whose values differ between tables."""
    return [
        key
        for key in dict.fromkeys(key for table in tables for key in table)
        if len({json.dumps(table.get(key), default=str) for table in tables}) > 1
    ]


def _names(differs: Sequence[Mapping[str, Any]], groups: Sequence[Sequence[ComparedRun]]) -> list[str]:
    """Name groups.

    A name has the keys in which the groups differ. Where these are too many, it has the experiment of the
    first run, and the keys in which groups of one experiment differ; or else the directory.
    """
    experiments = [runs[0].experiment for runs in groups]
    if len(groups) == 1:
        return experiments
    if names := _by_keys(differs) or _by_keys(differs, shortly=True):
        return names
    found = list(experiments)
    for experiment in dict.fromkeys(experiments):
        places = [place for place, name in enumerate(experiments) if name == experiment]
        if len(places) > 1:
            suffixes = _by_keys([differs[place] for place in places], shortly=True)
            if not suffixes:
                return _places(groups)
            for place, keys in zip(places, suffixes, strict=True):
                found[place] = f"{experiment}, {keys}"
    return found


def _places(groups: Sequence[Sequence[ComparedRun]]) -> list[str]:
    """Name groups by directories as commands take them: the common one, or that of each group's first run."""
    found = [Path(os.path.commonpath([one.run.path.absolute() for one in runs])) for runs in groups]
    if len({*found}) < len(found) or not {*found}.isdisjoint(above for one in found for above in one.parents):
        found = [runs[0].run.path.absolute() for runs in groups]
    roots = (DEFAULT_OUT.absolute(), Path.cwd())
    above = [next((root for root in roots if root in one.parents), None) for one in found]
    return [
        printable(str(one.relative_to(root) if root else one)) for one, root in zip(found, above, strict=True)
    ]


def _by_keys(differs: Sequence[Mapping[str, Any]], *, shortly: bool = False) -> list[str]:
    """Name groups by the keys in which they differ; empty if keys are too many, or names too long or alike.

    Args:
        shortly: without sections, if no two keys then look alike.
    """
    keys = _differing(differs)
    last = [key.rpartition(".")[2] for key in keys]
    written = last if shortly and len(set(last)) == len(last) else keys
    names = [
        ", ".join(f"{name}={_value(of[key])}" for name, key in zip(written, keys, strict=True))
        for of in differs
    ]
    fit = len(keys) <= MOST_KEYS and max(map(len, names)) <= LONGEST_NAME
    return names if fit and len(set(names)) == len(names) else []


def _value(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
    return printable(text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}...")
