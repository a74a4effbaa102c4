"""Turns TOML into a ``JobConfig``, and back again.

Tables become models. The loader finds agents, models, environments, roles and engines by the names that a
config gives them, and imports no torch.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeGuard

import tomli_w
from pydantic import BaseModel

from tianji_algos import registry as algorithms
from tianji_algos.errors import AlgorithmError
from tianji_cli.config.checks import check_together
from tianji_cli.config.edges import ANSWERS, BATCHES, FRAGMENTS, PRIORITIES, REQUESTS, SHARDS
from tianji_cli.config.problems import known_sections, shown_value, validated
from tianji_cli.config.schema import (
    KINDS,
    MAX_PROCESSES,
    MAX_ROLES,
    OWN_KEYS,
    ROLES,
    Actors,
    Component,
    Distribution,
    Environment,
    Experiment,
    Graph,
    JobConfig,
    OnPolicySettings,
    Population,
    UserRoleSection,
)
from tianji_cli.config.source import Tree, read, shipped_directory
from tianji_cli.config.sweep import Sweep
from tianji_cli.config.trust import OF_CODE, check_code, check_sent, check_trusted
from tianji_cli.errors import ConfigError, Problem, UsageError
from tianji_cli.limits import pins_by_default, usable_cores
from tianji_envs import registry as environments
from tianji_envs.errors import EnvironmentFailure, WrongOptionError
from tianji_plugins import Plugins, nearest
from tianji_transports import registry as transports
from tianji_transports.errors import TransportError

PLAIN: Final[dict[str, type[BaseModel]]] = {
    "experiment": Experiment,
    "environment": Environment,
    "distribution": Distribution,
    "graph": Graph,
}
"""Sections whose keys are the same in every config."""

OPTIONAL: Final[dict[str, type[BaseModel]]] = {"population": Population}
"""Sections that a config may leave out."""

FEW_CORES: Final = 4
"""Up to this number of cores, one actor more than the learners leave cores for pays: it adds a third, a
quarter, ... of what the other actors make, and takes less from a learner that waits."""


def load_config(path: str, overrides: Sequence[str] = (), cores: int | None = None) -> JobConfig:
    """Read a config and check that it can be run, before any process starts.

    Args:
        overrides: the values of ``--set``, each ``SECTION.KEY=VALUE``; later ones win.
        cores: of each host, for keys that the config leaves to the machine; the cores that this process may
            use by default.

    Raises:
        ConfigError: the config cannot be run; lists every problem.
    """
    return resolve(read(path, overrides), cores)


DEFAULTS_OF_OLD_RUNS: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {
        "environment": {"image_layout": "legacy", "trust_wrappers": True},
        "agent": {"scale_actions": False},
        "training": {
            "normalize_observations": False,
            "normalize_rewards": False,
            "normalize_precisely": False,
        },
    }
)
"""Keys that are newer than some runs, by section, with the values that the older runs trained with."""


def load_run_config(path: str, overrides: Sequence[str] = ()) -> JobConfig:
    """Read the config of a run, which may be older than some keys; raises the same as ``load_config``."""
    tree = read(path, overrides)
    fill_in_later_keys(tree)
    return resolve(tree)


def fill_in_later_keys(tree: Tree) -> None:
    """Add the keys that a run's config is too old to have, with the values that the run has trained with."""
    find_extensions(tree, of_run=True)
    for section, later in DEFAULTS_OF_OLD_RUNS.items():
        table = tree.values.get(section)
        if isinstance(table, dict):
            with suppress(AlgorithmError):  # ``resolve`` reports the error.
                known = _keys_of(section, table)
                table |= {key: value for key, value in later.items() if key in known and key not in table}


def _keys_of(section: str, table: Mapping[str, Any]) -> Collection[str]:
    """List the keys of a section; keys of an agent and of an update rule depend on its type."""
    if section in PLAIN:
        return PLAIN[section].model_fields
    return algorithms.settings_type(KINDS[section], str(table.get("type"))).model_fields


def resolve(tree: Tree, cores: int | None = None, *, to_run: bool = True) -> JobConfig:
    """Make a config from the values of files and options, and check that it can be run.

    Args:
        cores: of each host, for keys that are left to the machine; the cores that this process may use by
            default.
        to_run: check that the environment exists.

    Raises:
        ConfigError: the config cannot be run; lists every problem.
    """
    tree.values.setdefault("experiment", {})
    if isinstance(tree.values["experiment"], dict):
        tree.values["experiment"].setdefault("name", tree.files[0].stem.strip())
    find_extensions(tree)
    return _validated(tree, cores, to_run=to_run)


def parse_config(text: str) -> JobConfig:
    """Read a config that ``dump_config`` has written, in a process that finds all modules it names.

    Raises:
        ConfigError: the config cannot be run here.
    """
    return _validated(Tree(values=tomllib.loads(text), files=[Path("the job's config")]))


SWEEP: Final = "sweep"
"""A section of the config that is no part of a job: only `tianji sweep` acts on it."""


def sweep_of(tree: Tree) -> Sweep | None:
    """Read ``[sweep]``; notes its problems. Returns None if the section is missing or wrong."""
    table = tree.values.get(SWEEP)
    return validated(tree, (SWEEP,), Sweep, table) if isinstance(table, dict) else None


def _validated(tree: Tree, cores: int | None = None, *, to_run: bool = True) -> JobConfig:
    known_sections(tree, [*JobConfig.model_fields, SWEEP])
    sweep_of(tree)
    found: dict[str, Any] = {**find_components(tree), "roles": find_roles(tree)}
    for section, model in PLAIN.items():
        table = tree.values.get(section, {})
        if isinstance(table, dict):
            valid = validated(tree, (section,), model, table)
            found |= {} if valid is None else {section: valid}
    for section, model in OPTIONAL.items():
        table = tree.values.get(section)
        if isinstance(table, dict):
            found[section] = validated(tree, (section,), model, table)
    if isinstance(found.get("graph"), Graph):
        check_classes(tree, found["graph"], found["roles"])
        tables = tree.values.get("roles", {})
        if not isinstance(tables, dict) or len(found["roles"]) < len(tables):
            del found["graph"]  # Its roles are not known.
    if isinstance(found.get("distribution"), Distribution):
        found["distribution"] = _with_usual_split(found, cores or len(usable_cores()))
    if to_run:
        check_environment(tree)
    check_transports(tree)
    check_together(tree, found)
    if tree.problems:
        raise ConfigError([*sorted(tree.problems, key=_by_section), *tree.notes])
    return JobConfig(**found).noted(map(str, tree.notes))


def build_validators() -> None:
    """Build the validators of the sections that every config has, so that forked processes share them."""
    models: tuple[type[BaseModel], ...] = (*PLAIN.values(), UserRoleSection, JobConfig)
    for model in models:
        model.model_rebuild(force=True)


def _with_usual_split(found: Mapping[str, Any], cores: int) -> Distribution:
    """Fill in ``actor.num``, the first of its range, and ``pin_cores`` where the config leaves them open."""
    distribution: Distribution = found["distribution"]
    roles: Mapping[str, UserRoleSection] = found["roles"]
    others = distribution.cores_of_learners + sum(role.cores_of_all for role in roles.values())
    of_group, actor = cores * distribution.hosts.max // distribution.groups, distribution.actor
    if (unset := "num" not in actor.model_fields_set) or (actor.num.varies and actor.num.first is None):
        free = of_group if cores <= FEW_CORES else of_group - others
        if actor.core_list:
            free = len(actor.core_list) * distribution.hosts.max // distribution.groups
        most = free // (1 if actor.core_list else actor.cores) * distribution.actors_per_process
        least = distribution.buffer.num * distribution.actors_per_process
        usual = min(max(least, min(most, _most_usual_actors(found))), MAX_PROCESSES)
        first = min(max(usual, actor.num.min), actor.num.max)
        num = Actors(min=usual, max=usual) if unset else actor.num.model_copy(update={"first": first})
        distribution = distribution.model_copy(update={"actor": actor.model_copy(update={"num": num})})
    actor = distribution.actor.with_cores_each(distribution.actor_processes)
    distribution = distribution.model_copy(update={"actor": actor})
    if "pin_cores" not in distribution.model_fields_set:
        wanted = others + distribution.actor_processes * actor.cores
        pins = distribution.names_cores(roles) or (wanted <= of_group and pins_by_default())
        distribution = distribution.model_copy(update={"pin_cores": pins})
    return distribution


