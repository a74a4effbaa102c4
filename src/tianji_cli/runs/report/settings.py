"""The keys of a config, each beside what it is where a config does not say it."""

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
from tianji_cli.config.loader import KINDS, PLAIN
from tianji_cli.errors import printable

LONGEST: Final = 400
"""Characters of a value."""

OF_THE_MACHINE: Final = frozenset({"distribution.actor.num", "distribution.pin_cores"})
"""What a config leaves open is chosen by the number of cores."""

ABSENT: Final = "none"


@dataclass(frozen=True)
class Setting:
    """A key of a config.

    Attributes:
        key: dotted.
        value: as JSON.
        default: likewise, or in words.
        differs: from the default, or there is none, as of a name; not where the machine decides it, nor where
            it is not known.
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
    said = written(value)
    if key in OF_THE_MACHINE:
        return Setting(key, said, "by the number of cores", differs=False)
    if key not in defaults:
        is_known = key.partition(".")[0] in PLAIN or key.endswith(".type")
        return Setting(key, said, ABSENT if is_known else "not known", differs=is_known)
    default = ABSENT if defaults[key] is None else written(defaults[key])
    return Setting(key, said, default, differs=said != default)


def written(value: Any) -> str:
    """Write a value as JSON, not too long."""
    text = printable(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _flat(table: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def _defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Gather the defaults of all keys that have one; modules of a user's own are not imported."""
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
            with contextlib.suppress(AlgorithmError):  # Of a package that is not here.
                found |= _of_model(algorithms.settings_type(kind, type_), f"{section}.")
    return found


def _type_of(config: Mapping[str, Any], section: str) -> str | None:
    """Name the type that a section has; None if it is a module of the user's, or of no section."""
    table = config.get(section)
    found = table.get("type") if isinstance(table, Mapping) else None
    return found if isinstance(found, str) and ":" not in found else None


def _of_model(model: type[BaseModel], at: str) -> dict[str, Any]:
    """Gather the defaults of a section's keys; None where there is none, or it is that there is none.

    A table that may be left out has the defaults of its keys besides: what is in it is held against these.
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
    """Bring a default into the form in which TOML has it."""
    return list(value) if isinstance(value, tuple) else value
