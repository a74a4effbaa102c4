"""Sample accounting: ``produced = received + in_flight + lost + dropped`` (exact at any stop).

Each process counts its own term. Actors count the samples that they produced and gave up, and user roles
before the buffer those that they left out on purpose, in pages that outlive them; the buffer counts received
samples fragment by fragment, and each fragment carries its actor's own count. Samples that an actor pushed
after the last received fragment are in flight if the actor stopped in order, and lost if it was killed, or a
role on their way. If a learner or a buffer was killed, the learners' count is the number received, and the
samples that a buffer held beyond that count are lost.

The root merges the reports of several groups as if one buffer and one learner had written them: it adds up
counts, and takes the largest of each statistic that only its owner can merge exactly (a median, a
percentile), so that nothing looks better than it is. The report of a single group stays unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import astuple, replace
from types import MappingProxyType
from typing import Any, Final, get_type_hints

from tianji_cli.files.counters import Production
from tianji_cli.telemetry.snapshot import Account
from tianji_cli.wire.reports import (
    BufferReport,
    LearnerReport,
    Reception,
    ReplayFill,
    Source,
    Spread,
)


def reconcile(
    productions: Mapping[Source, Production],
    receptions: Mapping[Source, Reception],
    killed: Set[Source],
    written_off: Mapping[Source, int] = MappingProxyType({}),
    passed: Mapping[int, Sequence[Production]] = MappingProxyType({}),
) -> Account:
    """Add up the samples of all actors after everything stopped.

    Args:
        productions: the last state of each incarnation's page.
        receptions: samples that the buffers received from each incarnation.
        killed: incarnations that did not stop in order.
        written_off: samples of each incarnation that had been pushed when its buffer died, or when a role
            before it was replaced: those of them that no buffer has received are lost.
        passed: pages of the user roles before the buffer, by number of the actor.
    """
    dropped = received = 0
    lost, in_flight, left_out = Counter[int](), Counter[int](), Counter[int]()
    for source, production in productions.items():
        actor, reception = source[0], receptions.get(source, Reception())
        received += reception.samples
        unclaimed = production.finished - reception.position
        recent = min(recently_dropped(source, passed), unclaimed)
        unclaimed -= recent
        written = production.finished if source in killed else written_off.get(source, 0)
        gone = min(unclaimed, max(0, written - reception.position))
        # An actor that stops in order gives its fragment up; others were killed, or ended by an exception.
        lost[actor] += reception.lost + gone + production.unfinished
        in_flight[actor] += unclaimed - gone
        left_out[actor] -= recent
        dropped += reception.dropped + production.dropped + recent
    for actor, pages in passed.items():
        # Where a later fragment has come they were taken for lost so far, and for in flight where it has not.
        earlier = left_out[actor] + sum(page.dropped for page in pages)
        among_lost = min(earlier, lost[actor])
        among_others = min(earlier - among_lost, in_flight[actor])
        lost[actor] -= among_lost
        in_flight[actor] -= among_others
        dropped += among_lost + among_others
    produced = sum(production.produced for production in productions.values())
    return Account(produced, received, in_flight.total(), lost.total(), dropped)


def recently_dropped(source: Source, passed: Mapping[int, Sequence[Production]]) -> int:
    """Return the samples of an actor's incarnation that roles left out, and after which no others came."""
    return sum(page.recent for page in passed.get(source[0], ()) if page.incarnation == source[1])


def as_learnt(account: Account, counted: int, *, all_known: bool) -> Account:
    """Take the learners' count as the number received: a learner or a buffer died between two reports.

    The samples that a buffer held for a dead learner are lost too, so this computes ``lost`` anew. A learner
    may have counted more than the last report of a dead buffer says.

    Args:
        all_known: ``produced`` is exact; learners may have counted more samples of a lost host.
    """
    held = account.received - counted
    made = account.produced if all_known else max(account.produced, account.produced - account.lost - held)
    return replace(account, produced=made, received=counted, lost=max(0, account.lost + held))