def _most_usual_actors(found: Mapping[str, Any]) -> int:
    """Most actors by default: one for each fragment of a rollout; samples of more would be versions old.

    There is one actor with ``mode = "sync"``, since the result must not depend on the machine, and with a
    replay, whose learner is the slower side as a rule.
    """
    distribution: Distribution = found["distribution"]
    settings = getattr(found.get("training"), "settings", None)
    in_turns = distribution.mode == "sync" or distribution.one_process
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
    empty = {name for name in ("roles", "graph") if getattr(config, name) in ({}, Graph())}
    values = _without_none(config.model_dump(mode="json", exclude=empty))
    if not config.distribution.buffer.tables:
        del values["distribution"]["buffer"]["tables"]
    return tomli_w.dumps(values)


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """Leave out None, which TOML does not have; a missing key means the same."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


_IDS: Final[Mapping[str, str]] = {"atari": "Pong", "gym": "CartPole-v1"}
"""An example for each of the environment types that have ids."""


def find_extensions(tree: Tree, *, of_run: bool = False) -> None:
    """Make the user's modules importable, and write their directories and data files into the config.

    A module that a config names lies beside one of the config's files, unless ``experiment.extensions`` names
    other directories. Directories and files are absolute in the resolved config, which may be run from
    anywhere.

    Args:
        of_run: the config is a run's; checkpoints and metrics beside it show the same.

    Raises:
        UntrustedPlaceError: others may change the config or the modules, or the modules came with the run.
            Nothing has been imported then.
    """
    experiment = tree.values.get("experiment", {})
    if not isinstance(experiment, dict):
        return
    directories = experiment.get("extensions")
    modules = set(modules_named(tree.values))
    if directories is None and ("files" in experiment or modules):
        absolute = [file.resolve().parent for file in tree.files]
    elif _are_strings(directories):
        absolute = [path.resolve() for path in _paths(tree, "extensions", directories)]
    else:
        return
    experiment = tree.values.setdefault("experiment", {})
    experiment["extensions"] = list(dict.fromkeys(map(str, absolute)))
    of_run = of_run or all(
        (tree.files[0].parent / name).exists() for name in ("checkpoints", "metrics.jsonl")
    )
    if modules and of_run and tree.origin(("experiment", "extensions")) != "--set":
        check_sent(tree.files[0], ["."] if directories is None else directories)
    installed = shipped_directory()
    for file in tree.files:
        if modules and os.path.isfile(file) and file.parent != installed:
            check_trusted(file, OF_CODE)
    for directory in absolute:
        if directory != installed:
            check_code(directory, modules)
    # Behind everything else: a user's random.py must not stand in for Python's own.
    sys.path.extend(directory for directory in experiment["extensions"] if directory not in sys.path)
    if _are_strings(experiment.get("files")):
        found = [_data_file(tree, path, absolute) for path in _paths(tree, "files", experiment["files"])]
        experiment["files"] = list(dict.fromkeys(map(str, found)))


def _are_strings(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _paths(tree: Tree, key: str, names: Sequence[str]) -> list[Path]:
    """Resolve paths of ``[experiment]`` from the directory of the file that sets them, or the working one."""
    origin = tree.origin(("experiment", key))
    bases = [file for file in tree.files if file.samefile(origin)] if Path(origin).is_file() else []
    parent = bases[0].resolve().parent if bases else Path.cwd()
    return [Path(os.path.normpath(parent / name)) for name in names]


def _data_file(tree: Tree, path: Path, directories: Sequence[Path]) -> Path:
    """Resolve a data file; note a problem if it is missing or would have no place on hosts that join."""
    if not os.path.exists(path):  # Unlike Path's own, it raises nothing where a name is too long.
        tree.problem(("experiment", "files"), f"there is no {path}")
    elif not any(path.is_relative_to(directory) for directory in directories):
        path = path.resolve()
        if not any(path.is_relative_to(directory) for directory in directories):
            known = " and ".join(map(str, directories))
            what = f"{path} is not below {known}, and would have no place on hosts that join"
            tree.problem(("experiment", "files"), what, "experiment.extensions names the directories")
    return path


def modules_named(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the modules that a config's values name, whether they are a user's or not."""
    tables = {section: table for section, table in values.items() if isinstance(table, dict)}
    environment, distribution = tables.get("environment", {}), tables.get("distribution", {})
    transport, buffer = distribution.get("transport"), distribution.get("buffer")
    if environment.get("type") == "pettingzoo":
        yield str(environment.get("id"))  # The id is a module's name.
    roles = (role for role in tables.get("roles", {}).values() if isinstance(role, dict))
    typed = (environment, *(tables.get(section, {}) for section in KINDS), *roles)
    named = [environment.get("id"), *(table.get("type") for table in typed)]
    edges = [
        edge for kind in tables.get("graph", {}).values() if isinstance(kind, dict) for edge in kind.values()
    ]
    named += [edge.get("record") for edge in edges if isinstance(edge, dict)]
    named += _wrappers_named(environment.get("wrappers"))
    named += [buffer.get("sampler")] if isinstance(buffer, dict) else []
    trackers = tables.get("experiment", {}).get("track")
    named += trackers if isinstance(trackers, list) else []
    named += transport.values() if isinstance(transport, dict) else [transport]
    yield from (name.partition(":")[0] for name in named if isinstance(name, str) and ":" in name)


