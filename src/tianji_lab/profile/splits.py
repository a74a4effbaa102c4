"""The splits that there are of a cluster's cores, M_L + M_A = M, and those next to one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import lcm
from typing import Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.config.update_rules import OnPolicySettings
from tianji_lab.model.split import Split, powers_of_two
from tianji_lab.profile.scaling import Cluster
from tianji_lab.profile.settings import split_of, with_split

EVERY_CORE: Final = 8
"""Up to so many cores of a learner, or those of an actor, every number is tried; beyond, powers of two."""


class Splits:
    """Enumerates the splits that use all cores of a cluster.

    Numbers of learners are powers of two, their cores as well beyond ``EVERY_CORE``, and groups are as many
    as share nodes, or the cores of a node, evenly. Learners have to share a batch, or the fragments of a
    rollout, evenly. Actors have all other cores. Where actors are in step, they have to share a rollout
    evenly, and the learners have all other cores.

    Each of these has its like in which the roles share all cores, unpinned, with an actor for each core: what
    learners leave idle, actors have. In step only those share that are more than there are cores. Where cores
    are too few for the roles of a group, there is no other, and then only as many groups as configured are
    looked at.

    Args:
        job: the config, whose cores of an actor and of a buffer stay.
        cluster: the machines.
        num_envs: environments of an actor.
    """

    def __init__(self, job: JobConfig, cluster: Cluster, num_envs: Sequence[int]) -> None:
        self._job = job
        self._configured = split_of(job)
        self._cluster = cluster
        self._num_envs = sorted(num_envs)
        self._share_a_thread = job.distribution.transport.local == "inproc"

    def __iter__(self) -> Iterator[Split]:
        wanted = 1 + self._configured.buffer_cores + self._configured.actor_cores
        for number in self._num_envs:
            for groups in self._numbers_of_groups():
                like = replace(self._configured, num_envs=number, groups=groups)
                if self._share_a_thread or self._cluster.cores // groups >= wanted:
                    of_group = self._of_group(like)
                    yield from filter(self._has_place, filter(self._can_share, of_group))
                elif groups in (1, self._configured.groups):
                    yield from self._on_too_few(replace(like, learners=1, learner_cores=1))

    def next_to(self, split: Split) -> Iterator[Split]:
        """Yield a split with the other pins, with one core moved, with other environments, with other actors.

        More than one core is moved where learners or actors have several each. Numbers of environments are
        the next smaller and larger ones, and so on. Both also come with the other pins.
        """
        if not self._share_a_thread:
            yield replace(split, pinned=not split.pinned)
        if split.pinned and not self._share_a_thread:
            yield from _core_moved(split)
        smaller = [number for number in reversed(self._num_envs) if number < split.num_envs]
        larger = [number for number in self._num_envs if number > split.num_envs]
        for i in range(len(self._num_envs)):
            for side in (smaller, larger):
                if i < len(side):
                    yield replace(split, num_envs=side[i])
        if not self._share_a_thread:
            for actors in (split.actors + 1, max(1, split.actors - 1), split.actors + 2):
                for pinned in (split.pinned, not split.pinned):
                    yield replace(split, actors=actors, pinned=pinned)
            for number in (*smaller, *larger):
                yield replace(split, num_envs=number, pinned=not split.pinned)

    def _numbers_of_groups(self) -> Iterator[int]:
        nodes, cores = self._cluster.nodes, self._cluster.cores_per_node
        yield from (groups for groups in range(1, nodes) if nodes % groups == 0)
        yield from (nodes * times for times in range(1, cores + 1) if cores % times == 0)

    def _on_too_few(self, like: Split) -> Iterator[Split]:
        """Yield splits whose roles share cores with up to an actor for each; pins say where they do."""
        cores = self._cluster.cores // like.groups
        most = max(1, cores // like.actor_cores) if self._job.distribution.mode == "async" else 1
        for actors in range(1, most + 1):
            yield replace(like, actors=actors, pinned=False)
        if cores > 1:
            yield replace(like, actors=1, pinned=True)

    def _of_group(self, like: Split) -> Iterator[Split]:
        """Yield the splits of a group's cores."""
        whole = self._cluster.cores // like.groups
        cores = whole - like.buffer_cores
        if self._share_a_thread:  # More actors than configured would only take more turns.
            yield from (replace(like, learners=1, learner_cores=each) for each in powers_of_two(cores))
        elif self._job.distribution.mode == "sync":
            yield from self._in_step(like, cores)
        else:
            for split in _with_actors_on_the_rest(replace(like, pinned=True), cores):
                yield split
                if (actors := whole // like.actor_cores) > split.actors:
                    yield replace(split, actors=actors, pinned=False)

    def _in_step(self, like: Split, cores: int) -> Iterator[Split]:
        """Yield splits in step: neither actors nor learners are in the way of those that wait for them.

        But the threads of a learner are: those that have done their part of an update keep their cores busy
        for a millisecond or two, in case there is more. So a learner that shares cores has one.
        """
        fragments = with_split(self._job, like).fragments_per_rollout
        for actors in range(1, min(fragments, cores // like.actor_cores) + 1):
            for learners in powers_of_two(cores) if fragments % actors == 0 else ():
                each, left = divmod(cores - actors * like.actor_cores, learners)
                if each and not left:
                    yield replace(like, learners=learners, learner_cores=each, actors=actors, pinned=True)
                elif not each:
                    yield replace(like, learners=learners, learner_cores=1, actors=actors, pinned=False)

    def _can_share(self, split: Split) -> bool:
        """Say whether learners can divide among themselves what they learn from."""
        if split.learners == 1:
            return True
        if self._job.learns_from_replay:  # One of them deals it out, with the replay beside it.
            colocated = self._job.distribution.buffer.colocate
            return colocated and self._job.replay_settings.batch_size % split.learners == 0
        settings = self._job.training.settings
        assert isinstance(settings, OnPolicySettings), "no other is valid"
        fragment_steps = self._job.distribution.actor.send_size * split.num_envs
        return settings.rollout_steps // fragment_steps % split.learners == 0

    def _has_place(self, split: Split) -> bool:
        """Say whether a group's buffer and learners find room on one node, and GPUs if they use any."""
        groups_of_node = max(1, split.groups // self._cluster.nodes)
        cores = groups_of_node * (split.learners * split.learner_cores + split.buffer_cores)
        if cores > self._cluster.cores_per_node:
            return False
        gpus = max(1, self._cluster.gpus_per_node)  # The config's own is there, whatever is said of others.
        return not self._job.distribution.device.startswith("cuda") or groups_of_node * split.learners <= gpus


def _with_actors_on_the_rest(like: Split, cores: int) -> Iterator[Split]:
    for learners in powers_of_two(cores):
        most = cores // learners
        every = max(EVERY_CORE, like.actor_cores)  # One of them leaves a whole number of actors.
        beyond = (power for power in powers_of_two(most) if power > every)
        for each in (*range(1, min(every, most) + 1), *beyond):
            actors, left = divmod(cores - learners * each, like.actor_cores)
            if actors and not left:
                yield replace(like, learners=learners, learner_cores=each, actors=actors)


def _core_moved(split: Split) -> Iterator[Split]:
    cores = lcm(split.learners, split.actor_cores)
    of_each, actors = cores // split.learners, cores // split.actor_cores
    for sign in (1, -1):
        learner_cores = split.learner_cores + sign * of_each
        if learner_cores > 0 and split.actors > sign * actors:
            yield replace(split, learner_cores=learner_cores, actors=split.actors - sign * actors)
