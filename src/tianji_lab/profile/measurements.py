"""What was measured: a record for each thing, with repeats, median and spread, and its doubts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Final

from tianji_cli.quantities import share
from tianji_cli.wire.messages import Message
from tianji_lab.environment import MAX_NAMED, warnings_of_noise
from tianji_lab.environment import warnings as warnings_of_load
from tianji_lab.profile.building import Phase

SCHEMA: Final = 1


class Repeated(Message):
    """A quantity that was measured several times; the values in that order."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return median(self.values)

    @property
    def cost(self) -> float:
        """The lower quartile: what else runs on a machine only ever adds to the time that work takes."""
        if len(self.values) == 1:
            return self.values[0]
        return quantiles(self.values, n=4, method="inclusive")[0]

    @property
    def slowdown(self) -> float:
        """How many times as long the work took on average as its cost says."""
        return fmean(self.values) / self.cost if self.cost else 1.0

    @property
    def spread(self) -> float:
        """How far the largest lies from the smallest, as a share of the median."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0


class ActorFigures(Message):
    """Actors of one size; medians over the actors that ran side by side go into each repeat.

    Attributes:
        num_envs: N, environments of each.
        side_by_side: actors that ran at the same time, on a core each.
        crowded: all cores were at work, with actors or a learner.
        samples: env steps of experience in a fragment, on average.
        fragment_s: T_sp, seconds an actor works for a fragment.
        act_s: of them choosing actions.
        step_s: of them stepping environments.
    """

    num_envs: int
    side_by_side: int
    crowded: bool
    samples: float
    fragment_s: Repeated
    act_s: Repeated
    step_s: Repeated


class LearnerFigures(Message):
    """A learner, its buffer beside it.

    Attributes:
        cores: of the learner.
        share: L, as if the batch were divided among so many learners.
        num_envs: of the actors whose fragments it received.
        crowded: all other cores were at work.
        uses_per_update: sample uses of an update, with this share.
        updates_per_version: updates between two published policies.
        update_s: seconds of an update.
        draw_s: seconds to put a batch together.
        publish_s: seconds for each version, counting included.
        store_s: seconds to check and store a fragment.
    """

    cores: int
    share: int
    num_envs: int
    crowded: bool
    uses_per_update: float
    updates_per_version: float
    update_s: Repeated
    draw_s: Repeated
    publish_s: Repeated
    store_s: Repeated


class SharingFigures(Message):
    """A learner and an actor for each core that share all cores; waiting for one is not in their seconds.

    Attributes:
        learner: with its buffer beside it.
    """

    actors: ActorFigures
    learner: LearnerFigures


class TransportFigures(Message):
    """A message of one size.

    Attributes:
        engine: as in ``distribution.transport.local``.
        send_s: T_sd, to push it.
        receive_s: the transport's part of T_rv.
    """

    engine: str
    nbytes: int
    send_s: float
    receive_s: float


class WeightsFigures(Message):
    """Distribution of a policy: median seconds from the publication until the slowest actor has it."""

    actors: int
    seconds: float


class AveragingFigures(Message):
    """Seconds that so many learners take to average as many float32 values as the network has parameters."""

    learners: int
    seconds: Repeated


class Measurements(Message):
    """Everything that was measured on one machine for one config.

    Attributes:
        fingerprint: hash of all of the resolved config but ``[experiment]`` and what a split sets;
            measurements are of use for no other.
        cores: usable ones of the machine.
        at_work: of them that were at work when all were.
        fragment_bytes: size of a fragment, by the number of environments.
        batch_bytes: of a replay's batch; 0 on-policy.
        startup_s: from a process's start until its roles are built.
        busy: share of the cores at work with something else before the first run.
        actors: actors alone and crowded, for each number of environments.
        learners: learners alone and crowded.
        sharing: a learner and actors on the same cores; None if that was not measured.
        transport: messages of several sizes; empty where all roles share one process.
        weights: distribution of the policy; empty likewise.
        averaging: of gradients; empty on one core.
        unmeasured: what there was no time for, in words.
    """

    schema_number: int = SCHEMA
    config: str
    fingerprint: str
    cores: int
    at_work: int
    rho: float
    parameters: int
    fragment_bytes: dict[int, int]
    batch_bytes: int
    policy_bytes: int
    startup_s: float
    busy: float
    actors: tuple[ActorFigures, ...]
    learners: tuple[LearnerFigures, ...]
    transport: tuple[TransportFigures, ...]
    weights: tuple[WeightsFigures, ...]
    averaging: tuple[AveragingFigures, ...]
    seconds: float
    unmeasured: tuple[str, ...] = ()
    sharing: SharingFigures | None = None

    def slowdown(self, *, crowded: bool) -> float:
        """How many times as long work usually takes as its cost says, where all cores are at work or not.

        On a machine that has neighbours (a cloud's), any work is slower for seconds now and then. Which
        repeats that hits is chance, so those of one figure do not tell; the middle one of all figures does.
        A training goes through all of it.
        """
        actors = (figures.fragment_s for figures in self.actors if figures.crowded == crowded)
        learners = (figures.update_s for figures in self.learners if figures.crowded == crowded)
        found = [repeated.slowdown for repeated in (*actors, *learners)]
        if not found:  # There was no time for a contention.
            return self.slowdown(crowded=False) if crowded else 1.0
        return median(found)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of environments of which as much was measured as of any other, ascending.

        Time may have been over before some of them were measured, or only in part.
        """
        kinds: dict[int, set[tuple[str, bool]]] = {}
        for actor in self.actors:
            kinds.setdefault(actor.num_envs, set()).add(("actor", actor.crowded))
        for learner in self.learners:
            if learner.cores == learner.share == 1:
                kinds.setdefault(learner.num_envs, set()).add(("learner", learner.crowded))
        most = max(map(len, kinds.values()), default=0)
        return tuple(sorted(size for size, of_size in kinds.items() if len(of_size) == most))


@dataclass(frozen=True)
class Measured:
    """What was measured, and the machine that it was measured on: descriptions by subject."""

    measurements: Measurements
    environment: Mapping[str, str]


FEWEST: Final = 4
"""Repeats from which it is seen what the middle half of them is."""
MATTERS: Final = 0.1
"""Share of an update's time from which the noise of one of its pieces is worth a word."""


def warnings(measured: Measurements) -> list[str]:
    """Say in sentences what is worth little; nothing on a quiet machine.

    A few repeats that were disturbed move no lower quartile, so it is the middle half of the repeats that
    has to lie close together.
    """
    apart = ((middle_half(repeated), what) for what, repeated in figures_of(measured))
    spreads = (
        (spread, f"half of the repeats of {what} lay more than {share(spread)} apart")
        for spread, what in apart
    )
    return [
        *warnings_of_load(measured.busy),
        *warnings_of_noise(spreads, "figure"),
        *_left_out(measured.unmeasured),
    ]


def _left_out(unmeasured: Sequence[str]) -> list[str]:
    """Say of a slow job what of it is not known."""
    if not unmeasured:
        return []
    named = "; ".join(unmeasured[:MAX_NAMED])
    more = f"; {more} more" if (more := len(unmeasured) - MAX_NAMED) > 0 else ""
    return [f"this job is too slow for all of it to be measured in time. Left out: {named}{more}"]


def middle_half(repeated: Repeated) -> float:
    """Describe how far the middle half of the repeats lies apart, as a share of the median.

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
