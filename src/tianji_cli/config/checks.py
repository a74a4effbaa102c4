"""Refuses settings that are right one by one and can never work together.

An on-policy learner gathers whole fragments of T x N env steps until a rollout is full. So it would wait in
vain for a rollout that is no whole number of fragments, or for one whose share no actor can deliver. The
checks also refuse settings of the buffer and of the rate limiter that would have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any, Final

from tianji_algos import registry as algorithms
from tianji_cli.config.schema import (
    MAX_PROCESSES,
    MOST_IN_SEQUENCE,
    MOST_STEPS,
    Buffer,
    Component,
    Distribution,
    Environment,
    Experiment,
    JobConfig,
    OfReplay,
    OnPolicySettings,
    ReplayLearnerSettings,
    Stop,
    batch_steps_of,
    least_tolerance,
    replay_settings_of,
    sequence_steps_of,
    unroll_of,
)
from tianji_cli.config.source import Tree, path_part
from tianji_cli.errors import UsageError
from tianji_cli.limits import NOT_PINNED, can_pin, usable_cores
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

_REPLAY_SETTINGS: Final = ("batch_size", "replay_ratio", "warmup_steps", "publish_every", "n_step", "gamma")
_FRAGMENT: Final = ("distribution.actor.send_size", "environment.num_envs")
_BATCH: Final = ("training.batch_size", "training.sequence_steps")
_OF_UNROLLS: Final = ("training.burn_in", "training.unroll_steps")
_IN_FLIGHT: Final = (*_FRAGMENT, "distribution.actor.num", "distribution.actor.window")
_SHARED: Final = (("priority_gamma", "gamma"), ("priority_reward_scale", "reward_scale"))
"""Settings of an agent that computes priorities, and those of the update rule that they stand for."""


_FOR_GYMNASIUM: Final = 'leave them out; they are for type = "gym" and gymnasium environments of your own'


def check_together(tree: Tree, sections: Mapping[str, Any]) -> None:
    """Refuse every pair of settings that excludes the other."""
    agent: Component | None = sections.get("agent")
    environment: Environment | None = sections.get("environment")
    training: Component | None = sections.get("training")
    distribution: Distribution | None = sections.get("distribution")
    experiment: Experiment | None = sections.get("experiment")
    groups = 1 if distribution is None else distribution.groups
    if distribution is not None:
        _check_hosts(tree, distribution)
        _check_processes(tree, distribution, experiment, environment)
    if environment is not None:
        check_companions(tree, environment, agent)
    if training is None:
        return
    settings = training.settings
    replay = replay_settings_of(settings)
    if replay is not None:
        if not _check_replay_learner(tree, training.type, replay):
            return
        if distribution is not None:
            _check_replay(tree, replay, distribution, agent)
            if environment is not None:
                _check_replay_sizes(tree, replay, distribution, environment)
        if experiment is not None:
            _check_replay_end(tree, replay, experiment.stop, groups)
    elif isinstance(settings, OnPolicySettings) and isinstance(settings.rollout_steps, int):
        if distribution is not None:
            _check_rollouts(tree, training.type, distribution)
            _check_fragments(tree, settings.rollout_steps, environment, distribution)
        if experiment is not None:
            _check_end(tree, settings.rollout_steps, experiment.stop, groups)
    else:
        what = f"the settings of {training.type!r} do not say what it learns from"
        remedy = (
            f"give them rollout_steps: int, or what a replay's learner has: {', '.join(_REPLAY_SETTINGS)}"
        )
        remedy += "; sequence_steps stands for the last two where it learns from episodes, "
        remedy += "burn_in and unroll_steps where it learns from steps in a row"
        tree.problem("training.type", what, remedy)


def host_warnings(config: JobConfig, cores: int | None = None) -> list[str]:
    """List reasons why a job runs badly on its hosts.

    Some unpinned roles wait while others work, and are meant to share cores. So either the actors alone, or
    all other roles, have to find room.

    Args:
        cores: of each host; those that this process may use by default.
    """
    if cores is None:
        cores = len(usable_cores())
    distribution = config.distribution
    warnings = [NOT_PINNED] if distribution.pin_cores and not can_pin() else []
    actors = distribution.groups * distribution.actor.num * distribution.actor.cores
    others = distribution.groups * (
        distribution.cores_of_learners + sum(section.cores for section in config.roles.values())
    )
    cores *= distribution.hosts
    at_once = actors + others if distribution.pin_cores else max(actors, others)
    if distribution.one_process or at_once <= cores:
        return warnings
    who = "learners and actors" if distribution.buffer.colocate else "learners, buffers and actors"
    return [
        *warnings,
        f"{who} ask for {actors + others} cores and there are {cores}: they will take turns",
    ]


def check_companions(tree: Tree, environment: Environment, agent: Component | None) -> None:
    """Refuse an agent, wrappers and metrics that do not fit the type of environment."""
    try:
        factory = environments.find(environment.type)
    except EnvironmentFailure:
        return  # Noted as a problem of its own.
    if agent is not None:
        _check_agent(tree, agent.type, environment, factory.makes_teams)
    if environment.wrappers:
        _check_wrappers(tree, environment, taken=factory.takes_wrappers)
    if environment.metrics and not factory.takes_metrics:
        what = f"type {environment.type!r} makes no gymnasium environments, whose info metrics are read from"
        tree.problem("environment.metrics", what, _FOR_GYMNASIUM)


def _check_agent(tree: Tree, agent: str, environment: Environment, team: bool | None) -> None:
    """Refuse a built-in agent that acts for a team where the type of environment has none, or the reverse.

    A user's own agents and environments show it only when they are built.
    """
    plays = algorithms.plays_in_team(agent)
    if team is not None and plays is not None and plays != team:
        tree.problem("agent.type", *wrong_agent(agent, environment.id or environment.type, team=team))


def _check_wrappers(tree: Tree, environment: Environment, *, taken: bool) -> None:
    """Refuse wrappers that do not exist or do not take their keywords; all of them without ``taken``."""
    if not taken:
        what = f"type {environment.type!r} makes no gymnasium environments that could be wrapped"
        tree.problem("environment.wrappers", what, _FOR_GYMNASIUM)
        return
    for index, wrapper in enumerate(environment.wrappers):
        try:
            environments.find_wrapper(index, wrapper.type, wrapper.keywords)
        except EnvironmentFailure as error:
            tree.problem(("environment", "wrappers", path_part(index)), str(error))


def wrong_agent(name: str, environment: str, *, team: bool) -> tuple[str, str]:
    """Describe an agent that does not fit an environment, and name the built-in agents that do.

    Args:
        team: the environment has a team, and the agent acts for a single one; the reverse if false.

    Returns:
        The problem, and the remedy.
    """
    *most, last = (other for other in algorithms.names("agent") if algorithms.plays_in_team(other) == team)
    single, many = "a single agent", "a team"
    acts, shows = (single, many) if team else (many, single)
    what = f"{name!r} acts for {acts}, and {environment} shows {shows}"
    return what, f"{', '.join(most)} or {last} would be right"


def _check_fragments(
    tree: Tree, rollout: int, environment: Environment | None, distribution: Distribution
) -> None:
    if environment is None:
        return
    actor, learners = distribution.actor, distribution.learner.num
    fragment = actor.send_size * environment.num_envs
    size = f"{fragment} (send_size {actor.send_size} x num_envs {environment.num_envs})"
    keys = ["training.rollout_steps", *_FRAGMENT]
    unit = fragment * math.lcm(actor.num if distribution.mode == "sync" else 1, learners)
    if rollout % fragment:
        what = f"a rollout of {rollout} steps is no whole number of fragments of {size}"
    elif rollout // fragment % learners:
        what = f"{learners} learners cannot share {rollout} steps evenly in fragments of {size}"
        keys += ["distribution.learner.num"]
    elif rollout % unit:
        what = f"{actor.num} actors in step cannot share {rollout} steps evenly in fragments of {size}"
        keys += ["distribution.actor.num", "distribution.mode"]
    else:
        return
    below = rollout // unit * unit
    right = f"{below} or {below + unit}" if below else str(unit)
    tree.conflict(keys, what, f"rollout_steps = {right} would be right")


def _check_end(tree: Tree, rollout: int, stop: Stop, groups: int) -> None:
    first = rollout * groups
    if stop.env_steps is not None and stop.env_steps <= first:
        of_each = f" of each of {groups} groups" if groups > 1 else ""
        what = f"{stop.env_steps} steps end the run with the first rollout of {rollout}{of_each}"
        keys = ["experiment.stop.env_steps", "training.rollout_steps", "distribution.groups"]
        tree.conflict(keys, f"{what}, before any update", f"env_steps should be more than {first}")


def _check_processes(
    tree: Tree, distribution: Distribution, experiment: Experiment | None, environment: Environment | None
) -> None:
    """Refuse too many processes for a job, and settings that need several where a group has one process."""
    if not distribution.one_process:
        roles = tree.values.get("roles", {})
        groups, of_group = distribution.groups, distribution.learner.num + distribution.actor.num
        of_group += len(roles) if isinstance(roles, dict) else 0
        of_group += not distribution.buffer.colocate
        if groups * of_group > MAX_PROCESSES:
            many = f"{groups} x {of_group} processes are more than {MAX_PROCESSES:,}"
            keys = ["distribution.groups", "distribution.actor.num", "distribution.learner.num"]
            tree.conflict(keys, many, "each is a process that the root is connected to")
        return
    what = 'transport "inproc" puts all roles of a group in one process'
    right = 'transport = "shm" would be right'
    if experiment is not None and experiment.evaluation is not None:
        examines = f"{what}, and evaluations while training have one of their own"
        tree.conflict(["experiment.evaluation", "distribution.transport"], examines, right)
    if environment is not None and environment.on_error == "restart":
        restarts = f"{what}, and no actor can be started again alone"
        tree.conflict(["environment.on_error", "distribution.transport"], restarts, right)
    if distribution.learner.num > 1:
        learners = f"{what}, and {distribution.learner.num} learners need as many"
        tree.conflict(["distribution.learner.num", "distribution.transport"], learners, right)
    if distribution.groups > 1:
        averages = f"{what}, and averages go between processes"
        tree.conflict(["distribution.groups", "distribution.transport"], averages, right)


def _check_hosts(tree: Tree, distribution: Distribution) -> None:
    if distribution.hosts == 1:
        return
    transport = distribution.transport
    keys = ["distribution.transport", "distribution.hosts"]
    right = 'transport = { local = "shm", remote = "zmq" } would be right'
    if not crosses_hosts(transport.remote):
        what = f"{transport.remote!r} does not reach from one host to another, as zmq, mpi and ucx do"
        tree.conflict(keys, f"{what}, and distribution.hosts is {distribution.hosts}", right)
        return
    try:
        edge_capabilities(transport.local, transport.remote, {0: "here", 1: "here", 2: "there"})
    except (MissingExtraError, UnknownTransportError, BrokenEngineError):
        return  # Noted as a problem of its own.
    except TransportError as cause:
        tree.conflict(keys, str(cause), right)


def crosses_hosts(engine: str) -> bool:
    """Whether an engine reaches from one host to another; True if it does not load (reported elsewhere)."""
    try:
        return transports.load(engine).capabilities.cross_host
    except TransportError:
        return True


def check_devices(config: JobConfig) -> None:
    """Refuse GPUs that this build of torch cannot use. The config is valid: another machine may run it.

    Raises:
        UsageError: names the key that asks for a GPU.
    """
    distribution = config.distribution
    devices = {"device": distribution.device, "actor.device": distribution.actor.device}
    wanted = {key: device for key, device in devices.items() if device.startswith("cuda")}
    if not wanted:
        return
    # The build's version says it; asking torch itself would cost seconds. The host that needs a GPU shows
    # whether it has one, once the role is built there.
    version = metadata.version("torch")
    if version.endswith("+cpu"):
        key, device = next(iter(wanted.items()))
        raise UsageError(
            f"distribution.{key}: {device!r} is not there: torch {version} is built without CUDA; "
            '"cpu" would be right, or a CUDA build of torch'
        )


def _set_of_replay(buffer: Buffer) -> Iterator[tuple[str, OfReplay]]:
    """Yield the keys that only a replay heeds and whose values are not the defaults, with their marks."""
    for key, field in Buffer.model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, OfReplay) and getattr(buffer, key) != field.default:
                yield key, mark


def _check_rollouts(tree: Tree, training: str, distribution: Distribution) -> None:
    """Refuse settings that do nothing, or cannot work, where the learner trains on rollouts."""
    buffer = distribution.buffer
    for key, mark in _set_of_replay(buffer):
        what = f"is of a replay, and {training!r} learns from rollouts"
        tree.problem(f"distribution.buffer.{key}", what, mark.remedy)
    if not buffer.colocate:
        what = f"{training!r} learns from rollouts, whose buffer takes turns with the learner"
        what = f"a process of its own is not supported: {what}"
        tree.problem("distribution.buffer.colocate", what, "true is")
    what = f"{training!r} uses every rollout equally often"
    if distribution.balance == "free":
        tree.problem("distribution.balance", what, '"held" would be right')
    if distribution.balance_tolerance is not None:
        tree.problem("distribution.balance_tolerance", what, "leave it out")
    _check_cores(tree, buffer)


def _check_replay_learner(tree: Tree, training: str, settings: ReplayLearnerSettings) -> bool:
    """Refuse numbers of the update rule that no replay can use; returns whether all are right."""
    refused = set[str]()
    for key, most in (("batch_size", None), _steps_key(settings), ("publish_every", None)):
        value = getattr(settings, key)
        if value < 1 or (most is not None and value > most):
            right = "at least 1" if most is None else f"1 to {most}"
            tree.problem(f"training.{key}", f"{value} is out of range for {training!r}", f"{right} is right")
            refused.add(key)
    if settings.replay_ratio <= 0:
        what = f"{settings.replay_ratio} uses of each sample are no training"
        tree.problem("training.replay_ratio", what, "more than 0 is right")
        refused.add("replay_ratio")
    # The steps that would fill an impossible batch are of no use to the user.
    if not refused & {"sequence_steps", "unroll_steps"} and settings.warmup_steps < batch_steps_of(settings):
        what = f"{settings.warmup_steps} env steps do not fill {_batch(settings)}"
        remedy = f"warmup_steps = {batch_steps_of(settings)} would be right"
        tree.conflict(["training.warmup_steps", *_batch_keys(settings)], what, remedy)
        refused.add("warmup_steps")
    return not refused


def _steps_key(settings: ReplayLearnerSettings) -> tuple[str, int]:
    """Name the setting of a sample's length; returns it with the maximum."""
    if unroll_of(settings) is not None:
        return "unroll_steps", MOST_IN_SEQUENCE
    if sequence_steps_of(settings) is not None:
        return "sequence_steps", MOST_IN_SEQUENCE
    return "n_step", MOST_STEPS


