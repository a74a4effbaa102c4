"""Where every sample went: ``produced = received + in_flight + lost + dropped`` (exact at any stop).

Each term is counted where it happens. Actors count what they produced and gave up, in pages that survive
them; the buffer counts what it received, fragment by fragment, and each fragment says how far its actor's
own count had come. What an actor pushed beyond the last fragment received is in flight if it stopped in
order and lost if it was killed. Where a learner or a buffer was killed, the learners' count is what was
received, and what a buffer held for them besides is lost.

Reports of several groups are put together as if one of each had made it: counts are added up, and of what
only its owner can put together exactly (a median, a percentile) the largest is taken, so that nothing looks
better than it is. The report of a single group is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import astuple, dataclass, replace
from typing import Any, Final, get_type_hints

from tianji_cli.files.counters import Production
from tianji_cli.wire.reports import BufferReport, LearnerReport, Reception, ReplayFill, Rule, Source, Spread


@dataclass(frozen=True)
class Account:
    """The terms of the equation, in samples.

    Attributes:
        unaccounted: ``produced`` less all other terms; anything but 0 is a defect and is reported.
    """

    produced: int
    received: int
    in_flight: int
    lost: int
    dropped: int

    @property
    def unaccounted(self) -> int:
        """Samples that no term explains."""
        return self.produced - self.received - self.in_flight - self.lost - self.dropped

    def as_learnt(self, counted: int, *, all_known: bool) -> Account:
        """Go by the learners' count of what was received: a learner or a buffer died between two reports.

        What a buffer held for a learner that died is lost with it, so ``lost`` is reckoned here. A learner
        may have counted more than the last report of a dead buffer says.

        Args:
            all_known: what was made is known; of a host that was lost learners may have counted more of it.
        """
        held = self.received - counted
        made = self.produced if all_known else max(self.produced, self.produced - self.lost - held)
        return replace(self, produced=made, received=counted, lost=max(0, self.lost + held))


def reconcile(
    productions: Mapping[Source, Production],
    receptions: Mapping[Source, Reception],
    killed: Set[Source],
    orphaned: Set[int] = frozenset(),
) -> Account:
    """Add up all actors after everything stopped.

    Args:
        productions: the last state of each incarnation's page.
        receptions: what the buffers received from each.
        killed: incarnations that did not stop in order.
        orphaned: numbers of actors whose buffer died: ``receptions`` is its last word, and what came after is
            lost with it.
    """
    in_flight = lost = dropped = received = 0
    for source, production in productions.items():
        reception = receptions.get(source, Reception())
        received += reception.samples
        dropped += reception.dropped
        lost += reception.lost
        unclaimed = production.finished - reception.position
        if source in killed or source[0] in orphaned:
            lost += unclaimed
        else:
            in_flight += unclaimed
        if production.abandoned:
            dropped += production.unfinished
        else:  # It was killed, or an exception ended it: all that stop in order abandon what is unfinished.
            lost += production.unfinished
    produced = sum(production.produced for production in productions.values())
    return Account(produced, received, in_flight, lost, dropped)


def of_learners(said: Sequence[LearnerReport]) -> LearnerReport:
    """Put together what the learners of several groups say, each field by the rule that it declares.

    Counts are sums; version, seconds and the best mean return are the largest; the mean return, the win rate
    and the losses are means over groups; a threshold was reached when the first group reached it; means of
    policy lag and sample age are weighted by uses, their percentiles and maxima the largest of a group.
    """
    if len(said) < 2:
        return said[0] if said else LearnerReport()
    uses = [float(one.session_consumed) for one in said]
    return LearnerReport(
        **{name: RULES[rule]([getattr(one, name) for one in said], uses) for name, rule in RULE_OF.items()}
    )


def of_buffers(said: Sequence[BufferReport], uses: Sequence[float]) -> BufferReport:
    """Put together what the buffers of several groups say, but for what they received from each actor.

    Sizes and counts are sums. The ratio is that of all uses to all samples; the mean number of uses is
    weighted by the samples that a buffer received.

    Args:
        said: by the buffers that have said anything.
        uses: of samples in updates, in the group of each.
    """
    if len(said) < 2:
        return said[0] if said else BufferReport()
    given_up = [one.steps_given_up for one in said if one.steps_given_up is not None]
    return BufferReport(
        ratio=_ratio([one.ratio for one in said], uses),
        uses=_spread([one.uses for one in said], [float(one.received) for one in said]),
        replay=_added([one.replay for one in said if one.replay is not None]),
        stale_priorities=sum(one.stale_priorities for one in said),
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
    # Where nothing is known of the weights, a group counts as much as another.
    shares = [weight / total if total > 0 else 1 / len(known) for _, weight in known]
    return Spread(
        mean=sum(share * spread.mean for share, (spread, _) in zip(shares, known, strict=True)),
        p50=max(spread.p50 for spread, _ in known),
        p95=max(spread.p95 for spread, _ in known),
        max=max(spread.max for spread, _ in known),
    )


def _ratio(ratios: Sequence[float | None], uses: Sequence[float]) -> float | None:
    """Reckon all uses over all samples, of which each group made its uses over its ratio."""
    known = [(ratio, use) for ratio, use in zip(ratios, uses, strict=True) if ratio and use > 0]
    samples = sum(use / ratio for ratio, use in known)
    return sum(use for _, use in known) / samples if samples > 0 else None


def _added(fills: Sequence[ReplayFill]) -> ReplayFill | None:
    if not fills:
        return None
    return ReplayFill(*(sum(counts) for counts in zip(*map(astuple, fills), strict=True)))


def _earliest(said: Sequence[Mapping[float, float | None]]) -> dict[float, float | None]:
    """Return when the first group reached each threshold."""
    thresholds = dict.fromkeys(threshold for of_group in said for threshold in of_group)
    return {
        threshold: min(_known(of_group.get(threshold) for of_group in said), default=None)
        for threshold in thresholds
    }


def _means(said: Sequence[Mapping[str, float] | None]) -> dict[str, float | None] | None:
    """Return the mean of each number over the groups that have it; what is not finite in one shows."""
    known = [of_group for of_group in said if of_group is not None]
    names = dict.fromkeys(name for of_group in known for name in of_group)
    means = {name: _mean(of_group[name] for of_group in known if name in of_group) for name in names}
    return means if known else None


RULES: Final[Mapping[Rule, Callable[[Sequence[Any], Sequence[float]], Any]]] = {
    "sum": lambda values, _uses: sum(values),
    "largest": lambda values, _uses: max(_known(values), default=None),
    "mean": lambda values, _uses: _mean(values),
    "means": lambda values, _uses: _means(values),
    "earliest": lambda values, _uses: _earliest(values),
    "spread": _spread,
}
"""Functions that make one value of those of several groups, given the uses of samples in each group."""
RULE_OF: Final[Mapping[str, Rule]] = {
    name: hint.__metadata__[-1]
    for name, hint in get_type_hints(LearnerReport, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
"""The rule that each field of a learner's report declares."""
