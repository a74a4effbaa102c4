"""TOML in, ``JobConfig`` out, and back again."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import tomli_w
from pydantic import BaseModel

from tianji_cli.config import components
from tianji_cli.config.checks import check_together
from tianji_cli.config.problems import Problem
from tianji_cli.config.schema import Distribution, Environment, Experiment, JobConfig
from tianji_cli.config.source import Tree, read
from tianji_cli.config.validation import validated
from tianji_cli.errors import ConfigError

_PLAIN: Final[dict[str, type[BaseModel]]] = {
    "experiment": Experiment,
    "environment": Environment,
    "distribution": Distribution,
}
"""Sections whose keys are the same in every config."""


def load_config(path: str, overrides: Sequence[str] = ()) -> JobConfig:
    """Read a config and make sure that it can be run, before any process is started.

    Args:
        path: path of the config, or the name of a shipped one.
        overrides: the values of ``--set``, each ``SECTION.KEY=VALUE``; later ones win.

    Raises:
        ConfigError: with every problem that was found.
    """
    tree = read(path, overrides)
    tree.values.setdefault("experiment", {})
    if isinstance(tree.values["experiment"], dict):
        tree.values["experiment"].setdefault("name", tree.files[0].stem.strip())
    components.find_extensions(tree)
    return _validated(tree)


def parse_config(text: str) -> JobConfig:
    """Read a config that ``dump_config`` has written, in a process that finds all modules it names.

    Raises:
        ConfigError: it cannot be run here.
    """
    return _validated(Tree(values=tomllib.loads(text), files=[Path("the job's config")]))


def _validated(tree: Tree) -> JobConfig:
    components.known_sections(tree, list(JobConfig.model_fields))
    named = components.find_components(tree)
    components.check_fit(tree, named)
    found: dict[str, Any] = {**named, "roles": components.find_roles(tree)}
    for section, model in _PLAIN.items():
        table = tree.values.get(section, {})
        if isinstance(table, dict):
            valid = validated(tree, (section,), model, table)
            found |= {} if valid is None else {section: valid}
    components.check_environment(tree)
    components.check_transports(tree)
    check_together(tree, found)
    if tree.problems:
        raise ConfigError(sorted(tree.problems, key=_by_section))
    return JobConfig(**found)


def _by_section(problem: Problem) -> int:
    section = problem.key.partition(".")[0]
    order = list(JobConfig.model_fields)
    return order.index(section) if section in order else -1


def dump_config(config: JobConfig) -> str:
    """Write a config as TOML that loads as the same config."""
    empty = set() if config.roles else {"roles"}
    return tomli_w.dumps(_without_none(config.model_dump(mode="json", exclude=empty)))


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """Leave out what TOML cannot say; a key that is not there means the same."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }
