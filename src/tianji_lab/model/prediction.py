"""Equation 1 of the paper (section 3.2), as it must be meant.

The paper's first case, ``T_c = (T_sp + T_sd) N_s``, lacks the division by ``N_A`` that its own condition
has; with it both cases are one formula: ``T_c = N_s max((T_sp + T_sd) / N_A, T_rv)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tianji_cli.telemetry.bottleneck import (
    BOUND_BY_LINK,
    BOUND_BY_ROOT,
    MORE_CORES,
    OWN_CORES,
    Bottleneck,
    bottleneck,
    in_step,
    on_shared_cores,
)
from tianji_lab.model.costs import Costs, Split, Workload
from tianji_lab.model.rates import (
    NO_CONTENTION,
    Contention,
    CoreAllocation,
    PerRole,
    allocate_cores,
    fragments_per_update,
    rates_at,
)


@dataclass(frozen=True)
class Terms:
    """What one message costs on each side, in seconds.

    Attributes:
        sample_s: T_sp, to make it.
        send_s: T_sd, to push it, without waits for credit.
        receive_s: T_rv, to receive and store it.
    """

    sample_s: float
    send_s: float
    receive_s: float

    def collection_s(self, samples: int, actors: int) -> float:
        """T_c: the time to collect ``samples`` (N_s) from ``actors`` (N_A) that have a core each.

        >>> Terms(0.01, 0.0, 0.001).collection_s(1000, actors=2)
        5.0
        >>> Terms(0.01, 0.0, 0.001).collection_s(1000, actors=20)
        1.0
        """
        return samples * max((self.sample_s + self.send_s) / actors, self.receive_s)

    @property
    def crossing(self) -> int:
        """The fewest actors with which the critical path is the buffer's.

        >>> Terms(0.01, 0.0, 0.001).crossing
        10
        """
        return max(1, math.ceil((self.sample_s + self.send_s) / self.receive_s))


@dataclass(frozen=True)
class Prediction:
    """What a split gives, over all groups.

    Attributes:
        production: T_RA, env steps a second that the actors make if they never wait.
        reception: env steps a second that the buffers can receive.
        consumption: T_RL, sample uses a second that the learners make if they never wait for samples; a
            learner that takes turns with its buffer receives meanwhile.
        throughput: sample uses a second that come of it (Equation 3).
        limits: every limit of the throughput in uses a second, by name: "production", "reception",
            "consumption", and, where they exist, "turns" (actors and learners in step), "cores" (too few,
            so that roles share them), "link" and "root".
        contention: share of the other cores that is at work, 0 to 1, as each role finds it.
    """

    split: Split
    rho: float
    production: float
    reception: float
    consumption: float
    throughput: float
    limits: Mapping[str, float]
    bottleneck: Bottleneck
    contention: PerRole = NO_CONTENTION


def predict(split: Split, workload: Workload, costs: Costs, cores: int | None = None) -> Prediction:
    """Reckon what a split gives: Equations 1 and 3 of the paper.

    Args:
        cores: that there are, if they may be fewer than the split wants; roles then take turns on them.
    """
    job = _Job(split, workload, costs, allocate_cores(split, workload, cores))
    contention = job.settled_contention()
    rates = job.rates(contention)
    limits = job.limits(rates)
    return Prediction(
        split=split,
        rho=workload.rho,
        production=rates.actors / workload.rho,
        reception=rates.buffers / workload.rho,
        consumption=rates.learners,
        throughput=min(limits.values()),
        limits=limits,
        bottleneck=job.bottleneck(rates, limits),
        contention=contention,
    )


@dataclass(frozen=True)
class _Job:
    split: Split
    workload: Workload
    costs: Costs
    allocation: CoreAllocation

    def rates(self, contention: PerRole) -> PerRole:
        """What each role could do by itself, in uses a second."""
        rates = rates_at(self.split, self.workload, self.costs, contention)
        return rates._replace(actors=rates.actors * self.allocation.pace)

    def settled_contention(self) -> PerRole:
        """Find which share of the others' cores is at work beside each role."""
        if self.workload.in_step:  # Learners wait while actors work, and the other way round.
            sampling = self.allocation.contention(PerRole(actors=1.0, buffers=0.0, learners=0.0))
            learning = self.allocation.contention(PerRole(actors=0.0, buffers=1.0, learners=1.0))
            return learning._replace(actors=sampling.actors)
        alone_s, contended_s = (
            PerRole(*(1 / rate for rate in self.rates(PerRole(share, share, share)))) for share in (0.0, 1.0)
        )
        more_s = PerRole(*(max(of_all - own, 0.0) for own, of_all in zip(alone_s, contended_s, strict=True)))
        others = self.limits_of_exchange().values()
        return Contention(self.allocation, alone_s, more_s).settled(min(others, default=math.inf))

    def limits(self, rates: PerRole) -> dict[str, float]:
        """Everything that bounds the throughput, in uses a second."""
        limits = dict(zip(("production", "reception", "consumption"), rates, strict=True))
        allocation, needs_s = self.allocation, PerRole(*(1 / rate for rate in rates))
        if self.workload.in_step:
            actors_s = needs_s.actors / allocation.speed(allocation.turns.actors)
            limits["turns"] = 1 / (actors_s + needs_s.learners / allocation.speed(allocation.turns.learners))
        if allocation.shared:
            limits["cores"] = 1 / allocation.together_s(needs_s)
        return limits | self.limits_of_exchange()

    def limits_of_exchange(self) -> dict[str, float]:
        """What the link to each group's learner and the root allow, in uses a second."""
        limits = {}
        uses, exchange = self.workload.uses_per_update, self.costs.exchange
        crossing = fragments_per_update(self.workload, self.costs) * exchange.crossing
        if exchange.link_bytes_per_s is not None and crossing * exchange.fragment_bytes:
            updates = exchange.link_bytes_per_s / (crossing * exchange.fragment_bytes)
            limits["link"] = self.split.groups * updates * uses
        if exchange.root_s and exchange.waits:
            # 1 / root_s averagings a second, whichever groups they are for.
            limits["root"] = uses * exchange.sync_interval / exchange.root_s
        return limits

    def bottleneck(self, rates: PerRole, limits: Mapping[str, float]) -> Bottleneck:
        """Name the least limit."""
        match min(limits, key=lambda name: limits[name]):
            case "link":
                return BOUND_BY_LINK
            case "root":
                return BOUND_BY_ROOT
            case "cores":
                core_s = (cores / rate for cores, rate in zip(self.allocation.turns, rates, strict=True))
                meant = not (self.split.pinned or self.workload.one_process)
                return on_shared_cores(MORE_CORES if meant else OWN_CORES, *core_s)
            case "turns":
                return in_step(rates.actors, rates.learners)
            case _:
                return bottleneck(*rates)
