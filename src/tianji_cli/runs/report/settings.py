"""The keys of a config, each with its value and its default."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from tianji_algos import registry as algorithms
from tianji_algos.errors import AlgorithmError
from tianji_cli.config.loader import PLAIN
from tianji_cli.config.schema import KINDS
from tianji_cli.errors import printable

LONGEST: Final = 400
"""Most characters of a value."""

OF_THE_MACHINE: Final = frozenset({"distribution.actor.num", "distribution.pin_cores"})
"""Keys whose default follows from the number of cores."""

ABSENT: Final = "none"


@dataclass(frozen=True)
class Setting:
    """A key of a config.

    Attributes:
        key: dotted name.
        value: value as JSON.
        default: default as JSON, or in words.
        differs: the value is not the default, or the key has no default, as a name has none; False where the
            machine decides the default, or where it is unknown.
    """

    key: str
    value: str
    default: str
    differs: bool


def settings_of(config: Mapping[str, Any]) -> list[Setting]:
    """List the keys of a config, in its order."""
    defaults = _defaults(config)
    return [_setting(key, value, defaults) for key, value in _flat(config)]


def _setting(key: str, value: Any, defaults: Mapping[str, Any]) -> Setting:
    text = written(value)
    if key in OF_THE_MACHINE:
        return Setting(key, text, "by the number of cores", differs=False)
    if key not in defaults:
        is_known = key.partition(".")[0] in PLAIN or key.endswith(".type")
        return Setting(key, text, ABSENT if is_known else "not known", differs=is_known)
    default = ABSENT if defaults[key] is None else written(defaults[key])
    return Setting(key, text, default, differs=text != default)


def written(value: Any) -> str:
    """Format a value as JSON, shortened if it is too long."""
    text = printable(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _flat(table: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def _defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of all keys that have one; the user's own modules are not imported."""
    found: dict[str, Any] = {}
    for section, model in PLAIN.items():
        found |= _of_model(model, f"{section}.")
    agent = _type_of(config, "agent")
    if agent is not None:
        with contextlib.suppress(AlgorithmError):
            usual = algorithms.agent_defaults(agent)
            found |= {"model.type": usual.model, "training.type": usual.embryo}
    for section, kind in KINDS.items():
        type_ = _type_of(config, section)
        if type_ is not None:
            with contextlib.suppress(AlgorithmError):  # Its package is not installed here.
                found |= _of_model(algorithms.settings_type(kind, type_), f"{section}.")
    return found


def _type_of(config: Mapping[str, Any], section: str) -> str | None:
    """Return the type of a section; None if it is the user's module, or there is no such section."""
    table = config.get(section)
    found = table.get("type") if isinstance(table, Mapping) else None
    return found if isinstance(found, str) and ":" not in found else None


def _of_model(model: type[BaseModel], at: str) -> dict[str, Any]:
    """Return the defaults of a section's keys; None where the default is None, or there is none.

    An optional table has the defaults of its keys besides, for a comparison with its contents.
    """
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = f"{at}{field.alias or name}"
        default = field.get_default(call_default_factory=True, validated_data={})
        if isinstance(default, BaseModel):
            default = default.model_dump(mode="json", by_alias=True)
        found[key] = None if default is PydanticUndefined else _plain(default)
        for of in (field.annotation, *get_args(field.annotation)):
            if isinstance(of, type) and issubclass(of, BaseModel):
                found |= _of_model(of, f"{key}.")
        if isinstance(default, Mapping):
            found |= dict(_flat(default, f"{key}."))
    return found


def _plain(value: Any) -> Any:
    """Convert a default to its form in TOML."""
    return list(value) if isinstance(value, tuple) else value
