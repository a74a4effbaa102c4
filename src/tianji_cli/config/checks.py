"""Refuses settings that are right one by one and could never work together.

An on-policy learner gathers whole fragments of T x N env steps until a rollout is full. So a rollout that
is no whole number of fragments, or one whose share no actor can deliver, would be waited for in vain. What
a replay and its learner need of one another is in ``replay_checks``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from importlib import metadata
from typing import Final

from tianji_algos import registry as algorithms
from tianji_cli.config.counts import MAX_PROCESSES
from tianji_cli.config.replay_checks import (
    check_replay,
    check_replay_end,
    check_replay_learner,
    check_replay_sizes,
    check_rollouts,
)
from tianji_cli.config.schema import (
    Component,
    Distribution,
    Environment,
    Experiment,
    JobConfig,
    Section,
    Stop,
)
from tianji_cli.config.source import Tree
from tianji_cli.config.update_rules import OnPolicySettings, ReplayLearnerSettings, replay_settings_of
from tianji_cli.errors import UsageError
from tianji_envs import registry as environments
from tianji_envs.errors import EnvironmentFailure
from tianji_transports import registry as transports
from tianji_transports.composite import edge_capabilities
from tianji_transports.errors import (
    BrokenEngineError,
    MissingExtraError,
    TransportError,
    UnknownTransportError,
)

_ROLLOUT: Final = ("training", "rollout_steps")
_END: Final = ("experiment", "stop", "env_steps")
_LEARNERS: Final = ("distribution", "learner", "num")
_GROUPS: Final = ("distribution", "groups")
_TRANSPORT: Final = ("distribution", "transport")
_OF_REPLAY: Final = ("batch_size", "replay_ratio", "warmup_steps", "publish_every", "n_step", "gamma")


def check_together(tree: Tree, sections: Mapping[str, Section]) -> None:
    """Note every pair of settings that excludes the other.

    Args:
        tree: where problems are noted.
        sections: the sections that are valid by themselves.
    """
    training, distribution = sections.get("training"), sections.get("distribution")
    if isinstance(distribution, Distribution):
        _check_hosts(tree, distribution)
        roles = tree.values.get("roles", {})
        _check_processes(tree, distribution, len(roles) if isinstance(roles, dict) else 0)
    agent, environment = sections.get("agent"), sections.get("environment")
    if isinstance(agent, Component) and isinstance(environment, Environment):
        _check_agent(tree, agent.type, environment)
    if not isinstance(training, Component):
        return
    settings = training.settings
    replay = replay_settings_of(settings)
    if replay is not None:
        if check_replay_learner(tree, training.type, replay):
            _check_with_replay(tree, replay, sections)
    elif isinstance(settings, OnPolicySettings) and isinstance(settings.rollout_steps, int):
        _check_with_rollouts(tree, training.type, settings.rollout_steps, sections)
    else:
        what = f"the settings of {training.type!r} do not say what it learns from"
        remedy = f"give them rollout_steps: int, or what a replay's learner has: {', '.join(_OF_REPLAY)}"
        remedy += "; sequence_steps stands for the last two where it learns from episodes"
        tree.problem(("training", "type"), what, remedy)


def host_warnings(config: JobConfig, cores: int | None = None) -> list[str]:
    """Say what will run but badly on hosts of so many cores each (those this process may use by default).

    Unpinned roles of which some wait while others work are meant to share cores. So it is the actors alone,
    or all others, that have to find room.
    """
    if cores is None:
        cores = len(os.sched_getaffinity(0))
    distribution = config.distribution
    actors = distribution.groups * distribution.actor.num * distribution.actor.cores
    others = distribution.groups * (
        distribution.cores_of_learners + sum(section.cores for section in config.roles.values())
    )
    cores *= distribution.hosts
    at_once = actors + others if distribution.pin_cores else max(actors, others)
    if distribution.transport.local == "inproc" or at_once <= cores:
        return []
    who = "learners and actors" if distribution.buffer.colocate else "learners, buffers and actors"
    return [f"{who} ask for {actors + others} cores and there are {cores}: they will take turns"]


def _check_with_rollouts(tree: Tree, training: str, rollout: int, sections: Mapping[str, Section]) -> None:
    distribution, environment = sections.get("distribution"), sections.get("environment")
    experiment = sections.get("experiment")
    if isinstance(distribution, Distribution):
        check_rollouts(tree, training, distribution)
        if isinstance(environment, Environment):
            _check_fragments(tree, rollout, environment, distribution)
    if isinstance(experiment, Experiment):
        _check_end(tree, rollout, experiment.stop, _groups(distribution))


def _check_with_replay(tree: Tree, settings: ReplayLearnerSettings, sections: Mapping[str, Section]) -> None:
    distribution, environment = sections.get("distribution"), sections.get("environment")
    agent, experiment = sections.get("agent"), sections.get("experiment")
    if isinstance(distribution, Distribution):
        check_replay(tree, settings, distribution, agent if isinstance(agent, Component) else None)
        if isinstance(environment, Environment):
            check_replay_sizes(tree, settings, distribution, environment)
    if isinstance(experiment, Experiment):
        check_replay_end(tree, settings, experiment.stop, _groups(distribution))


def _check_agent(tree: Tree, agent: str, environment: Environment) -> None:
    """Note a built-in agent that acts for a team where the type of environment has none, or the reverse.

    Of users' own agents and environments it shows only when they are built.
    """
    try:
        team = environments.find(environment.type).makes_teams
    except EnvironmentFailure:
        return  # Noted as a problem of its own.
    plays = algorithms.plays_in_team(agent)
    if team is not None and plays is not None and plays != team:
        tree.problem(("agent", "type"), *wrong_agent(agent, environment.id or environment.type, team=team))


def wrong_agent(name: str, environment: str, *, team: bool) -> tuple[str, str]:
    """Say of an agent that it is none for an environment, and which of the built-in ones are.

    Args:
        name: of the agent, as a config names it.
        environment: what users call it.
        team: it shows a team, and the agent acts for one alone; or the other way round.

    Returns:
        what: what is wrong.
        remedy: what would be right.
    """
    *most, last = (other for other in algorithms.names("agent") if algorithms.plays_in_team(other) == team)
    single, many = "a single agent", "a team"
    acts, shows = (single, many) if team else (many, single)
    what = f"{name!r} acts for {acts}, and {environment} shows {shows}"
    return what, f"{', '.join(most)} or {last} would be right"


def _check_fragments(tree: Tree, rollout: int, environment: Environment, distribution: Distribution) -> None:
    actor, learners = distribution.actor, distribution.learner.num
    fragment = actor.send_size * environment.num_envs
    size = f"{fragment} (send_size {actor.send_size} x num_envs {environment.num_envs})"
    keys = [_ROLLOUT, ("distribution", "actor", "send_size"), ("environment", "num_envs")]
    unit = fragment * math.lcm(actor.num if distribution.mode == "sync" else 1, learners)
    if rollout % fragment:
        what = f"a rollout of {rollout} steps is no whole number of fragments of {size}"
    elif rollout // fragment % learners:
        what = f"{learners} learners cannot share {rollout} steps evenly in fragments of {size}"
        keys += [_LEARNERS]
    elif rollout % unit:
        what = f"{actor.num} actors in step cannot share {rollout} steps evenly in fragments of {size}"
        keys += [("distribution", "actor", "num"), ("distribution", "mode")]
    else:
        return
    below = rollout // unit * unit
    right = f"{below} or {below + unit}" if below else str(unit)
    tree.problem(tree.latest(keys), what, f"rollout_steps = {right} would be right")


def _check_end(tree: Tree, rollout: int, stop: Stop, groups: int) -> None:
    first = rollout * groups
    if stop.env_steps is not None and stop.env_steps <= first:
        of_each = f" of each of {groups} groups" if groups > 1 else ""
        what = f"{stop.env_steps} steps end the run with the first rollout of {rollout}{of_each}"
        where = tree.latest([_END, _ROLLOUT, _GROUPS])
        tree.problem(where, f"{what}, before any update", f"env_steps should be more than {first}")


def _groups(distribution: Section | None) -> int:
    return distribution.groups if isinstance(distribution, Distribution) else 1


def _check_processes(tree: Tree, distribution: Distribution, roles: int) -> None:
    """Note more processes than a job can have, and several where all roles of a group share one."""
    if distribution.transport.local != "inproc":
        groups, of_group = distribution.groups, distribution.learner.num + distribution.actor.num + roles
        of_group += not distribution.buffer.colocate
        if groups * of_group > MAX_PROCESSES:
            many = f"{groups} x {of_group} processes are more than {MAX_PROCESSES:,}"
            keys = [_GROUPS, ("distribution", "actor", "num"), _LEARNERS]
            tree.problem(tree.latest(keys), many, "each is a process that the root is connected to")
        return
    what = 'transport "inproc" puts all roles of a group in one process'
    right = 'transport = "shm" would be right'
    if distribution.learner.num > 1:
        learners = f"{what}, and {distribution.learner.num} learners need as many"
        tree.problem(tree.latest([_LEARNERS, _TRANSPORT]), learners, right)
    if distribution.groups > 1:
        tree.problem(tree.latest([_GROUPS, _TRANSPORT]), f"{what}, and averages go between processes", right)


def _check_hosts(tree: Tree, distribution: Distribution) -> None:
    if distribution.hosts == 1:
        return
    transport = distribution.transport
    path = tree.latest([("distribution", "transport"), ("distribution", "hosts")])
    right = 'transport = { local = "shm", remote = "zmq" } would be right'
    if not crosses_hosts(transport.remote):
        what = f"{transport.remote!r} does not reach from one host to another"
        tree.problem(path, f"{what}, and distribution.hosts is {distribution.hosts}", right)
        return
    try:
        edge_capabilities(transport.local, transport.remote, {0: "here", 1: "here", 2: "there"})
    except (MissingExtraError, UnknownTransportError, BrokenEngineError):
        return  # Noted as a problem of its own.
    except TransportError as cause:
        tree.problem(path, str(cause), right)


def crosses_hosts(engine: str) -> bool:
    """Say whether an engine reaches from one host to another; what does not load is reported elsewhere."""
    try:
        return transports.load(engine).capabilities.cross_host
    except TransportError:
        return True


def check_devices(config: JobConfig) -> None:
    """Refuse GPUs that this build of torch cannot use. The config is valid: elsewhere it may run.

    Raises:
        UsageError: says which key asks for one.
    """
    distribution = config.distribution
    devices = {"device": distribution.device, "actor.device": distribution.actor.device}
    wanted = {key: device for key, device in devices.items() if device.startswith("cuda")}
    if not wanted:
        return
    # The build says it in its version; asking torch itself would cost seconds. Whether there is a GPU shows
    # on the host where it is wanted, once the role is built there.
    version = metadata.version("torch")
    if version.endswith("+cpu"):
        key, device = next(iter(wanted.items()))
        raise UsageError(
            f"distribution.{key}: {device!r} is not there: torch {version} is built without CUDA; "
            '"cpu" would be right, or a CUDA build of torch'
        )
