"""A discrete-event simulation of the pipeline whose throughput ``model.prediction`` reckons.

The prediction is a minimum of rates: it knows no queue and no moment. Here every fragment is made, waits,
is received and used, after the rules of ``roles``: an actor begins a fragment with the newest policy once
its window has room, a store of rollouts claims ahead no more than the windows leave missing, a replay keeps
its balance, a buffer beside the learner takes turns with it. So the simulation says how far the minimum is
from what comes of the rules, and what no minimum can say: how old the policies are that samples were made
with.

Work never takes the same time twice, and near balance that alone makes one side wait for the other now and
then: no minimum of mean rates has that. So times vary here, by ``JITTER``.

One group is simulated, since all groups are alike; what they share, the root, serves them all. Roles that
share cores have equal parts of them while they are at work, as the kernel's scheduler gives them.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

import simpy

from tianji_cli.config.schema import BATCHES_AHEAD, least_tolerance
from tianji_cli.roles.buffer.rate_limiter import RateLimiter
from tianji_lab.model.costs import Costs, Split, Workload
from tianji_lab.model.rates import NO_CONTENTION, CoreAllocation, PerRole, Seconds, allocate_cores

WARM_UP: Final = 0.25
"""Share of the events that is left out: the pipeline has to fill."""

LEAST_MARKS: Final = 5
"""Moments to measure between, at least; where the events do not suffice for them, the simulation goes on."""

Waits = Generator[simpy.Event, Any, None]


class Chance:
    """Everything random of a simulation; ``jitter`` is the coefficient of variation of its times."""

    def __init__(self, jitter: float) -> None:
        self._random = random.Random(0)  # noqa: S311 - nothing secret, and the same every time
        self._shape = 1 / jitter**2 if jitter > 0 else None

    def share(self) -> float:
        """Draw from 0 to 1."""
        return self._random.random()

    def about(self, seconds: float) -> float:
        """Draw a time with this mean, from a gamma distribution."""
        if self._shape is None:
            return seconds
        return self._random.gammavariate(self._shape, seconds / self._shape) if seconds > 0 else 0.0

    def slowest(self, number: int, seconds: float) -> float:
        """Draw the time of the slowest of several that begin together."""
        return seconds if self._shape is None else max(self.about(seconds) for _ in range(number))


class Sleeper:
    """A process that sleeps while there is nothing to do."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._asleep: simpy.Event | None = None

    def sleep(self) -> simpy.Event:
        """What to wait for."""
        self._asleep = self._env.event()
        return self._asleep

    def wake(self) -> None:
        """End the sleep, if it is one."""
        if self._asleep is not None:
            self._asleep.succeed()
            self._asleep = None


class SharedCores:
    """Cores that are dealt out evenly: what is at work has the same share of them, and its own at most."""

    def __init__(self, env: simpy.Environment, number: float) -> None:
        self._env = env
        self._number = number
        self._wanted = 0.0
        self._ends: list[tuple[float, int, float, simpy.Event]] = []
        self._begun = itertools.count()
        self._done_s = 0.0
        self._since = 0.0
        self._next: simpy.Event | None = None

    def work(self, seconds: float, cores: float) -> simpy.Event:
        """Work on so many cores, for so long if there are as many; what to wait for."""
        self._go_on()
        end = self._env.event()
        heapq.heappush(self._ends, (self._done_s + seconds, next(self._begun), cores, end))
        self._wanted += cores
        self._expect()
        return end

    @property
    def _speed(self) -> float:
        return min(self._number / self._wanted, 1.0)

    def _go_on(self) -> None:
        """Bring the clock of those at work, which all go at the same speed, up to the present."""
        if self._ends:
            self._done_s += (self._env.now - self._since) * self._speed
        self._since = self._env.now

    def _expect(self) -> None:
        """Wait for what ends next, if nothing begins before."""
        self._next = self._env.timeout(max(self._ends[0][0] - self._done_s, 0.0) / self._speed)
        self._next.callbacks.append(self._end)

    def _end(self, event: simpy.Event) -> None:
        if event is not self._next:
            return
        self._go_on()
        self._done_s, _, cores, end = heapq.heappop(self._ends)
        self._wanted -= cores
        end.succeed()
        if self._ends:
            self._expect()


class SimulatedActor(Sleeper):
    """What an actor knows between two fragments; ``roles.actor`` has the rules.

    Args:
        window: fragments that it may have pushed and unclaimed.
        per_version: fragments to make with one policy before waiting for the next; None: no waiting.
    """

    def __init__(self, env: simpy.Environment, window: int, per_version: int | None) -> None:
        super().__init__(env)
        self._window = window
        self._per_version = per_version
        self._made = 0
        self._version = 0
        self.unclaimed = 0

    def begins(self, newest: int) -> bool:
        """Begin a fragment with the newest policy, or say that it has to wait."""
        if newest > self._version:
            self._version, self._made = newest, 0
        waits = self._per_version is not None and self._made >= self._per_version
        if waits or self.unclaimed >= self._window:
            return False
        self._made += 1
        return True


