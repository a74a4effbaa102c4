"""Refuses settings that are right one by one and can never work together.

A rule is a generator: its parameters name the sections that it compares, and it yields the conflicts between
them. ``check_together`` runs it if all sections without a default are valid, so that a wrong section hides no
problem of the others. Keys of one section that exclude each other are refused by its model's validators.

An on-policy learner gathers whole fragments of T x N env steps until a rollout is full. So it would wait in
vain for a rollout that is no whole number of fragments, or for one whose share no actor can deliver. The
rules also refuse settings of the buffer and of the rate limiter that would have no effect.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any, Final

from tianji_algos import registry as algorithms
from tianji_cli.config import graph as graph_rules
from tianji_cli.config import population
from tianji_cli.config.schema import (
    HALVES,
    KINDS,
    MAX_PROCESSES,
    MOST_IN_SEQUENCE,
    MOST_STEPS,
    Buffer,
    Component,
    Distribution,
    Environment,
    Experiment,
    Graph,
    JobConfig,
    OfReplay,
    OnPolicySettings,
    Population,
    ReplayLearnerSettings,
    UserRoleSection,
    batch_steps_of,
    least_tolerance,
    replay_settings_of,
    section_key,
    sequence_steps_of,
    unroll_of,
)
from tianji_cli.config.source import Conflict, Tree, path_part
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
    """Note every conflict between the valid sections of a config.

    Besides sections, a rule may ask for ``rollout_steps`` or ``replay``, settings of an update rule that
    learns from rollouts or from a replay; ``replay`` is there only if its numbers are possible.
    """
    known = {name: section for name, section in sections.items() if section is not None}
    if (training := known.get("training")) is not None:
        wrong = list(_learns_from_something(training))
        tree.report(wrong)
        settings = training.settings
        if (replay := replay_settings_of(settings)) is not None and not wrong:
            known["replay"] = replay
        elif isinstance(settings, OnPolicySettings) and not wrong:
            known["rollout_steps"] = settings.rollout_steps
    for rule in RULES:
        parameters = inspect.signature(rule).parameters
        if all(name in known or one.default is not one.empty for name, one in parameters.items()):
            tree.report(rule(**{name: known[name] for name in parameters if name in known}))


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
    actors = distribution.groups * distribution.actor_processes * distribution.actor.cores
    others = distribution.groups * (
        distribution.cores_of_learners + sum(section.cores_of_all for section in config.roles.values())
    )
    cores *= distribution.hosts.max
    at_once = actors + others if distribution.pin_cores else max(actors, others)
    if distribution.one_process or at_once <= cores:
        return warnings
    who = "learners and actors" if distribution.buffer.colocate else "learners, buffers and actors"
    return [
        *warnings,
        f"{who} ask for {actors + others} cores and there are {cores}: they will take turns",
    ]


def _components_match(
    agent: Component | None = None, model: Component | None = None, training: Component | None = None
) -> Iterator[Conflict]:
    """Built-in agents, models and update rules work with one another.

    A user's own classes can be checked only once they are imported.
    """
    named = {"agent": agent, "training": training, "model": model}
    contract = {
        section: algorithms.contract(KINDS[section], component.type)
        for section, component in named.items()
        if component is not None
    }
    if agent and training and contract["agent"] and contract["training"]:
        right = algorithms.agent_defaults(agent.type).embryo  # It learns from what its own agent records.
        if training.type != right:
            what = f"{training.type!r} does not go with agent {agent.type!r}"
            yield Conflict(["training.type"], what, f"training.type = {right!r} would be right")
            return
    for section in ("agent", "training"):
        other, wanted = named[section], contract.get(section)
        if model and other and wanted and contract["model"] not in (None, wanted):
            what = f"{model.type!r} does not go with {section} {other.type!r}"
            models = " or ".join(map(repr, algorithms.built_in_names("model", wanted)))
            yield Conflict(["model.type"], what, f"model.type = {models} would be right")
            return


def companions_fit(environment: Environment, agent: Component | None = None) -> Iterator[Conflict]:
    """The agent, the wrappers and the metrics fit the type of environment."""
    try:
        factory = environments.find(environment.type)
    except EnvironmentFailure:
        return  # Noted as a problem of its own.
    if agent is not None:
        # A user's own agents and environments show it only when they are built.
        plays, team = algorithms.plays_in_team(agent.type), factory.makes_teams
        if team is not None and plays is not None and plays != team:
            name = environment.id or environment.type
            yield Conflict(["agent.type"], *wrong_agent(agent.type, name, team=team))
    if environment.wrappers and not factory.takes_wrappers:
        what = f"type {environment.type!r} makes no gymnasium environments that could be wrapped"
        yield Conflict(["environment.wrappers"], what, _FOR_GYMNASIUM)
    elif environment.wrappers:
        for index, wrapper in enumerate(environment.wrappers):
            try:
                environments.find_wrapper(index, wrapper.type, wrapper.keywords)
            except EnvironmentFailure as error:
                yield Conflict([f"environment.wrappers.{path_part(index)}"], str(error))
    if environment.metrics and not factory.takes_metrics:
        what = f"type {environment.type!r} makes no gymnasium environments, whose info metrics are read from"
        yield Conflict(["environment.metrics"], what, _FOR_GYMNASIUM)


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


def _fragments_fill_rollouts(
    rollout_steps: int, environment: Environment, distribution: Distribution
) -> Iterator[Conflict]:
    """A rollout is a whole number of fragments, of which learners and actors in step have equal shares."""
    rollout, actor, learners = rollout_steps, distribution.actor, distribution.learner.num
    fragment = actor.send_size * environment.num_envs
    size = f"{fragment} (send_size {actor.send_size} x num_envs {environment.num_envs})"
    keys = ["training.rollout_steps", *_FRAGMENT]
    unit = fragment * math.lcm(actor.num.max if distribution.mode == "sync" else 1, learners)
    if rollout % fragment:
        what = f"a rollout of {rollout} steps is no whole number of fragments of {size}"
    elif rollout // fragment % learners:
        what = f"{learners} learners cannot share {rollout} steps evenly in fragments of {size}"
        keys += ["distribution.learner.num"]
    elif rollout % unit:
        what = f"{actor.num.max} actors in step cannot share {rollout} steps evenly in fragments of {size}"
        keys += ["distribution.actor.num", "distribution.mode"]
    else:
        return
    below = rollout // unit * unit
    right = f"{below} or {below + unit}" if below else str(unit)
    yield Conflict(keys, what, f"rollout_steps = {right} would be right")


def _run_has_an_update(
    experiment: Experiment,
    distribution: Distribution | None = None,
    rollout_steps: int | None = None,
    replay: ReplayLearnerSettings | None = None,
) -> Iterator[Conflict]:
    """The run goes on after the first rollout, or the warm-up, of all groups."""
    end, groups = experiment.stop.env_steps, 1 if distribution is None else distribution.groups
    first = groups * (rollout_steps or (replay.warmup_steps if replay is not None else 0))
    if end is None or end > first:
        return
    if replay is None:
        of_each = f" of each of {groups} groups" if groups > 1 else ""
        what = f"with the first rollout of {rollout_steps}{of_each}, before any update"
        key = "training.rollout_steps"
    else:
        what = f"within the {first} of its warm-up" + (f" of {groups} groups" if groups > 1 else "")
        key = "training.warmup_steps"
    keys = ["experiment.stop.env_steps", key, "distribution.groups"]
    yield Conflict(keys, f"{end} steps end the run {what}", f"env_steps should be more than {first}")


def _processes_are_few(
    distribution: Distribution, roles: Mapping[str, UserRoleSection]
) -> Iterator[Conflict]:
    """A job has no more processes than the root can be connected to."""
    groups, of_group = distribution.groups, distribution.learner.num + distribution.actor_processes
    of_group += 0 if distribution.inference is None else distribution.inference.num
    of_group += sum(section.num for section in roles.values() if section.per == "group")
    of_group += 0 if distribution.buffer.colocate else distribution.buffer.num
    if not distribution.one_process and groups * of_group > MAX_PROCESSES:
        many = f"{groups} x {of_group} processes are more than {MAX_PROCESSES:,}"
        keys = ["distribution.groups", "distribution.actor.num", "distribution.learner.num"]
        yield Conflict(keys, many, "each is a process that the root is connected to")


def _one_process_is_enough(
    distribution: Distribution, experiment: Experiment | None = None, environment: Environment | None = None
) -> Iterator[Conflict]:
    """No setting needs several processes where a group has one."""
    if not distribution.one_process:
        return
    refused = {
        "experiment.evaluation": experiment is not None
        and experiment.evaluation is not None
        and "evaluations while training have one of their own",
        "environment.on_error": environment is not None
        and environment.on_error == "restart"
        and "no actor can be started again alone",
        "distribution.learner.num": distribution.learner.num > 1
        and f"{distribution.learner.num} learners need as many",
        "distribution.groups": distribution.groups > 1 and "averages go between processes",
        "distribution.inference": distribution.inference is not None and "inference apart has its own",
    }
    for key, why in refused.items():
        if why:
            what = f'transport "inproc" puts all roles of a group in one process, and {why}'
            yield Conflict([key, "distribution.transport"], what, 'transport = "shm" would be right')


def _inference_serves_actors(
    distribution: Distribution, environment: Environment, training: Component
) -> Iterator[Conflict]:
    """Inference apart has actors to serve, and neither order nor statistics that it could not keep."""
    inference, place = distribution.inference, "distribution.inference"
    if inference is None:
        return
    served = distribution.actor_processes
    if inference.num > served:
        many = f"{distribution.actor.num.max} actors, {HALVES} a process"
        what = f"{inference.num} processes of inference share {many}"
        keys = [f"{place}.num", "distribution.actor.num"]
        yield Conflict(keys, f"{what}: some would serve none", f"num = {served} at most would be right")
    if inference.max_batch is not None and inference.max_batch < environment.num_envs:
        what = f"the observations of an actor's {environment.num_envs} environments come together"
        keys = [f"{place}.max_batch", "environment.num_envs"]
        yield Conflict(keys, what, f"max_batch = {environment.num_envs} or more would be right")
    if distribution.mode == "sync":
        what = "batches form as actors ask, and a batch's size rounds its numbers: no run would repeat itself"
        yield Conflict([place, "distribution.mode"], what, 'mode = "async" would be right')
    if getattr(training.settings, "normalize_values", False):
        what = "actors restore values by statistics that lie among the parameters, which they do not get"
        yield Conflict([place, "training.normalize_values"], what, "normalize_values = false would be right")


def _engine_reaches_hosts(distribution: Distribution) -> Iterator[Conflict]:
    """The engine between hosts reaches from one to another, and goes with the one inside a host."""
    if distribution.hosts.max == 1:
        return
    transport = distribution.transport
    keys = ["distribution.transport", "distribution.hosts"]
    right = 'transport = { local = "shm", remote = "zmq" } would be right'
    if not crosses_hosts(transport.remote):
        what = f"{transport.remote!r} does not reach from one host to another, as zmq, mpi and ucx do"
        yield Conflict(keys, f"{what}, and distribution.hosts is {distribution.hosts.max}", right)
        return
    try:
        edge_capabilities(transport.local, transport.remote, {0: "here", 1: "here", 2: "there"})
    except (MissingExtraError, UnknownTransportError, BrokenEngineError):
        return  # Noted as a problem of its own.
    except TransportError as cause:
        yield Conflict(keys, str(cause), right)


def _hosts_may_come(distribution: Distribution, roles: Mapping[str, UserRoleSection]) -> Iterator[Conflict]:
    """Check that the job can begin before all hosts are there: those that come later carry actors alone."""
    hosts, keys = distribution.hosts, ["distribution.hosts"]
    if not hosts.varies:
        return
    if distribution.mode == "sync":
        what = "actors in step are waited for, so all hosts have to be there"
        yield Conflict([*keys, "distribution.mode"], what, f"hosts = {hosts.max} would be right")
    if distribution.groups > hosts.min:
        what = f"each of {distribution.groups} groups has its learner on a host that is there from the start"
        right = f"hosts.min = {distribution.groups} would be right"
        yield Conflict([*keys, "distribution.groups"], what, right)
    if not distribution.buffer.colocate and distribution.buffer.num > 1:
        what = "several buffers are spread over all hosts, which have to be there from the start"
        yield Conflict([*keys, "distribution.buffer.num"], what, f"hosts = {hosts.max} would be right")
    for name in [name for name, role in roles.items() if role.num > 1]:
        what = f"the processes of {name} are spread over all hosts, which have to be there from the start"
        yield Conflict([*keys, f"roles.{name}.num"], what, f"hosts = {hosts.max} would be right")


def _placement_can_be_chosen(
    distribution: Distribution, roles: Mapping[str, UserRoleSection]
) -> Iterator[Conflict]:
    """Check that roles whose hosts or cores are named have processes of their own that may go there."""
    transport, hosts = distribution.transport, distribution.keys_of_hosts(roles)
    for role, section in distribution.placed(roles).items():
        key = section_key(role, roles)
        placed = [f"{key}.hosts"] if section.hosts else [f"{key}.cores"] if section.core_list else []
        if placed and distribution.one_process and role != "learner":
            what = (
                'transport "inproc" puts all roles of a group in one process, whose place is the learner\'s'
            )
            yield Conflict([*placed, "distribution.transport"], what, "distribution.learner would be right")
        elif placed and role == "buffer" and distribution.buffer.colocate:
            what = "the buffer is in the learner's process"
            yield Conflict([*placed, "distribution.buffer.colocate"], what, "colocate = false would be right")
        if section.core_list and not distribution.pin_cores:
            what = "cores are named, and processes are not tied to cores"
            yield Conflict(
                [f"{key}.cores", "distribution.pin_cores"], what, "pin_cores = true would be right"
            )
    if hosts and "mpi" in {transport.local, transport.remote}:
        what = "an MPI launcher places the ranks"
        yield Conflict([*hosts, "distribution.transport"], what, "name the hosts to the launcher")


def _actors_may_vary(distribution: Distribution, population: Population | None = None) -> Iterator[Conflict]:
    """Check that actors can be parked one by one while the others go on."""
    transport, num = distribution.transport, distribution.actor.num
    if not num.varies:
        return
    refused = {
        "distribution.mode": distribution.mode == "sync" and "actors in step wait for one another",
        "distribution.transport": {transport.local, transport.remote} & {"inproc", "mpi"}
        and "with this transport no actor can rest alone",
        "distribution.inference": distribution.inference is not None
        and "inference apart waits for all of them",
        "distribution.buffer.num": distribution.buffer.num > 1 and "each of several buffers wants samples",
        "population": population is not None and "its members are compared with the same actors",
    }
    for key, why in refused.items():
        if why:
            what = f"the number of actors that work varies, and {why}"
            yield Conflict(["distribution.actor.num", key], what, f"num = {num.max} would be right")


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
    if distribution.inference is not None:
        devices["inference.device"] = distribution.inference.device
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


def _rollouts_need_no_replay(
    rollout_steps: int,  # noqa: ARG001 - the learner trains on rollouts
    training: Component,
    distribution: Distribution,
) -> Iterator[Conflict]:
    """No setting does nothing, or cannot work, where the learner trains on rollouts."""
    buffer, name = distribution.buffer, training.type
    for key, mark in _set_of_replay(buffer):
        what = f"is of a replay, and {name!r} learns from rollouts"
        yield Conflict([f"distribution.buffer.{key}"], what, mark.remedy)
    if not buffer.colocate and distribution.mode == "sync":
        what = "actors in step wait for the learner: a buffer apart from it could do nothing meanwhile"
        keys = ["distribution.buffer.colocate", "distribution.mode"]
        yield Conflict(keys, what, 'colocate = true or mode = "async" would be right')
    what = f"{name!r} uses every rollout equally often"
    if distribution.balance == "free":
        yield Conflict(["distribution.balance"], what, '"held" would be right')
    if distribution.balance_tolerance is not None:
        yield Conflict(["distribution.balance_tolerance"], what, "leave it out")


def _learns_from_something(training: Component) -> Iterator[Conflict]:
    """The update rule says what it learns from, and in numbers that a replay can use if it is one."""
    settings = replay_settings_of(training.settings)
    if settings is None:
        if not isinstance(getattr(training.settings, "rollout_steps", None), int):
            what = f"the settings of {training.type!r} do not say what it learns from"
            of_replay = ", ".join(_REPLAY_SETTINGS)
            remedy = f"give them rollout_steps: int, or what a replay's learner has: {of_replay}"
            remedy += "; sequence_steps stands for the last two where it learns from episodes, "
            remedy += "burn_in and unroll_steps where it learns from steps in a row"
            yield Conflict(["training.type"], what, remedy)
        return
    refused = set[str]()
    for key, most in (("batch_size", None), _steps_key(settings), ("publish_every", None)):
        value = getattr(settings, key)
        if value < 1 or (most is not None and value > most):
            right = "at least 1" if most is None else f"1 to {most}"
            what = f"{value} is out of range for {training.type!r}"
            yield Conflict([f"training.{key}"], what, f"{right} is right")
            refused.add(key)
    if settings.replay_ratio <= 0:
        what = f"{settings.replay_ratio} uses of each sample are no training"
        yield Conflict(["training.replay_ratio"], what, "more than 0 is right")
    # The steps that would fill an impossible batch are of no use to the user.
    if not refused & {"sequence_steps", "unroll_steps"} and settings.warmup_steps < batch_steps_of(settings):
        what = f"{settings.warmup_steps} env steps do not fill {_batch(settings)}"
        remedy = f"warmup_steps = {batch_steps_of(settings)} would be right"
        yield Conflict(["training.warmup_steps", *_batch_keys(settings)], what, remedy)


def _steps_key(settings: ReplayLearnerSettings) -> tuple[str, int]:
    """Name the setting of a sample's length; returns it with the maximum."""
    if unroll_of(settings) is not None:
        return "unroll_steps", MOST_IN_SEQUENCE
    if sequence_steps_of(settings) is not None:
        return "sequence_steps", MOST_IN_SEQUENCE
    return "n_step", MOST_STEPS


