"""Where every sample went: ``produced = received + in_flight + lost + dropped`` (exact at any stop).

Each term is counted where it happens. Actors count what they produced and gave up, in pages that survive
them; the buffer counts what it received, fragment by fragment, and each fragment says how far its actor's
own count had come. What an actor pushed beyond the last fragment received is in flight if it stopped in
order and lost if it was killed.

Reports of several groups are put together as if one of each had made it: counts are added up, and of what
only its owner can put together exactly (a median, a percentile) the largest is taken, so that nothing looks
better than it is. The report of a single group is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from tianji_cli.files.counters import Production
from tianji_cli.wire.reports import Reception, Source


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


Said = Mapping[str, Any]
"""What a role reports of itself."""

COUNTED: Final = ("env_steps", "consumed", "session_consumed", "updates", "episodes", "episodes_in_mean")
LARGEST: Final = ("rho", "version", "train_s", "session_train_s")
SPREADS: Final = ("lag", "age")


def of_learners(said: Sequence[Said]) -> Said:
    """Put together what the learners of several groups say; nothing if none has said anything.

    Counts are sums; version, seconds and the best mean return are the largest; the mean return, the win rate
    and the losses are means over groups; a threshold was reached when the first group reached it; means of
    policy lag and sample age are weighted by uses, their percentiles and maxima the largest of a group.
    """
    if len(said) < 2:
        return said[0] if said else {}
    uses = [float(one.get("session_consumed", 0)) for one in said]
    win_rate = _mean(one.get("win_rate") for one in said)
    return {
        **{name: sum(int(one.get(name, 0)) for one in said) for name in COUNTED},
        **{name: max(one.get(name, 0) for one in said) for name in LARGEST},
        **{name: _spread([one.get(name) for one in said], uses) for name in SPREADS},
        "mean_100": _mean(one.get("mean_100") for one in said),
        **({} if win_rate is None else {"win_rate": win_rate}),
        "best_mean_100": max(_known(one.get("best_mean_100") for one in said), default=None),
        "time_to": _earliest(said),
        "losses": _losses(said),
    }


def of_buffers(said: Sequence[Said], uses: Sequence[float]) -> Said:
    """Put together what the buffers of several groups say; nothing if none has said anything.

    Sizes and counts are sums. The ratio is that of all uses to all samples; the mean number of uses is
    weighted by the samples that a buffer received.

    Args:
        said: by the buffers that have said anything.
        uses: of samples in updates, in the group of each.
    """
    if len(said) < 2:
        return said[0] if said else {}
    received = [
        float(sum(samples for _actor, _incarnation, samples, *_ in one["receptions"])) for one in said
    ]
    given_up = _known(one.get("steps_given_up") for one in said)
    return {
        "ratio": _ratio([one.get("ratio") for one in said], uses),
        "uses": _spread([one.get("uses") for one in said], received),
        "replay": _added([one.get("replay") for one in said]),
        "stale_priorities": sum(int(one.get("stale_priorities", 0)) for one in said),
        **({"steps_given_up": sum(map(int, given_up))} if given_up else {}),
    }


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return sum(known) / len(known) if known else None


def _spread(spreads: Sequence[Said | None], weights: Sequence[float]) -> Said | None:
    known = [(spread, weight) for spread, weight in zip(spreads, weights, strict=True) if spread is not None]
    if not known:
        return None
    total = sum(weight for _, weight in known)
    # Where nothing is known of the weights, a group counts as much as another.
    shares = [weight / total if total > 0 else 1 / len(known) for _, weight in known]
    mean = sum(share * spread["mean"] for share, (spread, _) in zip(shares, known, strict=True))
    return {"mean": mean} | {name: max(spread[name] for spread, _ in known) for name in ("p50", "p95", "max")}


def _ratio(ratios: Sequence[float | None], uses: Sequence[float]) -> float | None:
    """Reckon all uses over all samples, of which each group made its uses over its ratio."""
    known = [(ratio, use) for ratio, use in zip(ratios, uses, strict=True) if ratio and use > 0]
    samples = sum(use / ratio for ratio, use in known)
    return sum(use for _, use in known) / samples if samples > 0 else None


def _added(tables: Sequence[Said | None]) -> Said | None:
    known = [table for table in tables if table is not None]
    return {name: sum(table[name] for table in known) for name in known[0]} if known else None


def _earliest(said: Sequence[Said]) -> list[list[float | None]]:
    """Return when the first group reached each threshold."""
    first: dict[float, float | None] = {}
    for one in said:
        for threshold, seconds in one.get("time_to", ()):
            first[threshold] = min(_known((first.get(threshold), seconds)), default=None)
    return [[threshold, seconds] for threshold, seconds in first.items()]


def _losses(said: Sequence[Said]) -> dict[str, float]:
    """Means over groups; what is not finite in one of them shows."""
    values: dict[str, list[float]] = {}
    for one in said:
        for name, loss in one.get("losses", {}).items():
            values.setdefault(name, []).append(math.nan if loss is None else loss)
    return {name: sum(of_groups) / len(of_groups) for name, of_groups in values.items()}