class SimulatedRollouts:
    """Says which fragments are claimed for rollouts, and when there is a minibatch, as ``data.rollout`` does.

    Args:
        ahead: fragments to hold while the learner is busy with the rollout before.
        updates: made with each rollout.

    Attributes:
        used: fragments of all rollouts so far.
    """

    def __init__(self, per_rollout: int, ahead: int, updates: int) -> None:
        self._per_rollout = per_rollout
        self._ahead = ahead
        self._updates = updates
        self._updates_left = 0
        self._wanted = True
        self._held = 0
        self.used = 0

    @property
    def full(self) -> bool:
        """Leave further fragments with their senders."""
        return self._held >= (self._per_rollout if self._wanted else self._ahead)

    def admit(self) -> None:
        """Hold a fragment."""
        self._held += 1

    def draws(self) -> bool:
        """Hand out the next minibatch, if there is one."""
        if self._updates_left == 0:
            self._wanted = self._held < self._per_rollout
            if self._wanted:
                return False
            self._held -= self._per_rollout
            self.used += self._per_rollout
            self._updates_left = self._updates
        self._updates_left -= 1
        return True


class SimulatedReplay:
    """Says which fragments a replay claims, and when a batch may be drawn: its balance knows.

    Attributes:
        used: fragments that may be drawn from: all that were received.

    Raises:
        ValueError: the tolerance is so small that both sides would wait for each other.
    """

    def __init__(self, workload: Workload, steps: int, samples: float) -> None:
        least = least_tolerance(steps, round(workload.uses_per_update), workload.rho)
        if workload.tolerance is not None and workload.tolerance < least:
            raise ValueError(
                f"a tolerance of {workload.tolerance:g} env steps is too small: {least:g} at least"
            )
        self._balance = RateLimiter(workload.rho, 0, workload.tolerance)
        self._batch = workload.uses_per_update
        self._steps = steps
        self._samples = samples
        self._drawn = 0
        self.used = 0

    @property
    def full(self) -> bool:
        """Leave further fragments with their senders."""
        return not self._balance.may_receive(self._steps)

    def admit(self) -> None:
        """Take in a fragment."""
        self.used += 1
        self._balance.received = round(self.used * self._samples)

    def draws(self) -> bool:
        """Draw the next batch, if there may be one."""
        if not self._balance.may_consume(round(self._batch)):
            return False
        self._drawn += 1
        self._balance.consumed = round(self._drawn * self._batch)
        return True


def store_of(split: Split, workload: Workload, samples: float) -> SimulatedRollouts | SimulatedReplay:
    """Make what the buffer of a group keeps fragments in."""
    if workload.rollout_steps is None:
        return SimulatedReplay(workload, workload.send_size * split.num_envs, samples)
    per_rollout = workload.fragments_per_rollout(split.num_envs)
    # In step actors send a rollout and then wait: there is nothing to hold back.
    left = 0 if workload.in_step else workload.window * split.actors
    updates = max(1, round(workload.updates_per_version))
    return SimulatedRollouts(per_rollout, max(0, per_rollout - left), updates)


def actors_of(split: Split, workload: Workload, env: simpy.Environment) -> list[SimulatedActor]:
    """Make the actors of a group, without those that have no share of a rollout in step."""
    window = workload.window
    if not workload.in_step:
        return [SimulatedActor(env, window, None) for _ in range(split.actors)]
    share, more = divmod(workload.fragments_per_rollout(split.num_envs), split.actors)
    shares = [share + (number < more) for number in range(split.actors)]
    return [SimulatedActor(env, window, share) for share in shares if share]


@dataclass(frozen=True, slots=True)
class Mark:
    """How much there was when a version was published; where groups are averaged, when the root was asked.

    Attributes:
        used: fragments that the learners had begun to use.
        aged: how often a fragment that was not used yet became one version older.
    """

    at_s: float
    pushed: int
    received: int
    updates: int
    used: int
    aged: int


class SimulatedRoot:
    """Averages the parameters of one group after another."""

    def __init__(self, env: simpy.Environment, seconds: float) -> None:
        self._env = env
        self._seconds = seconds
        self._free_at = 0.0

    def average(self) -> float:
        """Queue a group's parameters; say when they will have been averaged."""
        self._free_at = max(self._env.now, self._free_at) + self._seconds
        return self._free_at


