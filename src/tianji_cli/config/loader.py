"""TOML in, ``JobConfig`` out, and back again."""
# Lead's stopgap so that `train` can be run; the owner of this package may replace it.

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from tianji_algos import registry
from tianji_cli.config.problems import Problem
from tianji_cli.config.schema import JobConfig
from tianji_cli.config.source import read
from tianji_cli.errors import ConfigError


def load_config(path: str, overrides: Sequence[str] = ()) -> JobConfig:
    """Load and validate a config."""
    tree = read(path, overrides)
    values = tree.values
    values.setdefault("experiment", {}).setdefault("name", Path(path).stem)
    agent = values.setdefault("agent", {})
    defaults = registry.agent_defaults(agent["type"])
    for section, default in (("agent", agent["type"]), ("model", defaults.model), ("training", defaults.embryo)):
        table: dict[str, Any] = values.setdefault(section, {})
        kind = "embryo" if section == "training" else section
        name = table.pop("type", default)
        values[section] = {"type": name, "settings": registry.settings_type(kind, name)(**table)}  # type: ignore[arg-type]
    try:
        return JobConfig(**values)
    except ValidationError as cause:
        raise ConfigError([Problem(path, ".".join(map(str, e["loc"])), e["msg"]) for e in cause.errors()]) from cause


def dump_config(config: JobConfig) -> str:
    """Write a config as TOML."""
    return tomli_w.dumps(_without_none(config.model_dump(mode="json")))


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """Leave out what TOML cannot say; a key that is not there means the same."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }
