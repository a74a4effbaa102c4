"""What ends the growth of a job: the assumptions of a prediction, and the size at which each no longer holds.

A split for more cores than were measured takes for granted that what all actors, learners or groups share
keeps up: the root, a buffer, a link, the averaging of gradients; and that samples are still young.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from tianji_cli.quantities import several
from tianji_lab.model.costs import Costs
from tianji_lab.model.prediction import Prediction
from tianji_lab.model.workload import Workload

Name = Literal["root", "reception", "link", "gradients", "staleness", "rollout"]

_SHARED: Final[tuple[Name, ...]] = ("root", "reception", "link")
"""Those that are limits of a throughput; ``Prediction.limits`` has them by the same names."""


@dataclass(frozen=True)
class Limit:
    """An assumption that ends with growth.

    Attributes:
        name: what it is about.
        words: what happens, from which size on, and what would help.
        at: that size, in groups ("root"), learners of a group ("gradients") or actors of a group.
        headroom: how many times as large as now that is; below 1 the assumption does not hold now.
    """

    name: Name
    words: str
    at: int
    headroom: float


def breaks_first(prediction: Prediction, workload: Workload, costs: Costs) -> Limit | None:
    """Name the assumption that breaks first as a job grows.

    What holds the throughput back already comes before all others; then whatever is closest.

    Args:
        prediction: for the split from which the job grows.
        workload: of the job.
        costs: of that split.

    Returns:
        None if nothing is shared that takes any time.
    """
    found = growth_limits(prediction, workload, costs)
    return found[0] if found else None


def growth_limits(prediction: Prediction, workload: Workload, costs: Costs) -> list[Limit]:
    """List all assumptions that end with growth, those that break first at the head.

    Args:
        prediction: for the split from which the job grows.
        workload: of the job.
        costs: of that split.
    """
    found = [
        _of_what_is_shared(name, prediction)
        for name in _SHARED
        if math.isfinite(prediction.limits.get(name, math.inf))
    ]
    if costs.exchange.gradients_s > 0:
        found.append(_of_gradients(prediction, workload, costs))
    if costs.exchange.root_s > 0 and not costs.exchange.waits:
        found.append(_of_averaging(prediction, workload, costs))
    if workload.in_step:
        found.append(_of_turns(prediction, workload))
    elif workload.rollout_steps is not None and (aged := _of_ages(prediction, workload)).headroom < 1:
        found.append(aged)  # Old samples end no growth, and are worth a word where there are some.
    holds_back = min(prediction.limits, key=lambda name: prediction.limits[name])
    return sorted(found, key=lambda limit: (limit.name != holds_back, limit.headroom))


def _of_what_is_shared(name: Name, prediction: Prediction) -> Limit:
    """A part that serves all groups, or all actors of a group, and is busy all the time at some size."""
    otherwise = min(limit for other, limit in prediction.limits.items() if other != name)
    headroom = prediction.limits[name] / otherwise
    now = prediction.split.groups if name == "root" else prediction.split.actors
    at = max(1, round(now * headroom))
    what, busy, remedy = {
        "root": (
            f"one root averages the parameters of all groups: from about {at} groups (here {now})",
            "it is busy all the time, and more groups add nothing",
            "averaging less often, or fewer and larger groups, would help",
        ),
        "reception": (
            f"one buffer receives all fragments of a group: from about {at} actors in it (here {now})",
            "it is busy all the time, and more actors add nothing",
            "larger fragments, or more groups, would help",
        ),
        "link": (
            f"fragments share the link of the learner's host: from about {at} actors in a group (here {now})",
            "it is full, and more actors elsewhere add nothing",
            "actors on that host, or a group on each host, would help",
        ),
    }[name]
    words = f"{what} {busy}; {remedy}"
    return Limit(name, words, at, headroom)


def _of_gradients(prediction: Prediction, workload: Workload, costs: Costs) -> Limit:
    """More learners shorten an update, but not the averaging after it."""
    split, gradients_s = prediction.split, costs.exchange.gradients_s
    update_s = split.groups * workload.uses_per_update / prediction.consumption
    headroom = (update_s - gradients_s) / gradients_s
    at = max(1, round(split.learners * headroom))
    words = (
        f"learners average their gradients after every update: from about {at} learners in a group (here "
        f"{split.learners}) that takes longer than the rest of an update, and more learners add little; "
        "more groups would help"
    )
    return Limit("gradients", words, at, headroom)


def _of_averaging(prediction: Prediction, workload: Workload, costs: Costs) -> Limit:
    """A root that is not waited for holds nobody back; it averages less often than it was to."""
    exchange, now = costs.exchange, prediction.split.groups
    most = workload.uses_per_update * exchange.sync_interval / exchange.root_s
    headroom = most / prediction.throughput
    at = max(1, round(now * headroom))
    words = (
        f"one root averages the parameters of all groups: from about {at} groups (here {now}) it is busy all "
        f"the time, and a group's parameters are averaged less often than every {exchange.sync_interval} "
        "updates; a larger distribution.sync_interval, or fewer and larger groups, would help"
    )
    return Limit("root", words, at, headroom)


def _of_turns(prediction: Prediction, workload: Workload) -> Limit:
    """In step, with more actors than fragments in a rollout, some have no part in it."""
    split = prediction.split
    at, now = workload.fragments_per_rollout(split.num_envs), split.actors
    words = (
        f"a rollout has {several(at, 'fragment')}: more actors than that in a group (here {now}) "
        "find nothing to do"
    )
    return Limit("rollout", words, at, at / now)


def _of_ages(prediction: Prediction, workload: Workload) -> Limit:
    """With more actors than fragments in a rollout, some of them have to wait for a later one."""
    split = prediction.split
    at, now = workload.fragments_per_rollout(split.num_envs), split.actors
    words = (
        f"a rollout has {several(at, 'fragment')}, and a group {several(now, 'actor')}: "
        f"samples are up to {math.ceil(now / at)} versions old when used, which can cost learning "
        "what it gains in speed; more groups would help"
    )
    return Limit("staleness", words, at, at / now)