def _replay_needs_no_rounds(
    replay: ReplayLearnerSettings,  # noqa: ARG001 - the learner draws from a replay
    distribution: Distribution,
) -> Iterator[Conflict]:
    """No setting does nothing, or cannot work, where the learner draws from a replay."""
    buffer = distribution.buffer
    if distribution.mode == "sync":
        what = "a learner that draws from a replay has no rounds to wait for"
        yield Conflict(["distribution.mode"], what, 'mode = "async" would be right')
    if buffer.rollouts != 1:
        what = "is of rollouts, and the learner draws from a replay"
        yield Conflict(["distribution.buffer.rollouts"], what, "did you mean capacity, in env steps?")
    if distribution.balance == "free" and distribution.balance_tolerance is not None:
        what = 'balance = "free" holds no role back'
        keys = ["distribution.balance_tolerance", "distribution.balance"]
        yield Conflict(keys, what, 'balance = "held" would be right')


def _learners_share_batches(replay: ReplayLearnerSettings, distribution: Distribution) -> Iterator[Conflict]:
    """Several learners can share the batches of a replay."""
    learners, batch = distribution.learner.num, replay.batch_size
    if learners == 1:
        return
    if not distribution.buffer.colocate:
        what = f"one of {learners} learners deals out the batches, and has the replay beside it"
        keys = ["distribution.buffer.colocate", "distribution.learner.num"]
        yield Conflict(keys, what, "colocate = true or distribution.learner.num = 1 would be right")
    if batch % learners:
        below = batch // learners * learners
        right = f"{below} or {below + learners}" if below else str(learners)
        what = f"{learners} learners cannot share {batch} samples evenly"
        keys = ["training.batch_size", "distribution.learner.num"]
        yield Conflict(keys, what, f"batch_size = {right} would be right")


def _replay_holds_samples(
    replay: ReplayLearnerSettings,
    distribution: Distribution,
    environment: Environment,
    roles: Mapping[str, UserRoleSection],
    graph: Graph,
) -> Iterator[Conflict]:
    """The replay is large enough, and its tolerance can be kept."""
    actor, capacity, shards = distribution.actor, distribution.buffer.capacity, distribution.buffer.num
    fragment = actor.send_size * environment.num_envs
    held = fragments_held_between(graph, roles, actor.window)
    in_flight = (distribution.actors_of_a_buffer * actor.window + held) * fragment
    warmup = math.ceil(replay.warmup_steps / shards)
    under_way = steps_under_way(replay, distribution, environment, held)
    needs: tuple[tuple[int, str, tuple[str, ...]], ...] = (
        (batch_steps_of(replay), _batch(replay), _batch_keys(replay)),
        (warmup, f"the {warmup} of the warm-up", ("training.warmup_steps",)),
        (in_flight, f"the {in_flight} that the actors may have in flight", _IN_FLIGHT),
        (
            under_way,
            f"the {under_way} that samples under way may lie in",
            (*_batch_keys(replay)[1:], *_IN_FLIGHT),
        ),
    )
    most, what, keys = max(needs, key=lambda need: need[0])
    if math.ceil(capacity / shards) < most:
        keys = ("distribution.buffer.capacity", *keys)
        of_each = "" if shards == 1 else f" in {shards} buffers"
        less = f"{capacity} env steps{of_each} are less than {what}" + (" in each" if of_each else "")
        yield Conflict(keys, less, f"capacity = {shards * most} would be right")
    least_of_table = max(batch_steps_of(replay), under_way)
    for role, table in distribution.buffer.tables.items():
        if math.ceil(table.capacity / shards) < least_of_table:
            key = f"distribution.buffer.tables.{role}.capacity"
            less = f"{table.capacity} env steps are less than those that samples under way may lie in"
            yield Conflict([key], less, f"capacity = {shards * least_of_table} would be right")
    tolerance = distribution.balance_tolerance
    least = math.ceil(least_tolerance(fragment, batch_steps_of(replay), replay.replay_ratio))
    if distribution.balance == "held" and tolerance is not None and tolerance < least:
        what = f"within {tolerance} env steps neither a fragment could be received nor a batch be drawn"
        keys = ("distribution.balance_tolerance", *_FRAGMENT, *_batch_keys(replay))
        yield Conflict(keys, what, f"balance_tolerance = {least} would be right")


