"""Says what speaks against measurements: other work, repeats that lie far apart, too little time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tianji_cli.quantities import several, share
from tianji_lab.environment import NOISY
from tianji_lab.environment import warnings as warnings_of_load
from tianji_lab.profile.measurements import LearnerFigures, Measurements, Repeated
from tianji_lab.profile.phases import Phase

FEWEST: Final = 4
"""Repeats from which it is seen what the middle half of them is."""
MATTERS: Final = 0.1
"""Share of an update's time from which the noise of one of its pieces is worth a word."""
MOST_NAMED: Final = 3


def warnings(measured: Measurements) -> list[str]:
    """Say in sentences what is worth little; nothing on a quiet machine.

    A few repeats that were disturbed move no lower quartile, so it is the middle half of the repeats that
    has to lie close together.
    """
    apart = [(middle_half(repeated), what) for what, repeated in figures_of(measured)]
    noisy = sorted(((spread, what) for spread, what in apart if spread > NOISY), reverse=True)
    said = [
        f"too noisy: half of the repeats of {what} lay more than {share(spread)} apart"
        for spread, what in noisy[:MOST_NAMED]
    ]
    if (more := len(noisy) - MOST_NAMED) > 0:
        said.append(f"too noisy: {several(more, 'more figure')}, each above {share(NOISY)}")
    return [*warnings_of_load(measured.busy, ()), *said, *_left_out(measured.unmeasured)]


def _left_out(unmeasured: Sequence[str]) -> list[str]:
    """Say of a slow job what of it is not known."""
    if not unmeasured:
        return []
    named = "; ".join(unmeasured[:MOST_NAMED])
    more = f"; {more} more" if (more := len(unmeasured) - MOST_NAMED) > 0 else ""
    return [f"this job is too slow for all of it to be measured in time. Left out: {named}{more}"]


def middle_half(repeated: Repeated) -> float:
    """Say how far the middle half of the repeats lies apart, as a share of the median.

    Of fewer than ``FEWEST`` repeats it is all of them.

    >>> middle_half(Repeated(values=(1.0, 0.9, 7.0, 1.1)))
    0.09523809523809532
    >>> middle_half(Repeated(values=(1.0, 3.0)))
    1.0
    """
    ordered = sorted(repeated.values)
    left_out = len(ordered) // 4 if len(ordered) >= FEWEST else 0
    return Repeated(values=tuple(ordered[left_out : len(ordered) - left_out])).spread


def figures_of(measured: Measurements) -> Iterator[tuple[str, Repeated]]:
    """List what a prediction rests on, each with a name."""
    for actor in measured.actors:
        phase = Phase(actor.num_envs, actors=actor.side_by_side)
        beside = " with all cores at work" if actor.crowded else ""
        yield f"{phase}{beside}", actor.fragment_s
    for learner in measured.learners:
        phase = Phase(learner.num_envs, learner_cores=learner.cores, share=learner.share)
        beside = " with all cores at work" if learner.crowded else ""
        for piece, repeated in _pieces(learner):
            yield f"{piece} ({phase}{beside})", repeated
    for averaging in measured.averaging:
        yield f"averaging of gradients among {averaging.learners} learners", averaging.seconds


def _pieces(learner: LearnerFigures) -> Iterator[tuple[str, Repeated]]:
    """List what takes a good part of the time of an update; storing is the buffer's, and measured with it."""
    per_version = learner.updates_per_version
    pieces = (
        ("updates", learner.update_s, 1.0),
        ("batches", learner.draw_s, 1.0),
        ("publication", learner.publish_s, per_version),
    )
    whole_s = sum(repeated.cost / updates for _, repeated, updates in pieces)
    for piece, repeated, updates in pieces:
        if repeated.cost / updates > MATTERS * whole_s:
            yield piece, repeated