def _wrappers_named(entries: object) -> list[object]:
    entries = entries if isinstance(entries, list) else []
    return [entry.get("type") if isinstance(entry, dict) else entry for entry in entries]


def find_components(tree: Tree) -> dict[str, Component]:
    """Build agent, model and training; note a problem for each that cannot be built."""
    defaults: dict[str, str] = {}
    found: dict[str, Component] = {}
    for section in KINDS:
        table = tree.values.setdefault(section, {})
        if not isinstance(table, dict):
            continue
        name = table.get("type", defaults.get(section))
        if name is None and section == "agent":
            known = ", ".join(repr(agent) for agent in algorithms.names("agent"))
            tree.problem(("agent", "type"), "missing", f"the agents are: {known}")
        elif name is not None and not isinstance(name, str):
            tree.problem((section, "type"), f"{shown_value(name)} does not fit", "it should be a string")
        elif name is not None:
            component = _find_component(tree, section, name, defaults.get(section))
            if component is not None:
                found[section] = component
            if section == "agent":
                defaults = _defaults(name)
    return found


def _find_component(tree: Tree, section: str, name: str, usual: str | None) -> Component | None:
    kind, table = KINDS[section], tree.values[section]

    def derives(former: object) -> bool:
        with suppress(AlgorithmError):  # A type that another file replaces need not exist.
            return algorithms.derives(kind, name, str(former or usual))
        return False

    try:
        model = algorithms.settings_type(kind, name)
    except AlgorithmError as error:
        tree.problem((section, "type"), str(error))
        return None
    tree.inherit((section,), model.model_fields, derives)
    settings = validated(tree, (section,), model, {key: table[key] for key in table if key != "type"})
    return None if settings is None else Component(type=name, settings=settings)


BUILT_IN_ROLES: Final = (
    "root",
    "actor",
    "inference",
    "buffer",
    "learner",
    "follower",
    "examiner",
    "evaluator",
)
"""Names of the roles of every job."""