def _unrolls_are_whole_fragments(
    replay: ReplayLearnerSettings, distribution: Distribution
) -> Iterator[Conflict]:
    """An unroll begins with a fragment, so it is a whole number of them."""
    unroll, send_size = unroll_of(replay), distribution.actor.send_size
    if unroll is None:
        return
    for key, steps, least in (("burn_in", unroll.burn_in, 0), ("unroll_steps", unroll.learnt, send_size)):
        if steps % send_size or steps < 0:
            below = max(least, steps // send_size * send_size)
            what = f"{steps} steps are no whole fragments of {send_size}"
            keys = [f"training.{key}", "distribution.actor.send_size"]
            shared = math.gcd(unroll.burn_in, unroll.learnt)
            right = f"{key} = {below} or {below + send_size}, or send_size = {shared}"
            yield Conflict(keys, what, f"{right} would be right")


def _batch(settings: ReplayLearnerSettings) -> str:
    steps, unroll = sequence_steps_of(settings), unroll_of(settings)
    batch = f"a batch of {settings.batch_size}"
    if unroll is not None:
        return f"{batch} unrolls of {unroll.learnt} steps"
    return batch + ("" if steps is None else f" sequences of up to {steps}")


def _batch_keys(settings: ReplayLearnerSettings) -> tuple[str, ...]:
    return _BATCH if unroll_of(settings) is None else (_BATCH[0], *_OF_UNROLLS)


def fragments_held_between(graph: Graph, roles: Mapping[str, UserRoleSection], window: int) -> int:
    """Count the fragments that roles between actors and buffer may hold, in hand and in windows sent on."""
    sections = [roles[role] for role in graph.path_of_fragments if role in roles]
    return sum(section.num * (window + 1 + section.holds) for section in sections)


def steps_under_way(
    settings: ReplayLearnerSettings, distribution: Distribution, environment: Environment, held: int = 0
) -> int:
    """Env steps that a buffer has to hold so that it evicts no sample before its end; 0 for transitions.

    While one actor sends the fragments of its sample, each other actor sends as many, besides the fragments
    that it had in flight already.

    Args:
        held: fragments that roles between actors and buffer hold.
    """
    unroll, steps, actor = unroll_of(settings), sequence_steps_of(settings), distribution.actor
    if unroll is not None:  # An unroll begins with a fragment.
        fragments = math.ceil(unroll.steps / actor.send_size)
    elif steps is not None:
        fragments = 1 + math.ceil((steps - 1) / actor.send_size)
    else:
        return 0
    others = distribution.actors_of_a_buffer - 1
    fragments += others * (fragments + actor.window) + held
    return fragments * actor.send_size * environment.num_envs


def _buffers_have_processes(
    distribution: Distribution, roles: Mapping[str, UserRoleSection], graph: Graph
) -> Iterator[Conflict]:
    """A buffer has cores, or others beside it, only in a process of its own; each receives something."""
    buffer = distribution.buffer
    if not buffer.colocate and distribution.one_process:
        what = 'transport "inproc" puts buffer and learner in one process'
        remedy = 'colocate = true or transport = "shm" would be right'
        yield Conflict(["distribution.buffer.colocate", "distribution.transport"], what, remedy)
    if buffer.colocate and buffer.num > 1:
        what = f"one of {buffer.num} buffers at most takes turns with the learner"
        keys = ["distribution.buffer.num", "distribution.buffer.colocate"]
        yield Conflict(keys, what, "colocate = false would be right")
        return
    sender = graph.path_of_fragments[-2]
    senders = roles[sender].num if sender in roles else distribution.actor_processes
    if buffer.num > senders:
        what = f"{buffer.num} buffers share what {senders} of {sender} send: some would get nothing"
        of_sender = f"roles.{sender}.num" if sender in roles else "distribution.actor.num"
        yield Conflict(["distribution.buffer.num", of_sender], what, f"num = {senders} would be right")
    if buffer.colocate and buffer.cores != Buffer().cores and not buffer.core_list:
        what = "a buffer that takes turns with the learner has no cores of its own"
        keys = ["distribution.buffer.cores", "distribution.buffer.colocate"]
        yield Conflict(keys, what, f"cores = {Buffer().cores} would be right")


def _sampler_fits_samples(replay: ReplayLearnerSettings, distribution: Distribution) -> Iterator[Conflict]:
    """The replay can draw samples of this kind with its sampler."""
    buffer = distribution.buffer
    if sequence_steps_of(replay) is not None and buffer.sampler in {"prioritised", "fresh"}:
        right = 'sampler = "uniform" would be right'
        yield Conflict(["distribution.buffer.sampler"], "episodes are drawn uniformly", right)
    if unroll_of(replay) is not None and buffer.sampler == "fresh":
        what = "an unroll is complete long after its first step came"
        right = 'sampler = "uniform" or "prioritised" would be right'
        yield Conflict(["distribution.buffer.sampler"], what, right)


def _priorities_are_used(
    replay: ReplayLearnerSettings, distribution: Distribution, agent: Component | None = None
) -> Iterator[Conflict]:
    """Priorities, those that actors compute among them, are the learner's, and the sampler has some."""
    buffer = distribution.buffer
    computes = agent is not None and getattr(agent.settings, "priorities", False) is True
    if unroll_of(replay) is not None and computes:
        what = "priorities of steps are none of unrolls, which get theirs from the learner"
        yield Conflict(["agent.priorities"], what, "leave it out")
    elif not buffer.has_priorities:
        may_have = sequence_steps_of(replay) is None
        why = f"sampler {buffer.sampler!r} has no priorities"
        right = 'sampler = "prioritised" would be right' if may_have else "leave it out"
        for key, mark in _set_of_replay(buffer):
            if mark.prioritised:
                keys = [f"distribution.buffer.{key}", "distribution.buffer.sampler"]
                yield Conflict(keys, f"{key} does nothing: {why}", right)
        if computes:
            what = f"actors would compute priorities that no role uses: {why}"
            yield Conflict(["agent.priorities", "distribution.buffer.sampler"], what, right)
    elif agent is not None and computes:
        for of_agent, of_learner in _SHARED:  # Either may lack them.
            computed_with = getattr(agent.settings, of_agent, None)
            wanted = getattr(replay, of_learner, None)
            if computed_with is not None and wanted is not None and computed_with != wanted:
                what = f"priorities of actors would be none of the learner's, whose {of_learner} is {wanted}"
                keys = [f"agent.{of_agent}", f"training.{of_learner}"]
                yield Conflict(keys, what, f"agent.{of_agent} = {wanted} would be right")


RULES: Final[tuple[Callable[..., Iterator[Conflict]], ...]] = (
    _components_match,
    _engine_reaches_hosts,
    _hosts_may_come,
    _placement_can_be_chosen,
    _actors_may_vary,
    _processes_are_few,
    _one_process_is_enough,
    _inference_serves_actors,
    companions_fit,
    _rollouts_need_no_replay,
    _fragments_fill_rollouts,
    _replay_needs_no_rounds,
    _learners_share_batches,
    _buffers_have_processes,
    _sampler_fits_samples,
    _priorities_are_used,
    _replay_holds_samples,
    _unrolls_are_whole_fragments,
    _run_has_an_update,
    *graph_rules.RULES,
    *population.RULES,
)
"""Rules that a config keeps; each asks for the sections that its parameters name."""
