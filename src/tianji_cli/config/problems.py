"""Validates the tables of a config, and turns pydantic's errors into problems that a user can act on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, to_json

from tianji_cli.config.schema import OWN_KEYS, JobConfig
from tianji_cli.config.source import COMPONENTS, KeyPath, Tree, is_role, path_part
from tianji_plugins import did_you_mean, nearest

AnyModel = TypeVar("AnyModel", bound=BaseModel)

_EXAMPLES: Final[Mapping[str, str]] = {
    "experiment.stop": "stop = { env_steps = 1_000_000 }",
    "environment.type": 'type = "gym"',
    "distribution.transport.local": 'transport = { local = "shm", remote = "zmq" }',
    "distribution.transport.remote": 'transport = { local = "shm", remote = "zmq" }',
}
"""Examples of keys that are often missing, by dotted path."""

_WANTED: Final[Mapping[str, str]] = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
"""The value that a key expects, by pydantic's type of error."""


def validated(tree: Tree, at: KeyPath, model: type[AnyModel], table: Mapping[str, Any]) -> AnyModel | None:
    """Build a section's model; on failure note all its problems and return None.

    Validation is that of JSON: arrays may become tuples, and nothing else changes its type. But ``1e6`` may
    stand for a whole number, as people write step counts.
    """
    if _ignores_unknown_keys(tree, at, model, table):
        return None
    errors: list[ErrorDetails] = []
    for _with_whole_numbers in (False, True):
        try:
            return model.model_validate_json(to_json(table, inf_nan_mode="constants"))
        except ValidationError as refused:
            errors = refused.errors()
        table = _with_integers(table, [error["loc"] for error in errors if _is_whole_number(error)])
    listed: set[str] = set()
    for error in errors:
        _report(tree, (*at, *_written(error["loc"], table)), model, error, listed)
    return None


def _written(place: tuple[int | str, ...], table: Any) -> Iterator[str]:
    """Yield the parts of an error's location; stop at a value that is given in place of a table."""
    for part in place:
        if isinstance(table, Mapping):
            table = table.get(part)  # None where a validator has put it elsewhere.
        elif isinstance(table, list):
            table = table[part] if isinstance(part, int) and part < len(table) else None
        elif table is not None:
            return
        yield path_part(part)


def _ignores_unknown_keys(tree: Tree, at: KeyPath, model: type[BaseModel], table: Mapping[str, Any]) -> bool:
    """Refuse a misspelt key even where a user's own model would ignore it."""
    if model.model_config.get("extra", "ignore") != "ignore":
        return False
    known = {name for key, field in model.model_fields.items() for name in (key, field.alias)}
    unknown = [key for key in table if key not in known]
    listed: set[str] = set()
    for key in unknown:
        tree.problem((*at, key), "unknown key", _known_key((*at, key), model, listed))
    return bool(unknown)


def _is_whole_number(error: ErrorDetails) -> bool:
    value = error["input"]
    return error["type"] == "int_type" and isinstance(value, float) and value.is_integer()


def _with_integers(
    value: Any, places: Iterable[tuple[int | str, ...]], at: tuple[int | str, ...] = ()
) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_integers(item, places, (*at, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_integers(item, places, (*at, index)) for index, item in enumerate(value)]
    return int(value) if at in places else value


def _report(tree: Tree, path: KeyPath, model: type[BaseModel], error: ErrorDetails, listed: set[str]) -> None:
    kind = error["type"]
    if kind == "extra_forbidden":
        tree.problem(path, "unknown key", _known_key(path, _model_at(model, error["loc"][:-1]), listed))
    elif kind == "missing":
        example = _EXAMPLES.get(".".join(path))
        tree.problem(path, "missing", f"for example {example}" if example else "")
    elif kind == "value_error":
        message = str(error["ctx"]["error"])
        tree.problem((*path, *_field_named_in(message, _model_at(model, error["loc"]))), message)
    else:
        tree.problem(path, f"{shown_value(error['input'])} does not fit", _expectation(error))


def _expectation(error: ErrorDetails) -> str:
    """Describe the value that would be right, in the words of TOML, or name the word probably meant."""
    words = re.findall(r"'(.+?)'", str(error.get("ctx", {}).get("expected", "")))
    if near := nearest(str(error["input"]), words):
        return f"did you mean {near[0]!r}?"
    wanted = _WANTED.get(error["type"])
    if wanted is None:
        return error["msg"].replace("Input should", "it should")
    unquoted = isinstance(error["input"], str) and re.fullmatch(r"[-+]?[\d._]+|true|false", error["input"])
    return f"it should be {wanted}" + (" (without quotes)" if unquoted else "")


def shown_value(value: object) -> str:
    """Write a value about as TOML does, shortened to fit in a line.

    >>> shown_value("32"), shown_value(True)
    ('"32"', 'true')
    """
    text = to_json(value, inf_nan_mode="constants").decode()
    return text if len(text) <= 60 else f"{text[:57]}..."


def _field_named_in(message: str, model: type[BaseModel] | None) -> tuple[str, ...]:
    """Find the field at fault: the first that the message of a check of several fields names."""
    if model is None:
        return ()
    return tuple(
        word for word in re.findall(r"\w+", message.partition(";")[0]) if word in model.model_fields
    )[:1]


def _known_key(path: KeyPath, model: type[BaseModel] | None, listed: set[str]) -> str:
    """Suggest the key that was probably meant; list the keys of the table if there is no near one.

    Args:
        model: of the key's table; None if the table has no keys.
        listed: tables whose keys a message has listed already; once is enough.
    """
    known = list(model.model_fields) if model is not None else []
    if path[0] in COMPONENTS and len(path) == 2:
        known.append("type")
    elif is_role(path[:-1]):
        known.extend(OWN_KEYS)
    if near := nearest(path[-1], known):
        return f"did you mean {near[0]!r}?"
    elsewhere = [place for place in all_paths(JobConfig) if place[-1] == path[-1]]
    if elsewhere:
        return f"did you mean {'.'.join(elsewhere[0])}?"
    table = ".".join(path[:-1])
    if table in listed:
        return ""
    listed.add(table)
    return f"the keys here are: {', '.join(sorted(known))}" if known else "there are no keys here"


def _model_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Find the model of the table that an error's location leads to."""
    path = iter(loc)
    for key in path:
        field = model.model_fields.get(str(key))
        if field is None:
            return None
        found = _model_in(field.annotation)
        if found is None:
            return None
        model = found
        if get_origin(field.annotation) is dict:  # The user chooses the keys of this table.
            next(path, None)
    return model


def _model_in(annotation: object) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def all_paths(model: type[BaseModel], at: KeyPath = ()) -> Iterable[KeyPath]:
    """Yield the paths of a section's keys and of the tables in it, except where the user chooses the keys."""
    for name, field in model.model_fields.items():
        yield (*at, name)
        below = _model_in(field.annotation)
        if below is not None and get_origin(field.annotation) is not dict and name not in COMPONENTS:
            yield from all_paths(below, (*at, name))


def known_sections(tree: Tree, sections: list[str]) -> None:
    """Refuse sections that do not exist, and values in place of a section."""
    for name, value in tree.values.items():
        if name not in sections:
            tree.problem((name,), "unknown section", did_you_mean(name, sections, "sections"))
        elif not isinstance(value, dict):
            tree.problem((name,), f"{shown_value(value)} is no section", f"write [{name}]")