OTHER_COUNTERS: Final = ("endpoint", FRAGMENTS, BATCHES, SHARDS, PRIORITIES, REQUESTS, ANSWERS)
"""Names of counts of rejected messages, besides roles; a user role of such a name would be ambiguous."""


class HasSettings:
    """Base class of ``UserRole``: what a config and the root read of a role, without its imports."""

    settings_type: ClassVar[type[BaseModel]]
    """Keys of ``[roles.NAME]`` beside ``OWN_KEYS``."""
    restartable: ClassVar[bool] = False
    """Whether a process of the role that a signal has killed is started again."""
    ordered: ClassVar[bool] = True
    """Whether it needs the records of a sender in their order, without gaps."""
    holds: ClassVar[int] = 0
    """Fragments that it may hold on their path, beside the newest, while it waits for others."""


def wrong_role_name(name: str) -> str | None:
    """Return why a role cannot have a name, or None if it can: the name is part of channels and files."""
    if name in BUILT_IN_ROLES:
        return "is the name of a role of every job"
    if name in OTHER_COUNTERS:
        return "is a name that reports use for something else"
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,31}", name) is None:
        return "names no role; 1 to 32 letters, digits and '_' do, beginning with a letter"
    return None


def load_role(name: str) -> type[HasSettings]:
    """Import a role's class by ``module:Class``, or a name of the entry-point group.

    Raises:
        UsageError: the class does not exist, does not import, or is no role with settings.
    """
    found = ROLES.load(name)
    if not (isinstance(found, type) and issubclass(found, HasSettings)):
        raise UsageError(f"role {name!r} is {found!r}, not a subclass of UserRole")
    settings = getattr(found, "settings_type", None)
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        raise UsageError(f"role {name!r} declares no `settings_type`, a pydantic model of its settings")
    taken = sorted({*settings.model_fields} & {*OWN_KEYS})
    if taken:
        raise UsageError(f"role {name!r} has a setting {taken[0]!r}, which every role has: call it otherwise")
    if not isinstance(found.holds, int) or found.holds < 0:
        raise UsageError(f"role {name!r} says holds = {found.holds!r}, and a number of fragments is right")
    return found


RECORDS: Final = Plugins("record", "tianji.records", UsageError, UsageError)


def load_record(name: str) -> type[Any]:
    """Import the class of an edge's records by ``module:Class``, or a name of the entry-point group.

    Returns:
        A class with a class method ``fields(spaces, config)``, which takes ``tianji_algos.core.Spaces`` of
        one environment and the whole config, and returns a ``FieldSpec`` for each array of a record.

    Raises:
        UsageError: the class does not exist, does not import, or declares no fields.
    """
    found = RECORDS.load(name)
    is_role = isinstance(found, type) and issubclass(found, HasSettings)  # Its ``fields`` are others.
    if is_role or not (isinstance(found, type) and callable(getattr(found, "fields", None))):
        raise UsageError(f"record {name!r} is {found!r}, and has no class method `fields(spaces, config)`")
    return found


def check_classes(tree: Tree, graph: Graph, roles: Mapping[str, UserRoleSection]) -> None:
    """Note a problem for records that cannot be imported, and for roles that need order and get none."""
    for name, channel in graph.channels.items():
        receivers = sum(channel.steps[1:], ()) if channel.route == "credit" else ()
        for role in receivers:
            if role in roles and load_role(roles[role].type).ordered:
                what = f"{role!r} needs its records in order, without gaps"
                remedy = f'route = "share", or ordered = False in the class of {role!r}, would be right'
                tree.problem(("graph", "channels", name, "route"), f"{what}; {remedy}")
    for kind, edges in (("channels", graph.channels), ("slots", graph.slots)):
        for name, edge in edges.items():
            if not edge.record:  # ``config.graph`` says whether that is right.
                continue
            try:
                load_record(edge.record)
            except UsageError as error:
                tree.problem(("graph", kind, name, "record"), str(error))