class SimulatedGroup:
    """The actors, the buffer and the learners of one group.

    Args:
        seconds: the same where the other cores are as busy as they are.
        allocation: which roles share cores; of all groups, which have equal parts of them.
    """

    def __init__(
        self,
        split: Split,
        workload: Workload,
        costs: Costs,
        seconds: Seconds,
        allocation: CoreAllocation,
        chance: Chance,
    ) -> None:
        self.marks: list[Mark] = []
        self._env = simpy.Environment()
        self._allocation = allocation
        shared = allocation.shared or allocation.pace * split.cores_of_actors
        self._cores = SharedCores(self._env, shared / split.groups)
        self._split, self._workload, self._seconds, self._chance = split, workload, seconds, chance
        self._sync_interval, self._waits = costs.exchange.sync_interval, costs.exchange.waits
        self._updates_per_version = max(1, round(workload.updates_per_version))
        self._store = store_of(split, workload, costs.actor.samples)
        self._actors = actors_of(split, workload, self._env)
        self._learner, self._buffer = Sleeper(self._env), Sleeper(self._env)
        self._root = SimulatedRoot(self._env, seconds.average)
        self._arrived: deque[SimulatedActor] = deque()
        self._link_free_at = 0.0
        self._begun = self._pushed = self._received = self._updates = self._batches = 0
        self._version = self._aged = 0
        self._averaged_at = 0.0
        self._phases_of_others = [chance.share() for _ in range(split.groups - 1)]
        self._begin()

    def run(self, events: int) -> int:
        """Simulate so many events, or a few more; returns how many."""
        simulated, warm_up = 0, int(events * WARM_UP)
        while simulated < events or len(self.marks) < LEAST_MARKS:
            self._env.step()
            simulated += 1
            if simulated == warm_up:
                self.marks.clear()
        return simulated

    def _begin(self) -> None:
        processes = [self._act(actor) for actor in self._actors]
        if self._workload.colocated:
            processes.append(self._buffer_and_learner_in_turns())
        else:
            processes += [self._serve(), self._learn()]
        for process in processes:
            self._env.process(process)

    def _acting(self, seconds: float) -> simpy.Event:
        if self._allocation.turns.actors or self._allocation.pace < 1:
            return self._cores.work(seconds, self._allocation.of_one.actors)
        return self._env.timeout(seconds)

    def _buffering(self, seconds: float) -> simpy.Event:
        """Work of a buffer with cores of its own, or of the learner that it takes turns with."""
        if not self._allocation.of_one.buffers:
            return self._learning(seconds)
        if self._allocation.turns.buffers:
            return self._cores.work(seconds, self._allocation.of_one.buffers)
        return self._env.timeout(seconds)

    def _learning(self, seconds: float) -> simpy.Event:
        if self._allocation.turns.learners:
            return self._cores.work(seconds, self._allocation.of_one.learners * self._split.learners)
        return self._env.timeout(seconds)

    # Actors.

    def _act(self, actor: SimulatedActor) -> Waits:
        seconds = self._seconds.fragment
        yield self._env.timeout(self._chance.share() * seconds)
        while True:
            while not actor.begins(self._version):
                yield actor.sleep()
            self._begun += 1
            yield self._acting(self._chance.about(seconds))
            self._push(actor)

    def _push(self, actor: SimulatedActor) -> None:
        self._pushed += 1
        actor.unclaimed += 1
        if self._seconds.transfer > 0:
            self._env.process(self._carry(actor))
        else:
            self._arrive(actor)

    def _carry(self, actor: SimulatedActor) -> Waits:
        """Send a fragment over the link of the learner's host, after those before it."""
        self._link_free_at = max(self._env.now, self._link_free_at) + self._seconds.transfer
        yield self._env.timeout(self._link_free_at - self._env.now)
        self._arrive(actor)

    def _arrive(self, actor: SimulatedActor) -> None:
        self._arrived.append(actor)
        (self._learner if self._workload.colocated else self._buffer).wake()

    # Buffer and learner.

    def _buffer_and_learner_in_turns(self) -> Waits:
        while True:
            yield from self._receive()
            if self._store.draws():
                yield from self._update(self._seconds.serve)
            elif not self._can_receive:
                yield self._learner.sleep()

    @property
    def _can_receive(self) -> bool:
        return bool(self._arrived) and not self._store.full

    def _receive(self) -> Waits:
        while self._can_receive:
            actor = self._arrived.popleft()
            yield self._buffering(self._seconds.receive)
            self._store.admit()
            self._received += 1
            actor.unclaimed -= 1
            actor.wake()

    def _update(self, before_s: float) -> Waits:
        """Make one update, all learners in all_reduce, and what follows now and then."""
        seconds, workload = self._seconds, self._workload
        update_s = self._chance.slowest(self._split.learners, seconds.update)
        yield self._learning(before_s + update_s + seconds.gradients)
        self._updates += 1
        if self._updates % self._updates_per_version == 0:
            yield self._learning(seconds.publish)
            self._version += 1
            self._aged += self._begun - self._store.used
            if workload.in_step:
                for actor in self._actors:
                    actor.wake()
        syncs = seconds.hand_in + seconds.average > 0
        if syncs and self._updates % self._sync_interval == 0:
            yield from self._sync()
        if self._updates % (self._sync_interval if syncs else self._updates_per_version) == 0:
            self._mark()

    def _serve(self) -> Waits:
        """A buffer with cores of its own: receives, and assembles batches ahead of the learner."""
        seconds = self._seconds
        while True:
            yield from self._receive()
            if self._batches < BATCHES_AHEAD and self._store.draws():
                yield self._buffering(seconds.serve)
                self._batches += 1
                self._learner.wake()
            elif not self._can_receive:
                yield self._buffer.sleep()

    def _learn(self) -> Waits:
        while True:
            while self._batches == 0:
                yield self._learner.sleep()
            self._batches -= 1
            self._buffer.wake()
            yield from self._update(self._seconds.take)

    def _mark(self) -> None:
        self.marks.append(
            Mark(self._env.now, self._pushed, self._received, self._updates, self._store.used, self._aged)
        )

    # The root.

    def _sync(self) -> Waits:
        """Hand the group's parameters to the root, once it has done with the last ones.

        A group that does not wait for that hands them in another time.
        """
        env = self._env
        if not self._waits and self._averaged_at > env.now:
            return
        yield env.timeout(self._seconds.hand_in)
        yield env.timeout(max(0.0, self._averaged_at - env.now))
        self._averaged_at = self._root.average()
        # The other groups do what this one does, in another phase of whatever repeats itself.
        repeats = min(self._updates / self._sync_interval, max(1, self._version), max(1, self._received))
        for phase in self._phases_of_others:
            env.timeout(phase * env.now / repeats).callbacks.append(self._sync_of_another)

    def _sync_of_another(self, _: simpy.Event) -> None:
        self._root.average()


