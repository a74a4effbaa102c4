"""What a split costs, from what was measured; where nothing was measured, how it was reckoned instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from tianji_lab.model.costs import ActorCosts, BufferCosts, Cost, Costs, ExchangeCosts, LearnerCosts, Split
from tianji_lab.profile.measurements import ActorFigures, LearnerFigures, Measurements, Repeated

_SINGULAR: Final = 1e-9


class Line(NamedTuple):
    """``intercept + slope x``."""

    intercept: float
    slope: float

    def at(self, x: float) -> float:
        """The line's value.

        >>> Line(1.0, 2.0).at(3.0)
        7.0
        """
        return self.intercept + self.slope * x


def line(points: Iterable[tuple[float, float]]) -> Line:
    """Fit a line; it is flat through one point, and zero through none.

    >>> line([(1.0, 3.0), (2.0, 5.0)])
    Line(intercept=1.0, slope=2.0)
    """
    return Line(*fit([(1.0, x, y) for x, y in points]))


def fit(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Find ``a, b >= 0`` that bring ``a x1 + b x2`` nearest to ``y``; b is 0 where one row leaves it open."""
    xx = sum(x1 * x1 for x1, _, _ in rows)
    xz = sum(x1 * x2 for x1, x2, _ in rows)
    zz = sum(x2 * x2 for _, x2, _ in rows)
    xy = sum(x1 * y for x1, _, y in rows)
    zy = sum(x2 * y for _, x2, y in rows)
    determinant = xx * zz - xz * xz
    if determinant > _SINGULAR * xx * zz:
        a, b = (xy * zz - zy * xz) / determinant, (zy * xx - xy * xz) / determinant
        if a >= 0 and b >= 0:
            return a, b
    # The best on the border of what is allowed: one of them is 0.
    first = (max(xy / xx, 0.0) if xx else 0.0, 0.0)
    second = (0.0, max(zy / zz, 0.0) if zz else 0.0)
    return min(first, second, key=lambda ab: sum((ab[0] * x1 + ab[1] * x2 - y) ** 2 for x1, x2, y in rows))


@dataclass(frozen=True)
class MeasuredLearner:
    """A learner and the buffer beside it, as they were measured: with some cores, share and environments.

    Attributes:
        uses_per_update: sample uses of an update, with this share.
        contended: all of it was measured with all cores at work as well.
    """

    uses_per_update: float
    updates_per_version: float
    update: Cost
    draw: Cost
    publish: Cost
    store: Cost
    contended: bool


