"""Turns a table into a model, and what pydantic says against it into problems a user can act on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, to_json

from tianji_cli.config.problems import Path, dotted, nearest
from tianji_cli.config.schema import JobConfig
from tianji_cli.config.source import COMPONENTS, Tree, is_role
from tianji_cli.config.user_roles import OWN_KEYS

AnyModel = TypeVar("AnyModel", bound=BaseModel)

_EXAMPLES: Final[Mapping[str, str]] = {
    "experiment.stop": "stop = { env_steps = 1_000_000 }",
    "environment.type": 'type = "gym"',
    "distribution.transport.local": 'transport = { local = "shm", remote = "zmq" }',
    "distribution.transport.remote": 'transport = { local = "shm", remote = "zmq" }',
}
"""What to write where something is missing."""

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
"""What would be right, by pydantic's name for what is wrong."""


def validated(tree: Tree, at: Path, model: type[AnyModel], table: Mapping[str, Any]) -> AnyModel | None:
    """Build a section's model; on failure note all its problems and return None.

    Values are checked as JSON is: arrays may become tuples, and nothing else changes its type, but
    ``1e6`` may stand for a whole number, as people write step counts.
    """
    if _ignores_unknown_keys(tree, at, model, table):
        return None
    try:
        return _parsed(model, table)
    except ValidationError as refused:
        errors = refused.errors()
    whole = [error["loc"] for error in errors if _is_whole_number(error)]
    if whole:
        table = _with_integers(table, whole)
        try:
            return _parsed(model, table)
        except ValidationError as refused:
            errors = refused.errors()
    listed: set[str] = set()
    for error in errors:
        _report(tree, at, model, error, listed)
    return None


def _parsed(model: type[AnyModel], table: Mapping[str, Any]) -> AnyModel:
    return model.model_validate_json(to_json(table, inf_nan_mode="constants"))


def _ignores_unknown_keys(tree: Tree, at: Path, model: type[BaseModel], table: Mapping[str, Any]) -> bool:
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


def _report(tree: Tree, at: Path, model: type[BaseModel], error: ErrorDetails, listed: set[str]) -> None:
    path = (*at, *map(str, error["loc"]))
    kind = error["type"]
    if kind == "extra_forbidden":
        tree.problem(path, "unknown key", _known_key(path, _model_at(model, error["loc"][:-1]), listed))
    elif kind == "missing":
        example = _EXAMPLES.get(dotted(path))
        tree.problem(path, "missing", f"for example {example}" if example else "")
    elif kind == "value_error":
        message = str(error["ctx"]["error"])
        tree.problem((*path, *_field_named_in(message, _model_at(model, error["loc"]))), message)
    else:
        tree.problem(path, f"{shown_value(error['input'])} does not fit", _expectation(error))


def _expectation(error: ErrorDetails) -> str:
    """Say what would be right in the words of TOML, or which word was probably meant."""
    words = re.findall(r"'(.+?)'", str(error.get("ctx", {}).get("expected", "")))
    near = nearest(str(error["input"]), words)
    if near is not None:
        return f"did you mean {near!r}?"
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
    """A check of several fields reports their section; the field whose fault it names first is meant."""
    if model is None:
        return ()
    return tuple(
        word for word in re.findall(r"\w+", message.partition(";")[0]) if word in model.model_fields
    )[:1]


def _known_key(path: Path, model: type[BaseModel] | None, listed: set[str]) -> str:
    """Say which key was probably meant, or else which there are.

    Args:
        path: of the key that is unknown.
        model: of its table; None if it has no keys.
        listed: tables whose keys were listed already, which once is enough for.
    """
    known = list(model.model_fields) if model is not None else []
    if path[0] in COMPONENTS and len(path) == 2:
        known.append("type")
    elif is_role(path[:-1]):
        known.extend(OWN_KEYS)
    near = nearest(path[-1], known)
    if near is not None:
        return f"did you mean {near!r}?"
    elsewhere = [place for place in _all_paths(JobConfig) if place[-1] == path[-1]]
    if elsewhere:
        return f"did you mean {dotted(elsewhere[0])}?"
    table = dotted(path[:-1])
    if table in listed:
        return ""
    listed.add(table)
    return f"the keys here are: {', '.join(sorted(known))}" if known else "there are no keys here"


def _model_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Find the model of the table that an error's location leads to."""
    for key in loc:
        field = model.model_fields.get(str(key))
        if field is None:
            return None
        found = _model_in(field.annotation)
        if found is None:
            return None
        model = found
    return model


def _model_in(annotation: object) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _all_paths(model: type[BaseModel], at: Path = ()) -> Iterable[Path]:
    for name, field in model.model_fields.items():
        yield (*at, name)
        below = _model_in(field.annotation)
        if below is not None and name not in (*COMPONENTS, "roles"):
            yield from _all_paths(below, (*at, name))
