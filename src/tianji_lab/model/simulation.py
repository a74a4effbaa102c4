"""A discrete-event simulation of the pipeline whose throughput ``throughput.prediction`` reckons.

The prediction is a minimum of rates: it knows no queue and no moment. Here every fragment is made, waits, is
received and used, after the rules of ``roles`` and ``data``: an actor begins a fragment with the newest
policy once its window has room, a store of rollouts claims ahead no more than the windows leave missing, a
replay keeps its balance, a buffer beside the learner takes turns with it. So the simulation says how far the
minimum is from what comes of the rules, and what no minimum can say: how old the policies are that samples
were made with.

Work never takes the same time twice, and near balance that alone makes one side wait for the other now and
then: no minimum of mean rates has that. So times vary here, by ``JITTER``.

One group is simulated, since all groups are alike; what they share, the root, serves them all. Roles that
share cores have equal parts of them while they are at work, as the kernel's scheduler gives them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tianji_lab.model.costs import Costs
from tianji_lab.model.rates import PerRole
from tianji_lab.model.seats import NOBODY, seats_of
from tianji_lab.model.split import Split
from tianji_lab.model.workload import Workload
from tianji_lab.model.simulated_group import Seconds, SimulatedGroup
from tianji_lab.model.simulated_rules import Chance

EVENTS: Final = 200_000
"""Of a simulation, if nothing else is wanted: half a second of reckoning."""

JITTER: Final = 0.1
"""Coefficient of variation of the time that a fragment or an update takes: an assumption. With it a balanced
job of rollouts comes to 3 to 6 % less than the prediction, about as much as was measured of such jobs."""


@dataclass(frozen=True)
class Simulation:
    """What came of a simulated run, over all groups; the warm-up is left out.

    Attributes:
        split: the split.
        production: env steps a second that the actors made.
        reception: env steps a second that the buffers received.
        consumption: sample uses a second that the learners made.
        throughput: sample uses a second: consumption, or, where nothing keeps production and consumption in
            balance, no more than was received allows.
        policy_lag: versions by which the policy that made a sample was older than the learner's when the
            learner began to use it, or, with a replay, when it was received; the mean.
        events: that were simulated.
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
    crowd: PerRole = NOBODY,
    jitter: float = JITTER,
    events: int = EVENTS,
) -> Simulation:
    """Let a split run for a number of events.

    Args:
        split: who gets how many cores.
        workload: what the algorithm asks.
        costs: of the split.
        cores: that there are, if they may be fewer than the split wants.
        crowd: share of the other cores that is at work, 0 to 1, as each role finds it.
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
    seats = seats_of(split, workload, cores)
    group = SimulatedGroup(split, workload, costs, Seconds.of(costs, crowd), seats, Chance(jitter))
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