class LearnerScaling:
    """Looks up what was measured, and goes on from there.

    More cores follow Amdahl's law, ``t(c) = t(1) (s + (1 - s) / c)``, whose serial share ``s`` is fitted to
    what was measured; more learners ``t(L) = a + b / L``: what is paid for each update, and what for its
    samples. What was measured is taken as it is. Several such gains at once are multiplied.

    Args:
        figures: for each number of environments, of one core and an undivided batch at least.
    """

    def __init__(self, figures: Iterable[LearnerFigures]) -> None:
        pairs: dict[tuple[int, int, int], dict[bool, LearnerFigures]] = {}
        for of_one in figures:
            pairs.setdefault((of_one.num_envs, of_one.cores, of_one.share), {})[of_one.crowded] = of_one
        self._measured = {key: _measured_learner(pair) for key, pair in pairs.items()}
        # All cores and shares were measured with one number of environments.
        envs = [num_envs for num_envs, _, _ in pairs]
        base = max(envs, key=envs.count)
        self._by_cores = {
            c: learner for (n, c, share), learner in self._measured.items() if (n, share) == (base, 1)
        }
        self._by_share = {
            share: learner for (n, c, share), learner in self._measured.items() if (n, c) == (base, 1)
        }
        one_s = self._by_cores[1].update.alone_s
        self._of_cores = {c: learner.update.alone_s / one_s for c, learner in self._by_cores.items()}
        self._of_shares = {share: learner.update.alone_s / one_s for share, learner in self._by_share.items()}
        self._serial = _serial_share(self._of_cores)
        self._line = line((1 / share, factor) for share, factor in self._of_shares.items())

    def measured(self, num_envs: int, cores: int = 1) -> MeasuredLearner:
        """What was measured with an undivided batch; with one core if not with so many.

        Raises:
            KeyError: nothing was measured with this number of environments.
        """
        learner = self._measured.get((num_envs, cores, 1))
        return learner if learner is not None and learner.contended else self._measured[num_envs, 1, 1]

    def update(self, num_envs: int, cores: int, learners: int) -> Cost:
        """An update of one learner.

        Raises:
            KeyError: nothing was measured with this number of environments.
        """
        measured = self._measured.get((num_envs, cores, learners))
        if measured is not None:
            alone_s = measured.update.alone_s
        else:
            one_s = self._measured[num_envs, 1, 1].update.alone_s
            alone_s = one_s * self._factor_of_cores(cores) * self._factor_of_learners(learners)
        return Cost(alone_s, alone_s * self._slowdown_by_contention(cores, learners))

    def reckoned(self, num_envs: int, cores: int, learners: int) -> tuple[str, ...]:
        """Say in words what of an update was not measured."""
        words = []
        if cores not in self._of_cores:
            law = (
                f"Amdahl's law with {self._serial:.0%} serial, from {_numbers(self._of_cores)} measured"
                if len(self._of_cores) > 1
                else "as fast as with 1, the only number measured"
            )
            words.append(f"a learner with {cores} cores: {law}")
        if learners not in self._of_shares:
            words.append(
                f"a batch divided among {learners} learners: {self._line.intercept:.0%} of the time remains "
                f"with however many, from {_numbers(self._of_shares)} measured"
            )
        if not words and (num_envs, cores, learners) not in self._measured:
            words.append("several changes at once: measured one at a time, and their effects multiplied")
        return tuple(words)

    def _factor_of_cores(self, cores: int) -> float:
        return self._of_cores.get(cores, self._serial + (1 - self._serial) / cores)

    def _factor_of_learners(self, learners: int) -> float:
        return self._of_shares.get(learners, self._line.at(1 / learners))

    def _slowdown_by_contention(self, cores: int, learners: int) -> float:
        """How many times as long an update takes with all cores at work.

        As measured with the most cores, or the most learners, up to this many. With one of each it was
        measured with every number of environments, to which an update is blind: the middle one counts.
        """
        if cores == learners == 1:
            alike = [learner for (_, c, share), learner in self._measured.items() if c == share == 1]
            slower = [_slower(learner) for learner in alike if learner.contended]
            return max(1.0, median(slower or [1.0]))
        several, number = (self._by_cores, cores) if cores > 1 else (self._by_share, learners)
        measured = (n for n, learner in several.items() if learner.contended and n <= number)
        return max(1.0, _slower(several[max(measured, default=1)]))


def _slower(learner: MeasuredLearner) -> float:
    return learner.update.contended_s / learner.update.alone_s


def _measured_learner(pair: Mapping[bool, LearnerFigures]) -> MeasuredLearner:
    alone = pair.get(False) or pair[True]
    crowded = pair.get(True) or pair[False]

    def cost(alone: Repeated, crowded: Repeated) -> Cost:
        return Cost(alone.cost, crowded.cost)

    return MeasuredLearner(
        uses_per_update=alone.uses_per_update,
        updates_per_version=alone.updates_per_version,
        update=cost(alone.update_s, crowded.update_s),
        draw=cost(alone.draw_s, crowded.draw_s),
        publish=cost(alone.publish_s, crowded.publish_s),
        store=cost(alone.store_s, crowded.store_s),
        contended=True in pair,
    )


def _serial_share(factors: Mapping[int, float]) -> float:
    """Fit s of Amdahl's law, ``t(c) / t(1) = s + (1 - s) / c``, by least squares; 1 with nothing to fit."""
    gaps = [(1 - 1 / c, factor - 1 / c) for c, factor in factors.items() if c > 1]
    if not gaps:
        return 1.0
    return min(max(sum(x * y for x, y in gaps) / sum(x * x for x, _ in gaps), 0.0), 1.0)


def _numbers(of: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(of)))


_FLOAT_BYTES: Final = 4


@dataclass(frozen=True)
class Cluster:
    """The machines that a split is meant for, all of them alike.

    Attributes:
        link_bytes_per_s: what the link of each carries; None if it is not known, and never the limit.
    """

    cores_per_node: int
    nodes: int = 1
    gpus_per_node: int = 0
    link_bytes_per_s: float | None = None

    @property
    def cores(self) -> int:
        """Of all nodes."""
        return self.cores_per_node * self.nodes


