"""Refuses settings of the buffer and of the balance that could never work together, or that nothing heeds.

Whoever wrote a setting expects it to do something. So another value than the default is refused of

- what only a replay heeds where rollouts are learnt from, and ``rollouts`` where there is a replay;
- ``priority_exponent``, ``importance_exponent``, ``importance_steps``, ``priority_updates`` and the agent's
  ``priorities`` where the sampler has no priorities;
- ``balance_tolerance`` where the balance is free, and ``cores`` of a buffer that has no process of its own.

A value that is the default may stand anywhere, as it does in the config that a run leaves behind.

Refused because they could never work are

- ``mode = "sync"`` with a replay, and a buffer in a process of its own with rollouts, over "inproc" or with
  several learners, since one of them deals out the batches;
- a capacity, a tolerance or an end that is too small, and numbers that no learner can draw batches with;
- a sampler other than "uniform" where sequences are learnt from;
- agents that compute priorities with another discount or reward scale than the learner's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from tianji_cli.config.problems import Path
from tianji_cli.config.schema import Buffer, Component, Distribution, Environment, Stop
from tianji_cli.config.source import Tree
from tianji_cli.config.update_rules import (
    ReplayLearnerSettings,
    batch_steps_of,
    least_tolerance,
    sequence_steps_of,
)

MOST_STEPS: Final = 127
"""Of a transition; ``roles/buffer/replay/transitions.py`` has it as ``LENGTH``, and imports gymnasium."""
MOST_IN_SEQUENCE: Final = 65_535
"""Steps of a sequence; ``roles/buffer/replay/sequences.py`` has it as ``MOST_STEPS``."""

_BUFFER: Final = ("distribution", "buffer")
_CAPACITY: Final = (*_BUFFER, "capacity")
_COLOCATE: Final = (*_BUFFER, "colocate")
_SAMPLER: Final = (*_BUFFER, "sampler")
_ROLLOUTS: Final = (*_BUFFER, "rollouts")
_MODE: Final = ("distribution", "mode")
_BALANCE: Final = ("distribution", "balance")
_TOLERANCE: Final = ("distribution", "balance_tolerance")
_TRANSPORT: Final = ("distribution", "transport")
_FRAGMENT: Final = (("distribution", "actor", "send_size"), ("environment", "num_envs"))
_IN_FLIGHT: Final = (*_FRAGMENT, ("distribution", "actor", "num"), ("distribution", "actor", "window"))
_WARMUP: Final = ("training", "warmup_steps")
_BATCH: Final = ("training", "batch_size")
_SEQUENCE: Final = ("training", "sequence_steps")
_AGENT_PRIORITIES: Final = ("agent", "priorities")
_CORES: Final = (*_BUFFER, "cores")
_GROUPS: Final = ("distribution", "groups")
_LEARNERS: Final = ("distribution", "learner", "num")
_END: Final = ("experiment", "stop", "env_steps")

_OF_A_REPLAY: Final[Mapping[str, str]] = {
    "capacity": "did you mean rollouts, the number that the buffer holds?",
    "sampler": 'rollouts are used whole; "uniform" would be right',
    "priority_exponent": "rollouts have no priorities; leave it out",
    "importance_exponent": "rollouts have no priorities; leave it out",
    "importance_steps": "rollouts have no priorities; leave it out",
    "priority_updates": "rollouts have no priorities; leave it out",
    "memory": "rollouts stay in memory; leave it out",
    "save_with_checkpoint": "a rollout is used up at once; leave it out",
}
"""Keys of the buffer that only a replay heeds, and what to do where there is none."""

_OF_PRIORITIES: Final = ("priority_exponent", "importance_exponent", "importance_steps", "priority_updates")
"""Keys of the buffer that only a sampler with priorities heeds."""

_SHARED: Final = (("priority_gamma", "gamma"), ("priority_reward_scale", "reward_scale"))
"""Settings of an agent that computes priorities, and those of the update rule that they stand for."""


def check_rollouts(tree: Tree, training: str, distribution: Distribution) -> None:
    """Note settings that do nothing, or cannot be, where the learner trains on rollouts.

    Args:
        tree: where problems are noted.
        training: type of the update rule.
        distribution: the section.
    """
    buffer = distribution.buffer
    usual = Buffer()
    for key, remedy in _OF_A_REPLAY.items():
        if getattr(buffer, key) != getattr(usual, key):
            tree.problem((*_BUFFER, key), f"is of a replay, and {training!r} learns from rollouts", remedy)
    if not buffer.colocate:
        what = f"{training!r} learns from rollouts, whose buffer takes turns with the learner"
        tree.problem(_COLOCATE, f"a process of its own is not supported: {what}", "true is")
    if distribution.balance == "free":
        what = f"{training!r} uses every rollout as often, whoever is ahead"
        tree.problem(_BALANCE, what, '"held" would be right')
    if distribution.balance_tolerance is not None:
        what = f"{training!r} uses every rollout as often, whoever is ahead"
        tree.problem(_TOLERANCE, what, "leave it out")
    _check_cores(tree, buffer)


def check_replay_learner(tree: Tree, training: str, settings: ReplayLearnerSettings) -> bool:
    """Note numbers of the update rule that no replay can do with; say whether there are none.

    Args:
        tree: where problems are noted.
        training: type of the update rule.
        settings: of the update rule.
    """
    of_sequences = sequence_steps_of(settings) is not None
    of_a_sample = ("sequence_steps", MOST_IN_SEQUENCE) if of_sequences else ("n_step", MOST_STEPS)
    refused = set[str]()
    for key, most in (("batch_size", None), of_a_sample, ("publish_every", None)):
        value = getattr(settings, key)
        if value < 1 or (most is not None and value > most):
            right = "at least 1" if most is None else f"1 to {most}"
            tree.problem(("training", key), f"{value} is out of range for {training!r}", f"{right} is right")
            refused.add(key)
    if settings.replay_ratio <= 0:
        what = f"{settings.replay_ratio} uses of each sample are no training"
        tree.problem(("training", "replay_ratio"), what, "more than 0 is right")
        refused.add("replay_ratio")
    # Of a batch that cannot be, nobody need know what would fill it.
    if "sequence_steps" not in refused and settings.warmup_steps < batch_steps_of(settings):
        what = f"{settings.warmup_steps} env steps do not fill {_batch(settings)}"
        remedy = f"warmup_steps = {batch_steps_of(settings)} would be right"
        tree.problem(tree.latest([_WARMUP, _BATCH, _SEQUENCE]), what, remedy)
        refused.add("warmup_steps")
    return not refused


def check_replay(
    tree: Tree, settings: ReplayLearnerSettings, distribution: Distribution, agent: Component | None
) -> None:
    """Note settings that exclude one another where the learner draws from a replay.

    Args:
        tree: where problems are noted.
        settings: of the update rule.
        distribution: the section.
        agent: the section, if it is valid.
    """
    buffer = distribution.buffer
    if distribution.mode == "sync":
        what = "a learner that draws from a replay has no rounds to wait for"
        tree.problem(_MODE, what, 'mode = "async" would be right')
    if buffer.rollouts != 1:
        what = "is of rollouts, and the learner draws from a replay"
        tree.problem(_ROLLOUTS, what, "did you mean capacity, in env steps?")
    if not buffer.colocate and distribution.transport.local == "inproc":
        what = 'transport "inproc" puts buffer and learner in one process'
        remedy = 'colocate = true or transport = "shm" would be right'
        tree.problem(tree.latest([_COLOCATE, _TRANSPORT]), what, remedy)
    _check_shares(tree, settings, distribution)
    if distribution.balance == "free" and distribution.balance_tolerance is not None:
        what = 'nobody is held back with balance = "free"'
        tree.problem(tree.latest([_TOLERANCE, _BALANCE]), what, 'balance = "held" would be right')
    _check_cores(tree, buffer)
    computes = agent is not None and getattr(agent.settings, "priorities", False) is True
    if sequence_steps_of(settings) is not None and buffer.sampler != "uniform":
        tree.problem(_SAMPLER, "episodes are drawn uniformly", 'sampler = "uniform" would be right')
    if buffer.sampler != "prioritised":
        may_have = sequence_steps_of(settings) is None
        _check_no_priorities(tree, buffer, computes=computes, may_have=may_have)
    elif agent is not None and computes:
        _check_agent_priorities(tree, settings, agent)


def _check_shares(tree: Tree, settings: ReplayLearnerSettings, distribution: Distribution) -> None:
    """Note batches that several learners cannot share."""
    learners, batch = distribution.learner.num, settings.batch_size
    if learners == 1:
        return
    if not distribution.buffer.colocate:
        what = f"one of {learners} learners deals out the batches, and has the replay beside it"
        where = tree.latest([_COLOCATE, _LEARNERS])
        tree.problem(where, what, "colocate = true or distribution.learner.num = 1 would be right")
    if batch % learners:
        below = batch // learners * learners
        right = f"{below} or {below + learners}" if below else str(learners)
        what = f"{learners} learners cannot share {batch} samples evenly"
        tree.problem(tree.latest([_BATCH, _LEARNERS]), what, f"batch_size = {right} would be right")


def check_replay_sizes(
    tree: Tree, settings: ReplayLearnerSettings, distribution: Distribution, environment: Environment
) -> None:
    """Note a replay that is too small for what it has to hold, and a tolerance that nobody can keep.

    Args:
        tree: where problems are noted.
        settings: of the update rule.
        distribution: the section.
        environment: the section.
    """
    actor, capacity = distribution.actor, distribution.buffer.capacity
    fragment = actor.send_size * environment.num_envs
    in_flight = actor.num * actor.window * fragment
    under_way = steps_under_way(settings, distribution, environment)
    needs: tuple[tuple[int, str, tuple[Path, ...]], ...] = (
        (batch_steps_of(settings), _batch(settings), (_BATCH, _SEQUENCE)),
        (settings.warmup_steps, f"the {settings.warmup_steps} of the warm-up", (_WARMUP,)),
        (in_flight, f"the {in_flight} that the actors may have in flight", _IN_FLIGHT),
        (under_way, f"the {under_way} that sequences under way may lie in", (_SEQUENCE, *_IN_FLIGHT)),
    )
    most, what, keys = max(needs, key=lambda need: need[0])
    if capacity < most:
        where = tree.latest([_CAPACITY, *keys])
        tree.problem(where, f"{capacity} env steps are less than {what}", f"capacity = {most} would be right")
    tolerance = distribution.balance_tolerance
    least = math.ceil(least_tolerance(fragment, batch_steps_of(settings), settings.replay_ratio))
    if distribution.balance == "held" and tolerance is not None and tolerance < least:
        what = f"within {tolerance} env steps neither a fragment could be received nor a batch be drawn"
        where = tree.latest([_TOLERANCE, *_FRAGMENT, _BATCH, _SEQUENCE])
        tree.problem(where, what, f"balance_tolerance = {least} would be right")


def _batch(settings: ReplayLearnerSettings) -> str:
    steps = sequence_steps_of(settings)
    return f"a batch of {settings.batch_size}" + ("" if steps is None else f" sequences of up to {steps}")


def steps_under_way(
    settings: ReplayLearnerSettings, distribution: Distribution, environment: Environment
) -> int:
    """Env steps to be held so that no sequence begins in what is evicted before it ends; 0 of transitions.

    While an actor brings what its sequence lies in, each of the others brings as much, besides what it had in
    flight already.
    """
    steps, actor = sequence_steps_of(settings), distribution.actor
    if steps is None:
        return 0
    fragments = 1 + math.ceil((steps - 1) / actor.send_size)
    fragments += (actor.num - 1) * (fragments + actor.window)
    return fragments * actor.send_size * environment.num_envs


def check_replay_end(tree: Tree, settings: ReplayLearnerSettings, stop: Stop, groups: int) -> None:
    """Note a run that would be over before its first update.

    Args:
        tree: where problems are noted.
        settings: of the update rule.
        stop: when the run is over.
        groups: how many share its steps.
    """
    warmup = settings.warmup_steps * groups
    if stop.env_steps is not None and stop.env_steps <= warmup:
        of_each = f" of {groups} groups" if groups > 1 else ""
        what = f"{stop.env_steps} steps end the run within the {warmup} of its warm-up{of_each}"
        tree.problem(tree.latest([_END, _WARMUP, _GROUPS]), what, f"env_steps should be more than {warmup}")


def _check_cores(tree: Tree, buffer: Buffer) -> None:
    if buffer.colocate and buffer.cores != Buffer().cores:
        what = "a buffer that takes turns with the learner has no cores of its own"
        tree.problem(tree.latest([_CORES, _COLOCATE]), what, f"cores = {Buffer().cores} would be right")


def _check_no_priorities(tree: Tree, buffer: Buffer, *, computes: bool, may_have: bool) -> None:
    why = f"sampler {buffer.sampler!r} has no priorities"
    right = 'sampler = "prioritised" would be right' if may_have else "leave it out"
    for key in _OF_PRIORITIES:
        if getattr(buffer, key) != getattr(Buffer(), key):
            tree.problem(tree.latest([(*_BUFFER, key), _SAMPLER]), f"{key} does nothing: {why}", right)
    if computes:
        what = f"actors would compute priorities that nobody uses: {why}"
        tree.problem(tree.latest([_AGENT_PRIORITIES, _SAMPLER]), what, right)


def _check_agent_priorities(tree: Tree, settings: ReplayLearnerSettings, agent: Component) -> None:
    """Compare what both have; one's own settings may have neither."""
    for of_agent, of_learner in _SHARED:
        computed_with = getattr(agent.settings, of_agent, None)
        wanted = getattr(settings, of_learner, None)
        if computed_with is not None and wanted is not None and computed_with != wanted:
            what = f"priorities of actors would be none of the learner's, whose {of_learner} is {wanted}"
            where = tree.latest([("agent", of_agent), ("training", of_learner)])
            tree.problem(where, what, f"agent.{of_agent} = {wanted} would be right")
