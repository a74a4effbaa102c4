"""Typed reports of the roles to the root, and the counters behind them.

A role reports to the root five times a second. Every field of a report has a default, which stands for a role
that has not reported yet. A field of ``LearnerReport`` declares the rule that merges several groups
(``root/accounting.py``); ``METRICS`` in ``telemetry/snapshot.py`` says where a number is shown.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field

from tianji_cli.quantities import count, duration, number, share
from tianji_transports.core import Claim

Source = tuple[int, int]
"""(number, incarnation) of an actor."""


@dataclass
class Reception:
    """Samples that a buffer received from one incarnation of an actor.

    Attributes:
        samples: received samples.
        dropped: samples received and of no use.
        lost: samples in fragments whose sequence numbers were skipped: they were rejected on the way.
        next_sequence: sequence number of the next fragment.
        position: the actor's own count of samples up to that fragment.
    """

    samples: int = 0
    dropped: int = 0
    lost: int = 0
    next_sequence: int = 0
    position: int = 0

    def follow(self, sequence: int, before: int, samples: int) -> None:
        """Count a fragment: its number, the samples before it and the samples in it."""
        if sequence != self.next_sequence:
            self.lost += before - self.position
        self.next_sequence = sequence + 1
        self.position = before + samples


@dataclass(frozen=True)
class Spread:
    """Mean, median, 95th percentile and maximum of a distribution."""

    mean: float
    p50: float
    p95: float
    max: float

    def __str__(self) -> str:
        """Text for the user: ``mean 1.25, p50 1, p95 3, max 5``."""
        mean = f"{self.mean:.2f}" if self.mean < 100 else count(self.mean)
        return f"mean {mean}, p50 {count(self.p50)}, p95 {count(self.p95)}, max {count(self.max)}"


@dataclass(frozen=True)
class ReplayFill:
    """Fill of a replay: env steps in it, its capacity in env steps, and the bytes that it takes."""

    size: int
    capacity: int
    nbytes: int


@dataclass(frozen=True)
class Evaluating:
    """Progress of an evaluation.

    Attributes:
        episodes: episodes that have ended.
        wanted: episodes to play.
        env_steps: env steps of all episodes, unfinished ones included.
        seconds: seconds since its first step.
    """

    episodes: int
    wanted: int
    env_steps: int
    seconds: float

    def __str__(self) -> str:
        """Text for the user: ``37 of 100 episodes, 12 s``."""
        return f"{self.episodes} of {self.wanted} episodes, {duration(self.seconds, decimals=0)}"


PENDING: Final = 8192
"""Maximum values that are counted together."""


class Pending:
    """Collects values and counts them many at a time.

    A call of numpy for a few hundred costs about as much as one for thousands.

    Args:
        count: counts values ``[n]``, which it must not keep.
    """

    def __init__(self, count: Callable[[npt.NDArray[np.int64]], None]) -> None:
        self._count = count
        self._values = np.zeros(PENDING, np.int64)
        self._waiting = 0

    def add(self, values: npt.NDArray[np.int64]) -> None:
        """Add values, to be counted sooner or later."""
        if self._waiting + len(values) > PENDING:
            self.flush()
        if len(values) > PENDING:
            self._count(values)
            return
        self._values[self._waiting : self._waiting + len(values)] = values
        self._waiting += len(values)

    def flush(self) -> None:
        """Count all pending values."""
        if self._waiting:
            waiting, self._waiting = self._waiting, 0
            self._count(self._values[:waiting])


class Distribution:
    """A histogram of whole numbers: percentiles are exact to a bin's width, mean and maximum exact."""

    def __init__(self, width: int = 1) -> None:
        self._width = width
        self._counts = np.zeros(64, np.int64)
        self._samples = 0
        self._sum = 0
        self._max = 0
        self._pending = Pending(self._count)

    def record(self, value: int, samples: int) -> None:
        """Count ``samples`` of one value."""
        place = value // self._width
        self._reserve(place)
        self._counts[place] += samples
        self._note(samples, value * samples, value)

    def record_all(self, values: npt.NDArray[np.int64]) -> None:
        """Count one sample of each of ``values [B]``."""
        self._pending.add(values)

    def summary(self) -> Spread | None:
        """Mean, median, 95th percentile and maximum so far; None before a sample was used."""
        self._pending.flush()
        if self._samples == 0:
            return None
        cumulative = np.cumsum(self._counts)
        p50, p95 = np.searchsorted(cumulative, (0.50 * self._samples, 0.95 * self._samples))
        return Spread(
            mean=self._sum / self._samples,
            p50=float(p50 * self._width),
            p95=float(p95 * self._width),
            max=float(self._max),
        )

    def _count(self, values: npt.NDArray[np.int64]) -> None:
        largest = int(values.max())
        self._reserve(largest // self._width)
        counts = np.bincount(values if self._width == 1 else values // self._width)
        self._counts[: len(counts)] += counts
        self._note(len(values), int(values.sum()), largest)

    def _reserve(self, place: int) -> None:
        if place >= self._counts.size:
            self._counts = np.concatenate([self._counts, np.zeros(place + 1, np.int64)])

    def _note(self, samples: int, total: int, largest: int) -> None:
        self._samples += samples
        self._sum += total
        self._max = max(self._max, largest)


class Rejected:
    """Counts rejected messages, and keeps the reason of the first; empty if there was none."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def add(self, claim: Claim, why: str) -> None:
        """Count a message."""
        self.count += 1
        if not self.first:
            self.first = f"a message from rank {claim.source} is none of this job: {why}"

    @property
    def reported(self) -> tuple[int, str]:
        """Count and reason, as a report has them."""
        return self.count, self.first


Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A float that may be NaN or infinite: JSON has null for it, which is read as NaN."""


@dataclass(frozen=True, kw_only=True)
class RoleReport:
    """Report of any role.

    Attributes:
        rejected: number of rejected messages and reason of the first, by channel, or "endpoint".
    """

    rejected: Mapping[str, tuple[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ActorReport(RoleReport):
    """Report of an actor.

    Attributes:
        waited_s: seconds that it waited for each role that was behind, by name.
        frames_per_step: frames of the game in an environment step; None before an actor has reported it.
        remarks: sentences on its environment that the user sees once, by subject.
    """

    role: Literal["actor"] = "actor"
    waited_s: Mapping[str, float] = field(default_factory=dict)
    frames_per_step: int | None = None
    remarks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BufferReport(RoleReport):
    """Report of a buffer; all but ``receptions`` describes its replay, and is None or 0 without one.

    Attributes:
        receptions: number and incarnation of each actor, and the fields of its ``Reception``. There are many
            actors, and a message has a limit: names would take most of it.
        ratio: uses of each sample so far, since the warm-up; None before the first.
        drawn: uses of samples in the batches that were drawn.
        replay: fill of the replay.
        uses: distribution of the uses of a sample, over all samples so far; None before the first use.
        stale_priorities: priorities that came after their samples had made room for others.
        steps_given_up: env steps that had left the replay before their sequence or unroll was complete; None
            where the learner uses neither.
    """

    role: Literal["buffer"] = "buffer"
    receptions: tuple[tuple[int, int, int, int, int, int, int], ...] = ()
    ratio: float | None = None
    drawn: int = 0
    replay: ReplayFill | None = None
    uses: Spread | None = None
    stale_priorities: int = 0
    steps_given_up: int | None = None

    @property
    def by_source(self) -> dict[Source, Reception]:
        """Reception from each incarnation of an actor."""
        return {(actor, incarnation): Reception(*counts) for actor, incarnation, *counts in self.receptions}

    @property
    def received(self) -> int:
        """Samples that the buffer received in this session."""
        return sum(samples for _actor, _incarnation, samples, *_ in self.receptions)


Count = Annotated[int, "sum"]


@dataclass(frozen=True, kw_only=True)
class LearnerReport(RoleReport):
    """Report of a learner, or of the learners of several groups together.

    Counts are over all sessions unless their line says otherwise.

    Attributes:
        env_steps: environment steps of experience that it has received.
        consumed: sample uses in updates.
        session_consumed: sample uses in this session.
        updates: gradient updates.
        version: newest policy version.
        train_s: seconds since the first environment step (0 before it), until training ends; without
            interruptions.
        session_train_s: ``train_s`` of this session alone.
        rho: target replay ratio: sample uses for each environment step.
        lag: policy lag of the samples used, in versions; None before the first update.
        age: env steps that a buffer received between a sample and its use; None without a replay or before
            the first use.
        refused: samples of this session's rollouts that the update rule was not ``ready`` to learn from; None
            if there were none.
        episodes: episodes that have ended in this session.
        episodes_in_mean: episodes behind ``mean_100``, ``win_rate`` and ``metrics``; at most 100 of each
            group.
        mean_100: mean return of the last 100 episodes; None before any has ended.
        best_mean_100: highest ``mean_100`` so far over 100 episodes; None before so many have ended.
        win_rate: share of the last 100 episodes that were won; None before any has ended, or where nothing
            is won.
        metrics: mean of each of ``environment.metrics`` over the last 100 episodes; None before any has
            ended, or where none are asked for.
        mean_length: mean length of the last 100 episodes, in env steps; None before any has ended.
        time_to: return threshold -> seconds from the first environment step until ``mean_100`` reached it.
        losses: means of losses and diagnostics, by name.
    """

    role: Literal["learner"] = "learner"
    env_steps: Count = 0
    consumed: Count = 0
    session_consumed: Count = 0
    updates: Count = 0
    version: Annotated[int, "largest"] = 0
    train_s: Annotated[Number, "largest"] = 0.0
    session_train_s: Annotated[float, "largest"] = 0.0
    rho: Annotated[Number, "largest"] = 0.0
    lag: Annotated[Spread | None, "spread"] = None
    age: Annotated[Spread | None, "spread"] = None
    refused: Annotated[int | None, "known sum"] = None
    episodes: Count = 0
    episodes_in_mean: Count = 0
    mean_100: Annotated[float | None, "mean"] = None
    best_mean_100: Annotated[float | None, "largest"] = None
    win_rate: Annotated[float | None, "mean"] = None
    metrics: Annotated[Mapping[str, Number] | None, "means"] = None
    mean_length: Annotated[float | None, "mean"] = None
    time_to: Annotated[Mapping[float, float | None], "earliest"] = field(default_factory=dict)
    losses: Annotated[Mapping[str, Number], "means"] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FollowerReport(RoleReport):
    """Report of a follower: the newest version that it knows, and its updates. The learner counts uses."""

    role: Literal["follower"] = "follower"
    version: int = 0
    updates: int = 0


@dataclass(frozen=True, kw_only=True)
class EvaluatorReport(RoleReport):
    """Report of the evaluator.

    Attributes:
        returns: returns of the episodes that have ended.
        progress: progress of the evaluation.
        cut_off: the limit that was reached, in words; None if there was none.
        win_rate: share of the episodes that were won; None where nothing is won.
        agents: mean return of each agent of a team, by name; None for a single agent.
        metrics: mean of each of ``environment.metrics``; None where none are asked for.
        sampled: returns of the episodes with actions sampled as in training, after the greedy ones.
        length: mean length of the episodes, in env steps; None before any has ended.
    """

    role: Literal["evaluator"] = "evaluator"
    returns: tuple[Number, ...] = ()
    progress: Evaluating | None = None
    cut_off: str | None = None
    win_rate: float | None = None
    agents: Mapping[str, Number] | None = None
    metrics: Mapping[str, Number] | None = None
    sampled: tuple[Number, ...] = ()
    length: float | None = None


FEWEST: Final = 5
"""Minimum episodes for a standard error."""
OF_SOME: Final = ("win_rate", "agents", "metrics", "sampled", "length")
"""Fields of an evaluation that documents and rows omit where they are None."""


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation: returns of episodes, mostly greedy ones.

    Attributes:
        episodes: episodes played to their end; only these count.
        mean: mean return; NaN if no episode has ended.
        std: standard deviation of the returns; NaN where ``mean`` is not finite.
        win_rate: share of the episodes that were won; None where nothing is won.
        agents: mean return of each agent of a team, by name; None for a single agent.
        metrics: mean of each of ``environment.metrics``; None where none are asked for.
        left_out: wanted episodes that had not ended at the limit.
        cut_off: the limit that was reached, in words; None if all episodes were played.
        sampled: ``episodes``, ``mean`` and ``std`` of episodes with actions sampled from the policy, as in
            training; None where their mean is within three standard errors of the greedy mean.
        length: mean length of the episodes, in env steps; None if none has ended.
    """

    episodes: int
    mean: Number
    std: Number
    win_rate: float | None = None
    agents: Mapping[str, Number] | None = None
    left_out: int = 0
    cut_off: str | None = None
    metrics: Mapping[str, Number] | None = None
    sampled: Mapping[str, Number] | None = None
    length: float | None = None

    @classmethod
    def of(cls, report: EvaluatorReport, wanted: int, ended_by: str | None = None) -> Evaluation:
        """Evaluate the episodes that have ended.

        Args:
            wanted: episodes that were to be played.
            ended_by: cause of the end, where it was no limit of the evaluation's own.
        """
        returns = report.returns
        mean = statistics.fmean(returns) if returns else math.nan
        std = statistics.pstdev(returns) if math.isfinite(mean) else math.nan
        left_out = wanted - len(returns)
        cut_off = report.cut_off or ended_by if left_out else None
        other = _apart(returns, report.sampled)
        means = report.win_rate, report.agents, left_out, cut_off, report.metrics, other, report.length
        return cls(len(returns), mean, std, *means)

    def described(self, kind: str, limits: str) -> str:
        """Describe the result of episodes of a kind, those left out, and the settings of the limits."""
        wanted = self.episodes + self.left_out
        if not self.episodes:
            return f"none of {wanted} {kind} had ended after {self.cut_off} ({limits})"
        of_all = f"{self.episodes} of {wanted}" if self.left_out else f"{self.episodes}"
        won = "" if self.win_rate is None else f", {share(self.win_rate)} won"
        length = "" if self.length is None else f", {number(self.length)} steps"
        cut = f"; {self.left_out} had not ended after {self.cut_off} ({limits})" if self.left_out else ""
        other = ""
        if (drawn := self.sampled) is not None:
            other = (
                f"; {number(drawn['mean'])} in {drawn['episodes']} whose actions were drawn as in training"
            )
            other += f", standard deviation {number(drawn['std'])}"
        return (
            f"{number(self.mean)}  mean of {of_all} {kind}, standard deviation {number(self.std)}"
            f"{length}{won}{cut}{other}"
        )


def _apart(returns: Sequence[float], sampled: Sequence[float]) -> dict[str, float] | None:
    """Describe sampled returns if their mean is more than three standard errors from the others'."""
    if min(len(returns), len(sampled)) < FEWEST or not all(map(math.isfinite, (*returns, *sampled))):
        return None
    error = math.sqrt(sum(statistics.variance(part) / len(part) for part in (returns, sampled)))
    mean = statistics.fmean(sampled)
    if abs(mean - statistics.fmean(returns)) <= 3.0 * error:
        return None
    return {"episodes": len(sampled), "mean": mean, "std": statistics.pstdev(sampled)}


@dataclass(frozen=True)
class Examined:
    """Result of one evaluation while training.

    Attributes:
        number: counts the evaluations of one examiner, from 1.
        group: group of the policy.
        version: version of the policy.
        env_steps: env steps of the job when the policy was published.
        evaluation: its result.
        is_best: whether no evaluation had a higher mean return so far.
    """

    number: int
    group: int
    version: int
    env_steps: int
    evaluation: Evaluation
    is_best: bool


@dataclass(frozen=True, kw_only=True)
class ExaminerReport(RoleReport):
    """Report of the examiner.

    Attributes:
        newest: its last few evaluations, oldest first: each is in several reports.
        best_mean: highest mean return of an evaluation, over all sessions; None before there is one.
        progress: progress of the present evaluation; None between two.
        film_failure: cause of the newest failure of a film; None if none has failed.
    """

    role: Literal["examiner"] = "examiner"
    newest: tuple[Examined, ...] = ()
    best_mean: float | None = None
    progress: Evaluating | None = None
    film_failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class UserReport(RoleReport):
    """Report of a user role.

    Attributes:
        values: values as JSON, which go into metrics and summary unchanged.
    """

    role: Literal["user"] = "user"
    values: Mapping[str, Any] = field(default_factory=dict)


AnyReport = Annotated[
    ActorReport
    | BufferReport
    | LearnerReport
    | FollowerReport
    | ExaminerReport
    | EvaluatorReport
    | UserReport,
    Field(discriminator="role"),
]