def _check_replay(
    tree: Tree, settings: ReplayLearnerSettings, distribution: Distribution, agent: Component | None
) -> None:
    """Refuse settings that exclude one another where the learner draws from a replay."""
    buffer = distribution.buffer
    if distribution.mode == "sync":
        what = "a learner that draws from a replay has no rounds to wait for"
        tree.problem("distribution.mode", what, 'mode = "async" would be right')
    if buffer.rollouts != 1:
        what = "is of rollouts, and the learner draws from a replay"
        tree.problem("distribution.buffer.rollouts", what, "did you mean capacity, in env steps?")
    if not buffer.colocate and distribution.one_process:
        what = 'transport "inproc" puts buffer and learner in one process'
        remedy = 'colocate = true or transport = "shm" would be right'
        tree.conflict(["distribution.buffer.colocate", "distribution.transport"], what, remedy)
    _check_shares(tree, settings, distribution)
    if distribution.balance == "free" and distribution.balance_tolerance is not None:
        what = 'balance = "free" holds no role back'
        keys = ["distribution.balance_tolerance", "distribution.balance"]
        tree.conflict(keys, what, 'balance = "held" would be right')
    _check_cores(tree, buffer)
    computes = agent is not None and getattr(agent.settings, "priorities", False) is True
    if sequence_steps_of(settings) is not None and buffer.sampler != "uniform":
        right = 'sampler = "uniform" would be right'
        tree.problem("distribution.buffer.sampler", "episodes are drawn uniformly", right)
    if unroll_of(settings) is not None and buffer.sampler == "fresh":
        what = "an unroll is complete long after its first step came"
        right = 'sampler = "uniform" or "prioritised" would be right'
        tree.problem("distribution.buffer.sampler", what, right)
    if unroll_of(settings) is not None and computes:
        what = "priorities of steps are none of unrolls, which get theirs from the learner"
        tree.problem("agent.priorities", what, "leave it out")
    elif not buffer.has_priorities:
        may_have = sequence_steps_of(settings) is None
        _check_no_priorities(tree, buffer, computes=computes, may_have=may_have)
    elif agent is not None and computes:
        _check_agent_priorities(tree, settings, agent)