class GroupAveraging(NamedTuple):
    """How groups average their parameters.

    Attributes:
        interval: updates of a group between two averages.
        waits: a group makes no update until it has the average, as with ``mode = "sync"``.
        values: averaged for each parameter: 3 where the two moments of Adam are averaged, too, or 2 where it
            is RMSProp's mean square.
    """

    interval: int = 100
    waits: bool = False
    values: int = 1


EVERY_HUNDRED: Final = GroupAveraging()


class _Engine(NamedTuple):
    """Seconds of a message on each side, by its size."""

    send: Line
    receive: Line


class MeasuredCosts:
    """A ``CostTable`` over what was measured on one machine.

    Args:
        remote: engine between nodes; taken to be as fast as that inside if it was not measured.
        colocated: the buffer takes turns with a learner, as in ``Workload``.
    """

    def __init__(
        self,
        measurements: Measurements,
        cluster: Cluster,
        *,
        local: str = "shm",
        remote: str = "zmq",
        colocated: bool = True,
        averaging: GroupAveraging = EVERY_HUNDRED,
    ) -> None:
        self._measured = measurements
        self._cluster = cluster
        self._colocated = colocated
        self._of_groups = averaging
        self._learner = LearnerScaling(measurements.learners)
        self._actors: dict[tuple[int, int], tuple[float, Cost]] = {}
        engines = {figures.engine for figures in measurements.transport}
        self._remote_name = remote if remote in engines else None
        self._local = self._engine(local)
        self._remote = self._engine(self._remote_name or local)
        self._averaging = {figures.learners: figures.seconds.cost for figures in measurements.averaging}
        self._step_s, self._ring_s = self._fitted_ring()
        self._slowdown_alone = measurements.slowdown(crowded=False)
        self._slowdown_contended = measurements.slowdown(crowded=True)

    def uses_per_update(self, num_envs: int) -> float:
        """Sample uses of one update over all learners of a group, with actors of so many environments."""
        return self._learner.measured(num_envs).uses_per_update

    def updates_per_version(self, num_envs: int) -> float:
        """Updates between two published policies, with actors of so many environments."""
        return self._learner.measured(num_envs).updates_per_version

    def at(self, split: Split) -> Costs:
        """Costs of one split.

        Raises:
            KeyError: nothing was measured with this number of environments.
        """
        num_envs, learners = split.num_envs, split.learners
        samples, sample = self._actor(split)
        fragment_bytes, crossing = self._measured.fragment_bytes[num_envs], self._crossing(split)
        update = self._learner.update(num_envs, split.learner_cores, learners)
        learner = self._learner.measured(num_envs, split.learner_cores)
        part_bytes = self._batch_bytes(num_envs, samples) / learners
        elsewhere = learners - 1 if self._colocated else learners
        contention = self._largest_contention(split)
        actor_slower, learner_slower = self._slower_shared(split)

        def on_average(cost: Cost, slower: float) -> Cost:
            alone_s = cost.alone_s * self._slowdown_alone
            of_all = Cost(alone_s, max(alone_s, cost.contended_s * self._slowdown_contended))
            return Cost(alone_s, of_all.at(contention)).times(slower)

        return Costs(
            actor=ActorCosts(
                samples,
                on_average(sample, actor_slower),
                send_s=_mean(self._local.send, self._remote.send, crossing).at(fragment_bytes),
            ),
            buffer=BufferCosts(
                receive_s=_mean(self._local.receive, self._remote.receive, crossing).at(fragment_bytes),
                store=on_average(learner.store, learner_slower),
                draw=on_average(learner.draw, learner_slower),
                hand_over_s=elsewhere * self._local.send.at(part_bytes) if elsewhere else 0.0,
            ),
            learner=LearnerCosts(
                update=on_average(update, learner_slower),
                publish=on_average(learner.publish, learner_slower).plus(self._policy_s(crossing)),
                take_s=0.0 if self._colocated else self._local.receive.at(part_bytes),
            ),
            exchange=self._exchange(split, crossing),
            extrapolated=(
                *self._reckoned_of_places(split),
                *self._learner.reckoned(num_envs, split.learner_cores, learners),
                *self._reckoned_of_exchange(split),
            ),
        )

    def _shares_cores(self, split: Split) -> bool:
        return split.cores > self._cluster.cores

    def _slower_shared(self, split: Split) -> tuple[float, float]:
        """How many times as long actors and learners work that share cores, beside waiting for one.

        Caches are another role's when a core changes hands. As measured with the configured environments, in
        comparison with the same roles side by side on cores of their own. How often cores change hands is the
        scheduler's to say, and differs from repeat to repeat: the middle ones count. With pins only actors
        share cores, unless learners leave them none.
        """
        sharing = self._measured.sharing
        if sharing is None or not self._shares_cores(split):
            return 1.0, 1.0
        learner_has_its_own = split.pinned and split.cores_of_learners < self._cluster.cores
        num_envs = sharing.actors.num_envs
        actors = self._contended_actor(num_envs, sharing.actors.side_by_side - 1)
        learner = max(
            (of for of in self._measured.learners if (of.num_envs, of.cores, of.share) == (num_envs, 1, 1)),
            key=lambda of: of.crowded,
        )
        return (
            max(1.0, sharing.actors.fragment_s.median / actors.fragment_s.median),
            1.0
            if learner_has_its_own
            else max(1.0, sharing.learner.update_s.median / learner.update_s.median),
        )

    def _engine(self, name: str) -> _Engine:
        """Fit what was measured of an engine; nothing was, where all roles share a process."""
        rows = [figures for figures in self._measured.transport if figures.engine == name]
        return _Engine(
            send=line((figures.nbytes, figures.send_s) for figures in rows),
            receive=line((figures.nbytes, figures.receive_s) for figures in rows),
        )

    def _policy_s(self, crossing: float) -> float:
        """What a policy's way into the transport costs the learner at least: one send for each engine."""
        nbytes = self._measured.policy_bytes
        return self._local.send.at(nbytes) + (self._remote.send.at(nbytes) if crossing else 0.0)

    def _actor(self, split: Split) -> tuple[float, Cost]:
        """Samples of a fragment and T_sp, with contention as near to the split's as any that was measured."""
        key = split.num_envs, split.actors
        if key not in self._actors:
            self._actors[key] = self._looked_up_actor(*key)
        return self._actors[key]

    def _looked_up_actor(self, num_envs: int, actors: int) -> tuple[float, Cost]:
        """Take what was measured alone, and how much contention slows actors down.

        Contention slows actors of every size down alike; what else happens on the machine meanwhile does not.
        So the middle one of all sizes counts.

        Raises:
            KeyError: nothing was measured with this number of environments.
        """
        alone = self._actor_alone(num_envs)
        slower = median(
            self._contended_actor(size, actors).fragment_s.cost / self._actor_alone(size).fragment_s.cost
            for size in self._measured.sizes
        )
        alone_s = alone.fragment_s.cost
        return alone.samples, Cost(alone_s, alone_s * max(1.0, slower))

    def _actor_alone(self, num_envs: int) -> ActorFigures:
        """Find an actor that ran with as few others as any of its size."""
        of_size = [of_some for of_some in self._measured.actors if of_some.num_envs == num_envs]
        if not of_size:
            raise KeyError(num_envs)
        return min(of_size, key=lambda of_some: (of_some.crowded, of_some.side_by_side))

    def _contended_actor(self, num_envs: int, actors: int) -> ActorFigures:
        """Find actors of a size that ran with all cores at work, with as many of them as is nearest."""
        of_size = [of_some for of_some in self._measured.actors if of_some.num_envs == num_envs]

        def rank(of_some: ActorFigures) -> tuple[bool, int, int]:
            return not of_some.crowded, abs(of_some.side_by_side - actors), of_some.side_by_side

        return min(of_size, key=rank)

    def _node_cores(self, split: Split) -> int:
        """Cores of the split on one node, the fullest."""
        return min(split.cores, self._cluster.cores_per_node)

    def _largest_contention(self, split: Split) -> float:
        """Other cores that can be at work, as a share of those that were: 1 on more cores than measured."""
        measured = self._measured.at_work - 1
        return min((self._node_cores(split) - 1) / measured, 1.0) if measured else 0.0

    def _batch_bytes(self, num_envs: int, samples: float) -> float:
        """Size of what an update learns from; on-policy it is as large as the fragments it comes from."""
        sample_bytes = self._measured.fragment_bytes[num_envs] / samples
        return self._measured.batch_bytes or self.uses_per_update(num_envs) * sample_bytes

    def _exchange(self, split: Split, crossing: float) -> ExchangeCosts:
        root_s = group_s = 0.0
        if split.groups > 1:
            nbytes = _FLOAT_BYTES * self._measured.parameters * self._of_groups.values
            engine = self._remote if self._cluster.nodes > 1 else self._local
            there_and_back_s = engine.send.at(nbytes) + engine.receive.at(nbytes)
            on_link_s = self._on_link_s(2 * nbytes) if self._cluster.nodes > 1 else 0.0
            root_s = there_and_back_s + on_link_s
            # Its own part of it, and the root's if it waits for the average.
            group_s = there_and_back_s + (root_s if self._of_groups.waits else 0.0)
        return ExchangeCosts(
            gradients_s=self._gradients_s(split),
            sync_interval=self._of_groups.interval,
            group_s=group_s,
            root_s=root_s,
            waits=self._of_groups.waits,
            fragment_bytes=self._measured.fragment_bytes[split.num_envs],
            crossing=crossing,
            link_bytes_per_s=self._cluster.link_bytes_per_s if crossing else None,
        )

    def _gradients_s(self, split: Split) -> float:
        """Average gradients over L learners: as measured, or a ring where each sends 2 (L - 1) of L parts."""
        learners = split.learners
        if learners == 1:
            return 0.0
        steps, share = 2 * (learners - 1), 2 * (learners - 1) / learners
        seconds = self._averaging.get(learners, steps * self._step_s + share * self._ring_s)
        if learners * split.learner_cores > self._cluster.cores_per_node:
            seconds += self._on_link_s(share * _FLOAT_BYTES * self._measured.parameters)
        return seconds

    def _fitted_ring(self) -> tuple[float, float]:
        """Seconds of one step of a ring, and those in which it moves all parameters once.

        One measured number of learners leaves open which of them it was: what a message of this size costs
        on the transport tells.
        """
        nbytes = _FLOAT_BYTES * self._measured.parameters
        step_s = self._local.send.intercept + self._local.receive.intercept
        ring_s = nbytes * (self._local.send.slope + self._local.receive.slope)
        rows = [(2 * (n - 1), 2 * (n - 1) / n, seconds) for n, seconds in self._averaging.items()]
        if not rows:
            return step_s, ring_s
        if len(rows) == 1:
            (steps, share, seconds) = rows[0]
            ring_s = min(ring_s, seconds / share)
            return (seconds - share * ring_s) / steps, ring_s
        return fit(rows)

    def _on_link_s(self, nbytes: float) -> float:
        return nbytes / self._cluster.link_bytes_per_s if self._cluster.link_bytes_per_s else 0.0

    def _crossing(self, split: Split) -> float:
        """Share of a group's fragments whose actor is not on the learner's node.

        Groups take turns over the nodes. Where there are more nodes than groups, a group's actors are spread
        over its nodes by the cores that are left, as in the plan of a job.
        """
        nodes = self._cluster.nodes / split.groups
        if nodes <= 1:
            return 0.0
        taken = split.learners * split.learner_cores + split.buffer_cores
        at_home = max(self._cluster.cores_per_node - taken, 0)
        away = (nodes - 1) * self._cluster.cores_per_node
        return away / (at_home + away)

    def _reckoned_of_places(self, split: Split) -> tuple[str, ...]:
        """Say in words what of the cores and nodes was not measured."""
        measured, there = self._measured.at_work, self._node_cores(split)
        words = []
        if self._measured.sharing is None and self._shares_cores(split):
            words.append("roles that share cores: as fast as with cores of their own, while they have one")
        if there > measured:
            words.append(f"{there} cores of a node at work: they hinder one another as {measured} did")
        if self._cluster.nodes > 1:
            as_what = f"what {self._remote_name} costs here" if self._remote_name else "no more than inside"
            words.append(f"other nodes: as fast as this one, and fragments between them cost {as_what}")
        return tuple(words)

    def _reckoned_of_exchange(self, split: Split) -> tuple[str, ...]:
        """Say in words what of averaging was not measured."""
        words = []
        if split.learners > 1 and split.learners not in self._averaging:
            measured = ", ".join(map(str, sorted(self._averaging))) or "none"
            words.append(f"averaging over {split.learners} learners: a ring, from {measured} measured")
        if split.groups > 1:
            words.append(f"averaging over {split.groups} groups: from what messages of this size cost")
        return tuple(words)


def _mean(inside: Line, between: Line, crossing: float) -> Line:
    """What messages cost on average of which this share goes from node to node."""
    return Line(*(a + crossing * (b - a) for a, b in zip(inside, between, strict=True)))