def of_learners(reports: Sequence[LearnerReport]) -> LearnerReport:
    """Merge the reports of several groups' learners, each field by the rule that it declares.

    Counts are sums; version, seconds and the best mean return are the largest; the mean return, the win rate
    and the losses are means over groups; a threshold was reached when the first group reached it; means of
    policy lag and sample age are weighted by uses, their percentiles and maxima the largest of a group.
    """
    if len(reports) < 2:
        return reports[0] if reports else LearnerReport()
    uses = [float(one.session_consumed) for one in reports]
    return LearnerReport(
        **{name: RULES[rule]([getattr(one, name) for one in reports], uses) for name, rule in RULE_OF.items()}
    )


def of_buffers(reports: Sequence[BufferReport]) -> BufferReport:
    """Merge the reports of several buffers, except for their receptions by source.

    Sizes and counts are sums. The ratio is all uses over all samples; the mean number of uses is weighted by
    the samples that a buffer received.
    """
    if len(reports) < 2:
        return reports[0] if reports else BufferReport()
    given_up = [one.steps_given_up for one in reports if one.steps_given_up is not None]
    return BufferReport(
        ratio=_ratio(reports),
        drawn=sum(one.drawn for one in reports),
        uses=_spread([one.uses for one in reports], [float(one.received) for one in reports]),
        replay=_added([one.replay for one in reports if one.replay is not None]),
        stale_priorities=sum(one.stale_priorities for one in reports),
        steps_given_up=sum(given_up) if given_up else None,
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return sum(known) / len(known) if known else None


def _spread(spreads: Sequence[Spread | None], weights: Sequence[float]) -> Spread | None:
    known = [(spread, weight) for spread, weight in zip(spreads, weights, strict=True) if spread is not None]
    if not known:
        return None
    total = sum(weight for _, weight in known)
    # Without weights, all groups count alike.
    shares = [weight / total if total > 0 else 1 / len(known) for _, weight in known]
    return Spread(
        mean=sum(share * spread.mean for share, (spread, _) in zip(shares, known, strict=True)),
        p50=max(spread.p50 for spread, _ in known),
        p95=max(spread.p95 for spread, _ in known),
        max=max(spread.max for spread, _ in known),
    )


def _ratio(reports: Sequence[BufferReport]) -> float | None:
    """Divide all uses by all samples; a buffer's samples are its uses over its ratio."""
    known = [one for one in reports if one.ratio]
    samples = sum(one.drawn / one.ratio for one in known if one.ratio)
    return sum(one.drawn for one in known) / samples if samples > 0 else None


def _added(fills: Sequence[ReplayFill]) -> ReplayFill | None:
    if not fills:
        return None
    return ReplayFill(*(sum(counts) for counts in zip(*map(astuple, fills), strict=True)))


def _earliest(values: Sequence[Mapping[float, float | None]]) -> dict[float, float | None]:
    """Return when the first group reached each threshold."""
    thresholds = dict.fromkeys(threshold for of_group in values for threshold in of_group)
    return {
        threshold: min(_known(of_group.get(threshold) for of_group in values), default=None)
        for threshold in thresholds
    }


def _means(values: Sequence[Mapping[str, float] | None]) -> dict[str, float | None] | None:
    """Return the mean of each number over the groups that have it; a value that is not finite shows."""
    known = [of_group for of_group in values if of_group is not None]
    names = dict.fromkeys(name for of_group in known for name in of_group)
    means = {name: _mean(of_group[name] for of_group in known if name in of_group) for name in names}
    return means if known else None


RULES: Final[Mapping[str, Callable[[Sequence[Any], Sequence[float]], Any]]] = {
    "sum": lambda values, _uses: sum(values),
    "known sum": lambda values, _uses: sum(_known(values)) or None,
    "largest": lambda values, _uses: max(_known(values), default=None),
    "mean": lambda values, _uses: _mean(values),
    "means": lambda values, _uses: _means(values),
    "earliest": lambda values, _uses: _earliest(values),
    "spread": _spread,
}
"""Functions that merge the values of several groups, given the uses of samples in each group."""
RULE_OF: Final[Mapping[str, str]] = {
    name: hint.__metadata__[-1]
    for name, hint in get_type_hints(LearnerReport, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
"""The rule that each field of a learner's report declares."""