def _check_shares(tree: Tree, settings: ReplayLearnerSettings, distribution: Distribution) -> None:
    """Refuse batches that several learners cannot share."""
    learners, batch = distribution.learner.num, settings.batch_size
    if learners == 1:
        return
    if not distribution.buffer.colocate:
        what = f"one of {learners} learners deals out the batches, and has the replay beside it"
        keys = ["distribution.buffer.colocate", "distribution.learner.num"]
        tree.conflict(keys, what, "colocate = true or distribution.learner.num = 1 would be right")
    if batch % learners:
        below = batch // learners * learners
        right = f"{below} or {below + learners}" if below else str(learners)
        what = f"{learners} learners cannot share {batch} samples evenly"
        keys = ["training.batch_size", "distribution.learner.num"]
        tree.conflict(keys, what, f"batch_size = {right} would be right")


def _check_replay_sizes(
    tree: Tree, settings: ReplayLearnerSettings, distribution: Distribution, environment: Environment
) -> None:
    """Refuse a replay that is too small, and a tolerance that cannot be kept."""
    actor, capacity = distribution.actor, distribution.buffer.capacity
    fragment = actor.send_size * environment.num_envs
    in_flight = actor.num * actor.window * fragment
    under_way = steps_under_way(settings, distribution, environment)
    _check_unrolls(tree, settings, actor.send_size)
    needs: tuple[tuple[int, str, tuple[str, ...]], ...] = (
        (batch_steps_of(settings), _batch(settings), _batch_keys(settings)),
        (settings.warmup_steps, f"the {settings.warmup_steps} of the warm-up", ("training.warmup_steps",)),
        (in_flight, f"the {in_flight} that the actors may have in flight", _IN_FLIGHT),
        (
            under_way,
            f"the {under_way} that samples under way may lie in",
            (*_batch_keys(settings)[1:], *_IN_FLIGHT),
        ),
    )
    most, what, keys = max(needs, key=lambda need: need[0])
    if capacity < most:
        keys = ("distribution.buffer.capacity", *keys)
        tree.conflict(keys, f"{capacity} env steps are less than {what}", f"capacity = {most} would be right")
    tolerance = distribution.balance_tolerance
    least = math.ceil(least_tolerance(fragment, batch_steps_of(settings), settings.replay_ratio))
    if distribution.balance == "held" and tolerance is not None and tolerance < least:
        what = f"within {tolerance} env steps neither a fragment could be received nor a batch be drawn"
        keys = ("distribution.balance_tolerance", *_FRAGMENT, *_batch_keys(settings))
        tree.conflict(keys, what, f"balance_tolerance = {least} would be right")


