"""Who may go on in a simulation: actors and stores after the rules of the real ones, and what chance adds."""

from __future__ import annotations

import heapq
import itertools
import random

import simpy

from tianji_cli.config.schema import least_tolerance
from tianji_cli.roles.buffer.rate_limiter import RateLimiter
from tianji_lab.model.costs import Split, Workload


class Chance:
    """Everything random of a simulation.

    Args:
        jitter: coefficient of variation of the times; 0 leaves them as they are.
    """

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

    Attributes:
        unclaimed: fragments that it pushed and the buffer has not received.
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
        per_rollout: fragments in a rollout.
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