EVENTS: Final = 200_000
"""Of a simulation, if nothing else is wanted: half a second of reckoning."""

JITTER: Final = 0.1
"""Coefficient of variation of the time that a fragment or an update takes: an assumption. With it a balanced
job of rollouts comes to 3 to 6 % less than the prediction, about as much as was measured of such jobs."""


@dataclass(frozen=True)
class Simulation:
    """What came of a simulated run, over all groups; the warm-up is left out.

    Attributes:
        throughput: sample uses a second: consumption, or, where nothing keeps production and consumption in
            balance, no more than was received allows.
        policy_lag: versions by which the policy that made a sample was older than the learner's when the
            learner began to use it, or, with a replay, when it was received; the mean.
    """

    split: Split
    production: float
    reception: float
    consumption: float
    throughput: float
    policy_lag: float
    events: int


def simulate(
    split: Split,
    workload: Workload,
    costs: Costs,
    *,
    cores: int | None = None,
    contention: PerRole = NO_CONTENTION,
    jitter: float = JITTER,
    events: int = EVENTS,
) -> Simulation:
    """Let a split run for a number of events.

    Args:
        cores: that there are, if they may be fewer than the split wants.
        contention: share of the other cores that is at work, 0 to 1, as each role finds it.
        jitter: coefficient of variation of the time that a fragment and an update take (gamma distribution);
            0 has each take the same time.
        events: to simulate; a few hundred thousand a second.

    Raises:
        ValueError: all roles in one process, rollouts with a buffer in a process of its own, or a tolerance
            that is too small.
    """
    if workload.one_process:
        raise ValueError("roles of one process take turns on one core: there is nothing to simulate")
    if workload.rollout_steps is not None and not workload.colocated:
        raise ValueError("rollouts are held by a buffer beside the learner, not by one with cores of its own")
    allocation = allocate_cores(split, workload, cores)
    group = SimulatedGroup(split, workload, costs, Seconds.of(costs, contention), allocation, Chance(jitter))
    simulated = group.run(events)
    begin, end = group.marks[0], group.marks[-1]
    per_s = split.groups / (end.at_s - begin.at_s)
    reception = (end.received - begin.received) * costs.actor.samples * per_s
    consumption = (end.updates - begin.updates) * workload.uses_per_update * per_s
    is_free = workload.rollout_steps is None and workload.tolerance is None
    used = end.used - begin.used
    return Simulation(
        split,
        production=(end.pushed - begin.pushed) * costs.actor.samples * per_s,
        reception=reception,
        consumption=consumption,
        throughput=min(consumption, reception * workload.rho) if is_free else consumption,
        policy_lag=(end.aged - begin.aged) / used if used else 0.0,
        events=simulated,
    )
