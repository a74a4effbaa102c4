"""The config as JSON Schema, for editors that complete keys and show their descriptions.

The models' fields and docstrings define the keys and describe them; this module has no texts of its own.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from tianji_algos import registry as algorithms
from tianji_algos.errors import AlgorithmError
from tianji_cli.config.loader import OPTIONAL, PLAIN
from tianji_cli.config.schema import (
    KINDS,
    Actors,
    Hosts,
    JobConfig,
    PeriodicEvaluation,
    Placed,
    Population,
    Transport,
    UserRoleSection,
    Wrapper,
)
from tianji_cli.config.sweep import Sweep

DIALECT: Final = "http://json-schema.org/draft-07/schema#"
"""Dialect of JSON Schema that editors of TOML read."""

_IN_PLACE: Final[Mapping[type[BaseModel], JsonSchemaValue]] = {
    Actors: {"type": "integer"},
    Hosts: {"type": "integer"},
    PeriodicEvaluation: {"const": False},
    Transport: {"type": "string"},
    Wrapper: {"type": "string"},
}
"""Schemas of values that may stand in place of a table: a name, a number, or false."""

_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)


def config_schema() -> dict[str, Any]:
    """Describe a config file. No key is required: a file may extend another that has it."""
    settings = dict(_settings())
    models: list[type[BaseModel]] = [
        *PLAIN.values(),
        *OPTIONAL.values(),
        UserRoleSection,
        Sweep,
        *dict.fromkeys(settings.values()),
    ]
    found, made = models_json_schema(
        [(model, "validation") for model in models], schema_generator=_ForEditors
    )
    of = {model: reference for (model, _), reference in found.items()}
    definitions = made["$defs"]
    properties = {section: of[model] for section, model in (PLAIN | OPTIONAL).items()}
    for section in KINDS:
        named = {name: model for (of_section, name), model in settings.items() if of_section == section}
        types = [
            _of_type(definitions[of[model]["$ref"].rpartition("/")[2]], name) for name, model in named.items()
        ]
        properties[section] = {"anyOf": [*types, _OWN]}
    role = definitions[of[UserRoleSection]["$ref"].rpartition("/")[2]]
    role["properties"].pop("settings")
    role["additionalProperties"] = True
    for model, key in ((Sweep, "parameters"), (Population, "perturb")):
        keys = definitions[of[model]["$ref"].rpartition("/")[2]]["properties"]
        about = keys[key]["description"]
        keys[key] = {"type": "object", "description": about}  # A tree, of any depth.
    extends = {"type": "string", "description": "A config whose values hold where this one says nothing."}
    return {
        "$schema": DIALECT,
        "title": "A config of tianji",
        "type": "object",
        "properties": {
            "extends": extends,
            **{name: properties[name] for name in JobConfig.model_fields if name in properties},
            "roles": {"type": "object", "additionalProperties": of[UserRoleSection]},
            "sweep": of[Sweep],
        },
        "additionalProperties": False,
        "$defs": definitions,
    }


_OWN: Final[Mapping[str, Any]] = {
    "type": "object",
    "description": "Of your own.",
    "properties": {"type": {"type": "string", "pattern": ":", "description": "my_module:MyClass"}},
    "required": ["type"],
}


def _settings() -> Iterator[tuple[tuple[str, str], type[BaseModel]]]:
    """Yield the settings of each type of a section; leaves out types that cannot be imported."""
    for section, kind in KINDS.items():
        for name in algorithms.names(kind):
            try:
                yield (section, name), algorithms.settings_type(kind, name)
            except AlgorithmError:  # A package brings it that cannot be imported here.
                continue


def _of_type(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {
        **settings,
        "title": name,
        "properties": {"type": {"const": name}, **settings.get("properties", {})},
    }


class _ForEditors(GenerateJsonSchema):
    """Adds descriptions of the keys, and leaves out nulls, which TOML does not have."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Describe one table."""
        made = super().model_schema(schema)
        model = schema["cls"]
        about = dict(_described(model))
        made.pop("required", None)
        made["description"] = (inspect.getdoc(model) or "").partition("\n\n")[0].replace("\n", " ")
        for key, value in made.get("properties", {}).items():
            value.pop("title", None)
            if value.get("default", 0) is None:
                del value["default"]
            if "anyOf" in value:
                some = [one for one in value.pop("anyOf") if one != {"type": "null"}]
                value.update(some[0] if len(some) == 1 else {"anyOf": some})
            if key in about:
                value["description"] = about[key]
        if issubclass(model, Placed):
            cores = made["properties"]["cores"]
            number = {name: cores.pop(name) for name in [*cores] if name not in {"default", "description"}}
            cores["anyOf"] = [number, {"type": "string"}]
        return {"anyOf": [_IN_PLACE[model], made]} if model in _IN_PLACE else made


def _described(model: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield descriptions of fields, from the docstrings of a model and of the classes it derives from."""
    for declared in reversed(model.__mro__):
        of_fields = inspect.cleandoc(declared.__doc__ or "").partition("Attributes:\n")[2]
        for name, text in _ATTRIBUTE.findall(of_fields.partition("\n\n")[0]):
            yield name, " ".join(text.split())