def find_roles(tree: Tree) -> dict[str, UserRoleSection]:
    """Build the user roles; note a problem for each that cannot be built."""
    tables = tree.values.get("roles", {})
    found: dict[str, UserRoleSection] = {}
    if not isinstance(tables, dict):
        return found  # Reported as no section already.
    if len(tables) > MAX_ROLES:
        what = f"{len(tables)} are more than {MAX_ROLES}: each is a process in every group"
        tree.problem(("roles",), what)
        return found
    for name, table in tables.items():
        wrong = wrong_role_name(name)
        if wrong is not None:
            tree.problem(("roles", name), f"{name!r} {wrong}")
        elif not isinstance(table, dict):
            tree.problem(("roles", name), f"{shown_value(table)} is no role", f"write [roles.{name}]")
        else:
            section = _find_role(tree, name, table)
            if section is not None:
                found[name] = section
    return found


def _find_role(tree: Tree, name: str, table: Mapping[str, Any]) -> UserRoleSection | None:
    at = ("roles", name)
    type_name = table.get("type")
    if type_name is None:
        tree.problem((*at, "type"), "missing", 'for example type = "my_module:MyRole"')
        return None
    common = {key: table[key] for key in table if key in OWN_KEYS}
    section = validated(tree, at, UserRoleSection, {**common, "settings": {}})
    if not isinstance(type_name, str):
        return None  # Reported as a wrong value already.
    try:
        settings_type = load_role(type_name).settings_type
    except UsageError as error:
        tree.problem((*at, "type"), str(error))
        return None
    settings = validated(tree, at, settings_type, {key: table[key] for key in table if key not in common})
    if section is None or settings is None:
        return None
    return section.model_copy(update={"settings": settings})


def _defaults(agent: str) -> dict[str, str]:
    try:
        defaults = algorithms.agent_defaults(agent)
    except AlgorithmError:
        # The agent is noted as a problem already; the agent of the nearest name gives model and training.
        near = nearest(agent, algorithms.names("agent"))
        return {} if not near or near[0] == agent else _defaults(near[0])
    return {"model": defaults.model, "training": defaults.embryo}


def check_environment(tree: Tree) -> None:
    """Refuse an environment's type, id or options that do not exist, or whose library is missing."""
    table = tree.values.get("environment")
    name = table.get("type") if isinstance(table, dict) else None
    if not isinstance(table, dict) or not isinstance(name, str):
        return  # Reported as a wrong value already.
    try:
        factory = environments.find(name)
    except EnvironmentFailure as error:
        tree.problem(("environment", "type"), str(error))
        return
    given, options = table.get("id"), table.get("options", {})
    env_id, path = given if isinstance(given, str) else "", "environment.id"
    try:
        factory.check_id(env_id)
    except EnvironmentFailure as error:
        if given is None:
            example = f'for example id = "{_IDS[name]}"' if name in _IDS else ""
            tree.problem(path, f"missing: {error}", example)
        elif isinstance(given, str):
            tree.problem(path, str(error))
        return  # The options may depend on the id.
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an id "module:Name-v0" imports a module of the user's
        tree.problem(path, f"{given!r} does not import: {type(error).__name__}: {error}")
        return
    path = "environment.options"
    try:
        if isinstance(options, dict):
            factory.check_options(env_id, options)
    except WrongOptionError as error:
        tree.problem(("environment", "options", error.option), str(error))
    except EnvironmentFailure as error:
        tree.problem(path, str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a factory of the user's may raise anything
        tree.problem(path, f"cannot be checked: {type(error).__name__}: {error}")


def check_transports(tree: Tree) -> None:
    """Refuse engines that do not exist, are not installed or do not load."""
    distribution = tree.values.get("distribution", {})
    default = Distribution().transport.local
    written = distribution.get("transport", default) if isinstance(distribution, dict) else None
    path = ("distribution", "transport")
    edges = (
        {(*path, edge): name for edge, name in written.items()}
        if isinstance(written, dict)
        else {path: written}
    )
    for place, name in edges.items():
        if not isinstance(name, str):
            continue  # Reported as a wrong value already.
        try:
            transports.load(name)
        except TransportError as error:
            tree.problem(place, str(error))
