"""What actors, buffers and learners could each do if the others never held them back."""

from __future__ import annotations

import math
from typing import NamedTuple

from tianji_lab.model.costs import Costs
from tianji_lab.model.split import Split
from tianji_lab.model.workload import Workload


class PerRole(NamedTuple):
    """A quantity of the actors, of the buffers and of the learners."""

    actors: float
    buffers: float
    learners: float


def rates_at(split: Split, workload: Workload, costs: Costs, crowd: PerRole) -> PerRole:
    """Reckon production x rho, reception x rho and consumption, in sample uses a second over all groups.

    Args:
        split: the split.
        workload: what the job asks of the machine.
        costs: of this split.
        crowd: share of the other cores that is at work, 0 to 1, as each role finds it.
    """
    return PerRole(
        actors=split.groups * _production(split, costs, crowd.actors) * workload.rho,
        buffers=split.groups * _reception(workload, costs, crowd.buffers) * workload.rho,
        learners=split.groups * _consumption(workload, costs, crowd.learners),
    )


def fragments_per_update(workload: Workload, costs: Costs) -> float:
    """Fragments of which an update makes use: its uses / rho are the samples it takes (section 3.3)."""
    return workload.uses_per_update / workload.rho / costs.actor.samples


def _production(split: Split, costs: Costs, crowd: float) -> float:
    """T_RA of a group in env steps a second: the first case of Equation 1 turned round, N_s / T_c."""
    fragment_s = costs.actor.sample.at(crowd) + costs.actor.send_s
    return _per_second(split.actors * costs.actor.samples, fragment_s)


def _reception(workload: Workload, costs: Costs, crowd: float) -> float:
    """Env steps a second that a group's buffer can receive: the second case of Equation 1 turned round.

    A buffer with a process of its own deals out batches meanwhile, as many as its fragments are worth.
    """
    receive_s = costs.buffer.receive_s + costs.buffer.store.at(crowd)
    if not workload.beside_learner:
        dealing_s = costs.buffer.draw.at(crowd) + costs.buffer.hand_over_s
        receive_s += dealing_s / fragments_per_update(workload, costs)
    return _per_second(costs.actor.samples, receive_s)


def _consumption(workload: Workload, costs: Costs, crowd: float) -> float:
    """T_RL of a group in sample uses a second.

    Learners are in lockstep: the one that takes turns with the buffer decides for all.
    """
    learner, exchange = costs.learner, costs.exchange
    update_s = (
        learner.update.at(crowd)
        + learner.publish.at(crowd) / workload.updates_per_version
        + exchange.gradients_s
        + exchange.group_s / exchange.sync_interval
    )
    if workload.beside_learner:
        buffer = costs.buffer
        receive_s = buffer.receive_s + buffer.store.at(crowd)
        update_s += buffer.draw.at(crowd) + buffer.hand_over_s
        update_s += fragments_per_update(workload, costs) * receive_s
    else:
        update_s += learner.take_s
    return _per_second(workload.uses_per_update, update_s)


def _per_second(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else math.inf
