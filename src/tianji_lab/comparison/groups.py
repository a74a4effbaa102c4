"""Runs that differ in their seed alone are a group, and groups are called by what they differ in.

What only says where a run is, or what it writes down, makes no difference: its name, the thresholds that it
looks out for, checkpoints, plots, directories, which cores its processes are tied to. What a config does not
say, since an earlier version wrote it, is what it would be by default.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from tianji_algos import registry as algorithms
from tianji_algos.errors import AlgorithmError
from tianji_cli.config.loader import KINDS, PLAIN
from tianji_cli.errors import printable
from tianji_lab.comparison.runs import ComparedRun, Config

NO_DIFFERENCE: Final = frozenset(
    {
        *(f"experiment.{key}" for key in ("name", "seed", "thresholds", "track", "plots", "extensions")),
        *("experiment.files", "experiment.checkpoint_every_s", "experiment.keep_checkpoints"),
        *("distribution.pin_cores", "distribution.max_restarts_per_minute"),
    }
)
"""Keys that make no other group."""

MOST_KEYS: Final = 3
"""In a name; groups that differ in more are called by their experiments."""
LONGEST_NAME: Final = 60
LONGEST_VALUE: Final = 30

ABSENT: Final = "none"
"""Stands for a value that a config does not have."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    Attributes:
        differs: its values of the keys in which groups differ, None where it has none.
    """

    name: str
    runs: tuple[ComparedRun, ...]
    differs: Mapping[str, Any]


def group_runs(runs: Sequence[ComparedRun]) -> list[Group]:
    """Put runs into groups, in the order in which they were named."""
    members: dict[str, list[ComparedRun]] = {}
    flats: dict[str, dict[str, Any]] = {}
    for one in runs:
        flat = {key: value for key, value in _flat(with_defaults(one.config)) if key not in NO_DIFFERENCE}
        identity = json.dumps(flat, sort_keys=True, default=str)
        members.setdefault(identity, []).append(one)
        flats[identity] = flat
    keys = [
        key
        for key in dict.fromkeys(key for flat in flats.values() for key in flat)
        if len({json.dumps(flat.get(key), default=str) for flat in flats.values()}) > 1
    ]
    differs = [{key: flat.get(key) for key in keys} for flat in flats.values()]
    names = _names(differs, list(members.values()))
    return [
        Group(name, tuple(of), values)
        for name, of, values in zip(names, members.values(), differs, strict=True)
    ]


def with_defaults(config: Config) -> dict[str, Any]:
    """Fill in what a config does not say; a section that this version cannot read stays as it is."""
    filled = dict(config)
    for section, model in PLAIN.items():
        filled[section] = _filled(model, config.get(section, {}))
    for section, kind in KINDS.items():
        table = config.get(section, {})
        type_ = table.get("type") if isinstance(table, Mapping) else None
        # Modules of the user's are not imported: what the run wrote down has all of their settings.
        if isinstance(type_, str) and ":" not in type_:
            try:
                model = algorithms.settings_type(kind, type_)
            except AlgorithmError:
                continue
            own = {key: value for key, value in table.items() if key != "type"}
            filled[section] = {"type": type_, **_filled(model, own)}
    return filled


def _filled(model: type[BaseModel], table: Any) -> Any:
    try:
        found = model.model_validate_json(to_json(table, inf_nan_mode="constants"))
    except ValidationError:
        return table
    return found.model_dump(mode="json", by_alias=True)


def _flat(table: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{at}{key}.")
        elif value is not None:
            yield f"{at}{key}", value


def _names(differs: Sequence[Mapping[str, Any]], members: Sequence[Sequence[ComparedRun]]) -> list[str]:
    """Name groups by what they differ in, as shortly as it tells them apart, or by their experiments."""
    experiments = [of[0].experiment for of in members]
    keys = list(differs[0])
    if not keys:
        return experiments
    last = [key.rpartition(".")[2] for key in keys]
    short = last if len(set(last)) == len(last) else keys
    for written in (keys, short) if len(keys) <= MOST_KEYS else ():
        names = [
            ", ".join(f"{name}={_value(of[key])}" for name, key in zip(written, keys, strict=True))
            for of in differs
        ]
        if max(map(len, names)) <= LONGEST_NAME and _all_differ(names):
            return names
    if _all_differ(experiments):
        return experiments
    places = [f"{of[0].run.path.parent.name}/{of[0].run.path.name}" for of in members]
    return list(map(printable, places)) if _all_differ(places) else [of[0].name for of in members]


def _all_differ(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)


def _value(value: Any) -> str:
    if value is None:
        return ABSENT
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
    return printable(text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}...")
