"""TOML in, ``JobConfig`` out, and back again."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tomli_w
from pydantic import BaseModel

from tianji_cli.config import components
from tianji_cli.config.checks import check_together
from tianji_cli.config.components import validated
from tianji_cli.config.problems import Problem
from tianji_cli.config.schema import Distribution, Environment, Experiment, JobConfig, UserRoleSection
from tianji_cli.config.source import Tree, read
from tianji_cli.config.update_rules import OnPolicySettings
from tianji_cli.errors import ConfigError

_PLAIN: Final[dict[str, type[BaseModel]]] = {
    "experiment": Experiment,
    "environment": Environment,
    "distribution": Distribution,
}
"""Sections whose keys are the same in every config."""

FEW_CORES: Final = 4
"""On so many cores an actor more than learners leave cores gains more than it takes from a learner that
waits: a third, a quarter, ... of what the others make."""


def load_config(path: str, overrides: Sequence[str] = (), cores: int | None = None) -> JobConfig:
    """Read a config and make sure that it can be run, before any process is started.

    Args:
        path: path of the config, or the name of a shipped one.
        overrides: the values of ``--set``, each ``SECTION.KEY=VALUE``; later ones win.
        cores: of each host, for what the config leaves to the machine; those this process may use by default.

    Raises:
        ConfigError: with every problem that was found.
    """
    tree = read(path, overrides)
    tree.values.setdefault("experiment", {})
    if isinstance(tree.values["experiment"], dict):
        tree.values["experiment"].setdefault("name", tree.files[0].stem.strip())
    components.find_extensions(tree)
    return _validated(tree, cores)


def parse_config(text: str) -> JobConfig:
    """Read a config that ``dump_config`` has written, in a process that finds all modules it names.

    Raises:
        ConfigError: it cannot be run here.
    """
    return _validated(Tree(values=tomllib.loads(text), files=[Path("the job's config")]))


def _validated(tree: Tree, cores: int | None = None) -> JobConfig:
    components.known_sections(tree, list(JobConfig.model_fields))
    named = components.find_components(tree)
    components.check_fit(tree, named)
    found: dict[str, Any] = {**named, "roles": components.find_roles(tree)}
    for section, model in _PLAIN.items():
        table = tree.values.get(section, {})
        if isinstance(table, dict):
            valid = validated(tree, (section,), model, table)
            found |= {} if valid is None else {section: valid}
    if isinstance(found.get("distribution"), Distribution):
        found["distribution"] = _with_usual_split(found, cores or len(os.sched_getaffinity(0)))
    components.check_environment(tree)
    components.check_transports(tree)
    check_together(tree, found)
    if tree.problems:
        raise ConfigError(sorted(tree.problems, key=_by_section))
    return JobConfig(**found)


def _with_usual_split(found: Mapping[str, Any], cores: int) -> Distribution:
    """Fill in how many actors there are and whether processes are pinned, where the config does not say it.

    Args:
        found: the sections that are valid by themselves.
        cores: of each host.
    """
    distribution: Distribution = found["distribution"]
    roles: Mapping[str, UserRoleSection] = found["roles"]
    others = distribution.cores_of_learners + sum(role.cores for role in roles.values())
    of_group, actor = cores * distribution.hosts // distribution.groups, distribution.actor
    if "num" not in actor.model_fields_set:
        free = of_group if cores <= FEW_CORES else of_group - others
        num = max(1, min(free // actor.cores, _most_usual_actors(found)))
        distribution = distribution.model_copy(update={"actor": actor.model_copy(update={"num": num})})
    if "pin_cores" not in distribution.model_fields_set:
        wanted = others + distribution.actor.num * actor.cores
        distribution = distribution.model_copy(update={"pin_cores": wanted <= of_group})
    return distribution


def _most_usual_actors(found: Mapping[str, Any]) -> int:
    """As many as a rollout has fragments: samples of more would be versions old.

    In step there is one, since what is learned must not depend on the machine; and with a replay, whose
    learner is the slower side as a rule.
    """
    distribution: Distribution = found["distribution"]
    settings = getattr(found.get("training"), "settings", None)
    in_turns = distribution.mode == "sync" or distribution.transport.local == "inproc"
    if in_turns or not isinstance(settings, OnPolicySettings) or "environment" not in found:
        return 1
    fragment = distribution.actor.send_size * found["environment"].num_envs
    return int(settings.rollout_steps) // int(fragment)


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