def _check_unrolls(tree: Tree, settings: ReplayLearnerSettings, send_size: int) -> None:
    """Refuse unrolls that are no whole number of fragments: an unroll begins with a fragment."""
    unroll = unroll_of(settings)
    if unroll is None:
        return
    for key, steps, least in (("burn_in", unroll.burn_in, 0), ("unroll_steps", unroll.learnt, send_size)):
        if steps % send_size or steps < 0:
            below = max(least, steps // send_size * send_size)
            what = f"{steps} steps are no whole fragments of {send_size}"
            keys = [f"training.{key}", "distribution.actor.send_size"]
            shared = math.gcd(unroll.burn_in, unroll.learnt)
            right = f"{key} = {below} or {below + send_size}, or send_size = {shared}"
            tree.conflict(keys, what, f"{right} would be right")


def _batch(settings: ReplayLearnerSettings) -> str:
    steps, unroll = sequence_steps_of(settings), unroll_of(settings)
    batch = f"a batch of {settings.batch_size}"
    if unroll is not None:
        return f"{batch} unrolls of {unroll.learnt} steps"
    return batch + ("" if steps is None else f" sequences of up to {steps}")


def _batch_keys(settings: ReplayLearnerSettings) -> tuple[str, ...]:
    return _BATCH if unroll_of(settings) is None else (_BATCH[0], *_OF_UNROLLS)


def steps_under_way(
    settings: ReplayLearnerSettings, distribution: Distribution, environment: Environment
) -> int:
    """Env steps that a replay has to hold so that it evicts no sample before its end; 0 for transitions.

    While one actor sends the fragments of its sample, each other actor sends as many, besides the fragments
    that it had in flight already.
    """
    unroll, steps, actor = unroll_of(settings), sequence_steps_of(settings), distribution.actor
    if unroll is not None:  # An unroll begins with a fragment.
        fragments = math.ceil(unroll.steps / actor.send_size)
    elif steps is not None:
        fragments = 1 + math.ceil((steps - 1) / actor.send_size)
    else:
        return 0
    fragments += (actor.num - 1) * (fragments + actor.window)
    return fragments * actor.send_size * environment.num_envs


def _check_replay_end(tree: Tree, settings: ReplayLearnerSettings, stop: Stop, groups: int) -> None:
    """Refuse a run that would end before its first update."""
    warmup = settings.warmup_steps * groups
    if stop.env_steps is not None and stop.env_steps <= warmup:
        of_each = f" of {groups} groups" if groups > 1 else ""
        what = f"{stop.env_steps} steps end the run within the {warmup} of its warm-up{of_each}"
        keys = ["experiment.stop.env_steps", "training.warmup_steps", "distribution.groups"]
        tree.conflict(keys, what, f"env_steps should be more than {warmup}")


def _check_cores(tree: Tree, buffer: Buffer) -> None:
    if buffer.colocate and buffer.cores != Buffer().cores:
        what = "a buffer that takes turns with the learner has no cores of its own"
        keys = ["distribution.buffer.cores", "distribution.buffer.colocate"]
        tree.conflict(keys, what, f"cores = {Buffer().cores} would be right")


def _check_no_priorities(tree: Tree, buffer: Buffer, *, computes: bool, may_have: bool) -> None:
    why = f"sampler {buffer.sampler!r} has no priorities"
    right = 'sampler = "prioritised" would be right' if may_have else "leave it out"
    for key, mark in _set_of_replay(buffer):
        if mark.prioritised:
            keys = [f"distribution.buffer.{key}", "distribution.buffer.sampler"]
            tree.conflict(keys, f"{key} does nothing: {why}", right)
    if computes:
        what = f"actors would compute priorities that no role uses: {why}"
        tree.conflict(["agent.priorities", "distribution.buffer.sampler"], what, right)


def _check_agent_priorities(tree: Tree, settings: ReplayLearnerSettings, agent: Component) -> None:
    """Refuse an agent whose settings for priorities differ from the update rule's; either may lack them."""
    for of_agent, of_learner in _SHARED:
        computed_with = getattr(agent.settings, of_agent, None)
        wanted = getattr(settings, of_learner, None)
        if computed_with is not None and wanted is not None and computed_with != wanted:
            what = f"priorities of actors would be none of the learner's, whose {of_learner} is {wanted}"
            keys = [f"agent.{of_agent}", f"training.{of_learner}"]
            tree.conflict(keys, what, f"agent.{of_agent} = {wanted} would be right")
