"""State of a run at one moment, its summary at the end, and the places where each number is shown.

The root builds a ``Snapshot`` about once a second and one ``Summary`` when the run is over. ``METRICS``
declares every number and fills rows of ``metrics.jsonl``, TensorBoard events, plain lines, the live display,
the result and ``summary.json``; rows and summaries are read back by it. This module knows neither files nor
terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal, Self

from tianji_cli.quantities import (
    count,
    duration,
    exact,
    finite,
    memory,
    number,
    rate,
    several,
    share,
    written,
)
from tianji_cli.telemetry.bottleneck import Bottleneck
from tianji_cli.wire.reports import (
    OF_SOME,
    BufferReport,
    Evaluating,
    Evaluation,
    LearnerReport,
    Number,
)

SUMMARY_SCHEMA: Final = 2
"""Schema number of ``summary.json``; it changes when a key changes its meaning or goes away."""

Status = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class RoleStatus:
    """State of one role, at one moment or over a whole session.

    Attributes:
        rank: rank of its process; roles that share a process share the rank.
        role: "actor", "buffer", "learner", "follower", "evaluator", "root", or one of the user's own.
        group: group it belongs to, or None for a role of the whole job.
        busy: share of the last interval, or of the session, in which it worked, 0 to 1; None before the first
            report.
        restarts: number of restarts so far.
        state: one or two words, "running" when all is well.
        memory: bytes of its process's own memory; None before the first report.
        cores: cores of its process.
    """

    rank: int
    role: str
    group: int | None
    host: str
    pid: int | None = None
    busy: float | None = None
    restarts: int = 0
    state: str = "running"
    memory: int | None = None
    cores: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return the role's name in logs and metrics: role and rank."""
        return f"{self.role}-{self.rank}"

    def document(self, *keys: str) -> dict[str, Any]:
        """Return some of its fields; fit for JSON."""
        return {key: _for_json(getattr(self, key)) for key in keys}


def in_rows(roles: Sequence[RoleStatus], most: int) -> list[list[RoleStatus]]:
    """Sort roles into rows: one each if there are no more than ``most``, else one for each kind."""
    if len(roles) <= most:
        return [[role] for role in roles]
    return [
        [role for role in roles if role.role == kind] for kind in dict.fromkeys(role.role for role in roles)
    ]


@dataclass(frozen=True)
class StopProgress:
    """Progress of a run towards one of its stop rules.

    Attributes:
        rule: key of the rule in ``experiment.stop``.
        value: present value; None while unknown (no episode has ended yet).
        eta_s: seconds until the target at the present pace; None if unknown or not approaching.
    """

    rule: str
    value: float | None
    target: float
    eta_s: float | None = None


@dataclass(frozen=True)
class Averaging:
    """Averaging of several groups' parameters by the root, in this session.

    Attributes:
        missed: for each group, the number of rounds for which it was too late.
        lost: groups that ended before the job did.
    """

    rounds: int
    missed: tuple[int, ...]
    lost: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the text for displays: ``12 rounds; group 1 missed 3; group 2 is lost``."""
        words = [several(self.rounds, "round")]
        late = (f"group {group} missed {rounds}" for group, rounds in enumerate(self.missed) if rounds)
        gone = (f"group {group} is lost" for group in self.lost)
        return "; ".join([*words, *late, *gone])


@dataclass(frozen=True)
class Split:
    """Number of actors of each group that work, and the search for the best one in this session.

    Attributes:
        actors: number with which training was fastest so far.
        trying: number that works now for a comparison; None if it is ``actors``.
        tried: other numbers that were tried.
        kept: those of them that were faster, and stayed.
    """

    actors: int
    trying: int | None = None
    tried: int = 0
    kept: int = 0

    def __str__(self) -> str:
        """Return the text for displays: ``8 actors a group; 12 other numbers tried, 3 faster``."""
        now = "" if self.trying is None else f", trying {self.trying}"
        tried = f"{several(self.tried, 'other number')} tried, {self.kept} faster"
        return f"{several(self.actors, 'actor')} a group{now}; {tried}"


@dataclass(frozen=True)
class GroupStanding:
    """Progress of one of several groups: its number, and fields of its learner's report."""

    group: int
    env_steps: int
    updates: int
    version: int
    mean_100: float | None
    best_mean_100: float | None
    consumed: int

    @classmethod
    def of(cls, group: int, report: LearnerReport) -> Self:
        """Build the progress of a group from its learner's last report."""
        return cls(group, *(getattr(report, one.name) for one in fields(cls)[1:]))


@dataclass(frozen=True)
class MemberStanding:
    """State of one member of a population: its group, and its score in the last round, None before the first.

    Attributes:
        takeovers: number of times it has taken over another member, over all sessions.
        parent: the member that it last took over; None if it never did.
        hyperparameters: the hyperparameters it trains with.
    """

    group: int
    score: float | None
    takeovers: int
    parent: int | None
    hyperparameters: Mapping[str, Any]


@dataclass(frozen=True)
class PopulationStanding:
    """State of a population and its members.

    Attributes:
        rounds: number of comparisons, over all sessions.
        metric: name of the score.
        members: all members, in the order of their groups.
        takeovers: number of takeovers by all members, over all sessions.
        best: group of the member with the highest score; None before any member has one.
        best_score: that score; None likewise.
    """

    rounds: int
    metric: str
    members: tuple[MemberStanding, ...]
    takeovers: int = field(init=False)
    best: int | None = field(init=False)
    best_score: float | None = field(init=False)

    def __post_init__(self) -> None:
        """Set what follows from the members."""
        scores = {one.group: one.score for one in self.members if one.score is not None}
        best = max(scores, key=lambda group: scores[group], default=None)
        object.__setattr__(self, "takeovers", sum(one.takeovers for one in self.members))
        object.__setattr__(self, "best", best)
        object.__setattr__(self, "best_score", None if best is None else scores[best])

    def __str__(self) -> str:
        """Return the text for displays.

        For example ``12 rounds, 5 takeovers; best is member 2 (180.20): training.gamma 0.99``.
        """
        text = f"{several(self.rounds, 'round')}, {several(self.takeovers, 'takeover')}"
        best = next((one for one in self.members if one.group == self.best), None)
        if best is None or best.score is None:
            return text
        return f"{text}; best is member {best.group} ({number(best.score)}): {written(best.hyperparameters)}"


@dataclass(frozen=True)
class Evaluated:
    """State of the evaluations that run during training.

    Attributes:
        number: number of evaluations in this session.
        env_steps: environment steps of the job when the newest evaluated policy was published.
        mean: mean return of the newest evaluation; None if no episode of it has ended, or if there was none
            in this session.
        std: standard deviation of these returns; None likewise.
        best_mean: highest mean of an evaluation, over all sessions; None before the first.
        evaluating: progress of the present evaluation; None between two evaluations.
    """

    number: int
    env_steps: int | None = None
    mean: float | None = None
    std: float | None = None
    best_mean: float | None = None
    evaluating: Evaluating | None = None

    def __str__(self) -> str:
        """Return the text for displays.

        For example ``210.5 +- 12.1 after 81,920 env steps, best 215.3; now 3 of 20 episodes, 2 s``.
        """
        newest = "none yet"
        if self.env_steps is not None:
            mean = (
                "no episode ended" if self.mean is None else f"{number(self.mean)} +- {number(self.std or 0)}"
            )
            newest = f"{mean} after {count(self.env_steps)} env steps"
        best = "" if self.best_mean is None else f", best {number(self.best_mean)}"
        now = "" if self.evaluating is None else f"; now {self.evaluating}"
        return f"{newest}{best}{now}"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A run at one moment. In a resumed run, counts and ``train_s`` continue from the interruption.

    With several groups, counts are sums; ``version``, ``train_s`` and ``best_mean_100`` are the largest; and
    ``mean_100``, ``mean_length``, ``win_rate``, ``metrics`` and ``losses`` are means over groups. Means of
    ``lag``, ``age`` and ``uses`` are weighted; their percentiles and maxima are the largest of any group.

    Attributes:
        elapsed_s: seconds since the start of the command.
        learner: report of the learners; ``env_steps`` is no less than after the session before.
        buffer: report of the buffers.
        produced: environment steps made by the actors.
        produced_per_s: environment steps made per second, over five seconds.
        received_per_s: environment steps received per second.
        consumed_per_s: sample uses per second.
        replay_ratio: sample uses for each environment step so far (with a replay, since the warm-up); None
            before the first update.
        staleness_p: P = B_s / N_s, the batch size's share of the replay's capacity (Equation 2); None
            without a replay.
        bottleneck: bottleneck of the last seconds; None while too little is known.
        averaging: averaging of the groups' parameters; None with one group.
        population: state of the population; None without one.
        split: number of actors that work; None if it does not vary.
        by_group: progress of each group; empty with one group.
        extra: reports of user roles, by name and rank.
        frames_per_step: frames of the game in an environment step; None until an actor has reported it.
        evaluating: progress of the final evaluation; None before and after it.
        evaluated: state of the evaluations during training; None without them.
    """

    elapsed_s: Number
    learner: LearnerReport = field(default_factory=LearnerReport)
    buffer: BufferReport = field(default_factory=BufferReport)
    produced: int
    produced_per_s: Number
    received_per_s: Number
    consumed_per_s: Number
    replay_ratio: float | None = None
    staleness_p: float | None = None
    bottleneck: Bottleneck | None = None
    averaging: Averaging | None = None
    population: PopulationStanding | None = None
    split: Split | None = None
    by_group: tuple[GroupStanding, ...] = ()
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    frames_per_step: int | None = None
    evaluating: Evaluating | None = None
    evaluated: Evaluated | None = None
    roles: tuple[RoleStatus, ...] = ()
    stop: tuple[StopProgress, ...] = ()

    @property
    def frames(self) -> int | None:
        """Return the frames of the game in all environment steps; None until frames per step are known."""
        return None if self.frames_per_step is None else self.learner.env_steps * self.frames_per_step

    @property
    def frames_per_s(self) -> float | None:
        """Return the frames made per second; None until frames per step are known."""
        return None if self.frames_per_step is None else self.produced_per_s * self.frames_per_step

    @property
    def next_stop(self) -> StopProgress | None:
        """Return the stop rule that will hold first at the present pace; None if none is in sight."""
        in_sight = [rule for rule in self.stop if rule.eta_s is not None]
        return min(in_sight, key=lambda rule: rule.eta_s or 0.0, default=None)

    @property
    def eta_s(self) -> float | None:
        """Return the seconds until the first stop rule holds at the present pace; None if unknown."""
        rule = self.next_stop
        return None if rule is None else rule.eta_s

    def metrics(self) -> dict[str, Any]:
        """Return one row of ``metrics.jsonl``, without fields of roles that seldom change; fit for JSON."""
        row = dict(_known(self, {"both", "rows"}))
        row["busy"] = {role.name: role.busy for role in self.roles}
        row["memory"] = {role.name: role.memory for role in self.roles}
        row["restarts"] = sum(role.restarts for role in self.roles)
        row["stop"] = {rule.rule: rule.target for rule in self.stop}
        row["reached"] = {rule.rule: rule.value for rule in self.stop}
        row["reached_in_s"] = {rule.rule: rule.eta_s for rule in self.stop}
        return {key: finite(value) for key, value in row.items()}

    def standing(self) -> list[dict[str, Any]]:
        """Return the fields of roles that seldom change; fit for JSON."""
        seldom = ("rank", "role", "group", "host", "pid", "restarts", "state")
        return [role.document(*seldom) for role in self.roles]


@dataclass(frozen=True)
class Account:
    """Account of a session's samples: ``produced`` is the sum of the other terms.

    Attributes:
        produced: environment steps made by the actors.
        received: environment steps received by the buffers.
        in_flight: environment steps pushed and not received when the run stopped, or not pushed yet.
        lost: environment steps lost with a process that died.
        dropped: environment steps dropped on purpose, by a rule that says so.
    """

    produced: int
    received: int
    in_flight: int
    lost: int
    dropped: int

    @property
    def unaccounted(self) -> int:
        """Samples that no term explains; anything but 0 is a defect of the run, and is reported."""
        return self.produced - self.received - self.in_flight - self.lost - self.dropped


@dataclass(frozen=True, kw_only=True)
class Summary(Snapshot, Account):
    """A run at its end, as ``summary.json`` has it; rates and the bottleneck are those of the whole session.

    Attributes:
        status: "finished" by a stop rule, "stopped" by the user, "failed".
        reason: reason for the end of the run, in words.
        overshoot: environment steps beyond ``experiment.stop.env_steps``; None without that rule.
        rejected_frames: messages rejected because they were no valid frame of this job.
        last_report_only: ranks on lost hosts; only the last report of each counts.
        init: source of the initial tensors, and the tensors taken; None if the run began without one.
        session: number of this session, from 1 on; None where an earlier version wrote the summary.
    """

    experiment: str
    status: Status
    reason: str
    transport: str
    mode: str
    groups: int
    evaluation: Evaluation | None
    rejected_frames: int
    last_report_only: tuple[int, ...] = ()
    overshoot: int | None = None
    init: Mapping[str, Any] | None = None
    session: int | None = None

    def document(self) -> dict[str, Any]:
        """Return the keys and values of ``summary.json``; a number that is not finite becomes None."""
        of_any = {one.name for one in fields(Snapshot)}
        document: dict[str, Any] = {"schema": SUMMARY_SCHEMA}
        document |= {name: _for_json(value) for name, value in vars(self).items() if name not in of_any}
        kept = ("rank", "role", "group", "host", "cores", "restarts", "busy")
        document["roles"] = [role.document(*kept) for role in self.roles]
        for optional in OF_SOME:
            if self.evaluation is not None and getattr(self.evaluation, optional) is None:
                del document["evaluation"][optional]
        if self.init is None:
            del document["init"]
        document |= as_tables([("session.number", document.pop("session")), *_known(self, {"both"})])
        document["time_to"] = {
            exact(threshold): finite(seconds) for threshold, seconds in self.learner.time_to.items()
        }
        for key in SPREADS:
            if document[key] is None:
                document[key] = dict.fromkeys(("mean", "p50", "p95", "max"))
        first = [key for key in _SUMMARY_ORDER if key in document]
        return {key: document[key] for key in dict.fromkeys((*first, *document))}


SPREADS: Final = ("staleness", "sample_age", "uses")
"""Keys of a summary that hold tables of statistics; the values are nulls where there are no statistics."""
# fmt: off
_SUMMARY_ORDER: Final = (
    "schema", "experiment", "status", "reason", "session", "wall_s", "train_s", "env_steps", "updates",
    "transport", "mode", "groups", "produced", "received", "consumed", "in_flight", "lost", "dropped",
    "produced_per_s", "received_per_s", "consumed_per_s", "replay_ratio", "staleness", "returns", "time_to",
    "evaluation",
    "rejected_frames", "roles", "last_report_only", "sample_age", "uses", "replay", "staleness_p",
    "stale_priorities", "bottleneck", "averaging", "population", "by_group", "extra", "overshoot", "frames",
    "frames_per_s",
)
# fmt: on
"""First keys of a summary, in their order; all other keys come after these."""


def _for_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    elif isinstance(value, tuple):
        value = [_for_json(one) for one in value]
    return finite(value)


def _known(state: Snapshot, files: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield paths and values of the metrics that some files have, fit for JSON."""
    for metric in METRICS:
        if metric.written in files:
            value = metric.value(state)
            if value is not None or not metric.if_known:
                yield metric.path, _for_json(value)


Line = tuple[str, Callable[[Any], str | None]]
"""Label and text of a line on the screen; the line is left out if the number or the text is None."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number of a job, or a small record of numbers: its path, and the places that show it.

    It has its path in rows, in the summary, in plain lines, in TensorBoard (with slashes) and in trackers.

    Attributes:
        path: ``key``, or ``table.key`` of a table in ``summary.json``; no path has two meanings.
        of: path to the value in a ``Snapshot``: names of attributes, joined by dots.
        written: files that have it: rows of ``metrics.jsonl`` and ``summary.json``, rows alone, or none
            where it is a part of a record that they have.
        plain: format of the value in plain lines; empty if they do not have it.
        charted: TensorBoard and trackers have it, of a record each number.
        live: line in the live display.
        result: line in the result on stdout.
        if_known: rows and summary leave the number out while it is None.
    """

    path: str
    of: str = ""
    written: Literal["both", "rows", "neither"] = "both"
    plain: str = ""
    charted: bool = False
    live: Line | None = None
    result: Line | None = None
    if_known: bool = False

    def value(self, state: Snapshot) -> Any:
        """Return the metric's value; None if the value, or a record that contains it, is unknown."""
        value: Any = state
        for name in (self.of or self.path).split("."):
            value = None if value is None else getattr(value, name)
        return value


def _win_rate(state: Snapshot) -> str:
    judged = several(state.learner.episodes_in_mean, "episode")
    return f"{share(state.learner.win_rate or 0.0)} of the last {judged}"


def of_names(means: Mapping[str, float]) -> str:
    """Format numbers with their names.

    >>> of_names({"scout": 4.0, "tank": 8.25})
    'scout 4.00, tank 8.25'
    """
    return ", ".join(f"{name} {number(mean)}" for name, mean in means.items())


def _metrics(state: Snapshot) -> str:
    judged = several(state.learner.episodes_in_mean, "episode")
    return f"{of_names(state.learner.metrics or {})}, means of the last {judged}"


def _frames(state: Snapshot) -> str:
    frames = state.frames or 0
    return f", {count(frames)} frames" if frames > state.learner.env_steps else ""


def _steps(state: Snapshot) -> str:
    learner = state.learner
    return (
        f"{count(learner.env_steps)} env steps{_frames(state)}, {count(learner.updates)} updates, "
        f"policy version {count(learner.version)}"
    )


def _trained(summary: Summary) -> str:
    beyond = f" ({count(summary.overshoot)} beyond the goal)" if summary.overshoot else ""
    took = duration(summary.elapsed_s)
    resumed = summary.learner.env_steps > summary.produced
    return (
        f"{count(summary.learner.env_steps)} env steps{beyond}{_frames(summary)}, "
        f"{count(summary.learner.updates)} updates in {duration(summary.learner.train_s)}"
        f"{f'; the last session took {took} in all' if resumed else f', {took} in all'}"
    )


def _rates(state: Snapshot) -> str | None:
    if state.evaluating is not None:
        return None
    return (
        f"produced {rate(state.produced_per_s)}, received {rate(state.received_per_s)}, "
        f"consumed {rate(state.consumed_per_s)}"
    )


def _bottleneck(state: Snapshot) -> str | None:
    return None if state.evaluating is not None else str(state.bottleneck)


def _ratio(summary: Summary) -> str | None:
    if not summary.learner.rho:
        return None  # No learner lived to report it.
    actual = "no update made" if summary.replay_ratio is None else f"{summary.replay_ratio:.2f}"
    return f"{actual}, target {summary.learner.rho:.2f}"


def _fill_and_ratio(state: Snapshot) -> str | None:
    parts, replay = [], state.buffer.replay
    if replay is not None:
        parts.append(f"{count(replay.size)} of {count(replay.capacity)} env steps ({memory(replay.nbytes)})")
    if state.replay_ratio is not None:
        parts.append(f"ratio {state.replay_ratio:.2f}, target {state.learner.rho:.2f}")
    return ", ".join(parts) or None


def _fill_and_p(state: Snapshot) -> str:
    assert state.buffer.replay is not None
    size, capacity, nbytes = astuple(state.buffer.replay)
    filled = f"{count(size)} of {count(capacity)} env steps, {memory(nbytes)}"
    if state.staleness_p is None:
        return filled
    return f"{filled}; a batch is {state.staleness_p:.3g} of it (P, Equation 2)"


def _late(state: Snapshot) -> str | None:
    late = state.buffer.stale_priorities
    return f"{count(late)} came after their samples had made room" if late else None


def _late_in_all(state: Snapshot) -> str | None:
    late = state.buffer.stale_priorities
    return f"{late} came after their samples had made room for others" if late else None


def _given_up(state: Snapshot) -> str | None:
    steps = state.buffer.steps_given_up
    return f"{count(steps)} steps of episodes that had lost their beginning" if steps else None


def _refused(state: Snapshot) -> str:
    return f"{count(state.learner.refused or 0)} samples that the update rule was not ready to learn from"


def _group(group: GroupStanding) -> str:
    mean = "no episode has ended" if group.mean_100 is None else f"return {number(group.mean_100)}"
    return f"{group.group}: {mean}, {count(group.env_steps)} env steps, {count(group.updates)} updates"


def _losses(state: Snapshot) -> str | None:
    return of_names(state.learner.losses) or None


EVALUATIONS: Final[Line] = ("evaluated", lambda state: str(state.evaluated))
AGE: Final[Line] = ("sample age", lambda state: f"{state.learner.age} env steps")
USES: Final[Line] = ("uses", lambda state: f"{state.buffer.uses} of each sample")
LAG: Final[Line] = ("policy lag", lambda state: f"{state.learner.lag} versions")
AVERAGING: Final[Line] = ("averaging", lambda state: str(state.averaging))
POPULATION: Final[Line] = ("population", lambda state: str(state.population))
SPLIT: Final[Line] = ("split", lambda state: str(state.split))
GROUPS: Final[Line] = ("groups", lambda state: "; ".join(map(_group, state.by_group)) or None)

# fmt: off
OF_EPISODES: Final = (
    Metric(path="wall_s", of="elapsed_s"),
    Metric(path="train_s", of="learner.train_s"),
    Metric(path="env_steps", of="learner.env_steps", plain="{}"),
    Metric(path="returns.episodes", of="learner.episodes", charted=True),
    Metric(path="returns.mean_100", of="learner.mean_100", plain="{:.6g}", charted=True),
    Metric(path="returns.best_mean_100", of="learner.best_mean_100"),
    Metric(path="returns.mean_length", of="learner.mean_length", charted=True, if_known=True),
    Metric(path="returns.win_rate", of="learner.win_rate", plain="{:.6g}", charted=True, if_known=True,
           live=("win rate", _win_rate), result=("win rate", _win_rate)),
    Metric(path="returns.metrics", of="learner.metrics", charted=True, if_known=True,
           live=("metrics", _metrics), result=("metrics", _metrics)),
    Metric(path="returns.episodes_in_mean", of="learner.episodes_in_mean"),
    Metric(path="evaluated", live=EVALUATIONS, result=EVALUATIONS, if_known=True),
    Metric(path="evaluated.mean", written="neither", plain="{:.6g}"),
    Metric(path="evaluating", written="rows", plain="{}"),
)
OF_PACE: Final = (
    Metric(path="updates", of="learner.updates", charted=True, live=("steps", _steps),
           result=("trained", _trained)),
    Metric(path="version", of="learner.version", charted=True),
    Metric(path="produced"),
    Metric(path="consumed", of="learner.consumed"),
    Metric(path="session.consumed", of="learner.session_consumed"),
    Metric(path="refused", of="learner.refused", charted=True, live=("refused", _refused),
           result=("refused", _refused), if_known=True),
    Metric(path="produced_per_s", plain="{:.0f}", charted=True, live=("rates", _rates),
           result=("rates", _rates)),
    Metric(path="received_per_s", charted=True),
    Metric(path="consumed_per_s", plain="{:.0f}", charted=True),
    Metric(path="eta_s", written="rows", plain="{:.0f}"),
    Metric(path="split", live=SPLIT, result=SPLIT, if_known=True),
    Metric(path="split.actors", written="neither", plain="{}", charted=True),
    Metric(path="frames_per_step"),
    Metric(path="frames"),
    Metric(path="frames_per_s"),
    Metric(path="bottleneck", live=("bottleneck", _bottleneck), result=("bottleneck", _bottleneck)),
    Metric(path="bottleneck.kind", written="neither", plain="{}"),
    Metric(path="replay_ratio.target", of="learner.rho", charted=True, live=("replay", _fill_and_ratio),
           result=("replay ratio", _ratio)),
    Metric(path="replay_ratio.actual", of="replay_ratio", charted=True),
)
OF_A_REPLAY: Final = (
    Metric(path="replay", of="buffer.replay", result=("replay", _fill_and_p)),
    Metric(path="replay.size", of="buffer.replay.size", written="neither", charted=True),
    Metric(path="staleness_p"),
    Metric(path="sample_age", of="learner.age", charted=True, live=AGE, result=AGE),
    Metric(path="uses", of="buffer.uses", charted=True, live=USES, result=USES),
    Metric(path="stale_priorities", of="buffer.stale_priorities", charted=True, live=("priorities", _late),
           result=("priorities", _late_in_all)),
    Metric(path="steps_given_up", of="buffer.steps_given_up", charted=True, live=("given up", _given_up),
           if_known=True),
)
OF_VERSIONS: Final = (
    Metric(path="staleness", of="learner.lag", charted=True, live=LAG, result=LAG),
    Metric(path="staleness.mean", of="learner.lag.mean", written="neither", plain="{:.3g}"),
    Metric(path="averaging", live=AVERAGING, result=AVERAGING),
    Metric(path="averaging.rounds", written="neither", charted=True),
    Metric(path="averaging.missed", written="neither", charted=True),
    Metric(path="population", live=POPULATION, result=POPULATION, if_known=True),
    Metric(path="population.best_score", written="neither", charted=True),
    Metric(path="population.takeovers", written="neither", charted=True),
    Metric(path="by_group", result=GROUPS),
    Metric(path="extra"),
    Metric(path="losses", of="learner.losses", charted=True, live=("losses", _losses)),
)
# fmt: on
METRICS: Final = (*OF_EPISODES, *OF_PACE, *OF_A_REPLAY, *OF_VERSIONS)
"""Every number that a run shows. Lines of the display and pairs of a plain line come in this order."""


def lines(
    state: Snapshot, metrics: Iterable[Metric], place: Callable[[Metric], Line | None]
) -> Iterator[tuple[str, str]]:
    """Yield label and text of the lines that some metrics have on a screen: ``live`` or ``result``."""
    for metric in metrics:
        line = place(metric)
        if line is not None and metric.value(state) is not None and (text := line[1](state)) is not None:
            yield line[0], text


def read_back(written: Mapping[str, Any]) -> dict[str, Any]:
    """Put the values of a row or a summary at their places in a ``Snapshot``, ready for validation."""
    state: dict[str, Any] = {}
    for metric in METRICS:
        table, _, key = metric.path.rpartition(".")
        found = written if metric.path in written else (written.get(table) or {})
        key = metric.path if found is written else key
        if metric.written != "neither" and key in found:
            *records, name = (metric.of or metric.path).split(".")
            into = state
            for record in records:
                into = into.setdefault(record, {})
            into[name] = found[key]
    return state


def as_tables(values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Put values into tables by their paths.

    >>> as_tables([("updates", 3), ("returns.episodes", 2), ("returns.mean_100", None)])
    {'updates': 3, 'returns': {'episodes': 2, 'mean_100': None}}
    """
    tables: dict[str, Any] = {}
    for path, value in values:
        table, _, key = path.rpartition(".")
        (tables.setdefault(table, {}) if table else tables)[key] = value
    return tables


_OLD_PATHS: Final = {
    "elapsed_s": "wall_s",
    "episodes": "returns.episodes",
    "mean_100": "returns.mean_100",
    "best_mean_100": "returns.best_mean_100",
    "mean_length": "returns.mean_length",
    "win_rate": "returns.win_rate",
    "metrics": "returns.metrics",
    "episodes_in_mean": "returns.episodes_in_mean",
    "replay_ratio_target": "replay_ratio.target",
    "replay_ratio_actual": "replay_ratio.actual",
    "lag": "staleness",
    "age": "sample_age",
}
"""Keys of rows in runs of version 0.1, and the paths of the same numbers now."""


def with_paths(row: Any) -> Any:
    """Return a row of ``metrics.jsonl`` with its paths of today, whichever version wrote it."""
    if not isinstance(row, dict) or "elapsed_s" not in row:
        return row
    is_evaluation = "kind" in row  # Its other keys are as they were.
    renamed = {"elapsed_s": "wall_s"} if is_evaluation else _OLD_PATHS
    return {renamed.get(key, key): value for key, value in row.items()}


def summary_with_paths(document: dict[str, Any]) -> dict[str, Any]:
    """Return ``summary.json`` as schema 2 has it: schema 1 had ``consumed`` of its session alone."""
    if document["schema"] != 1:
        return document
    renewed = document | {"schema": SUMMARY_SCHEMA}
    renewed["session"] = {"number": document.get("session"), "consumed": renewed.pop("consumed", 0)}
    if document.get("frames") and document["env_steps"]:
        renewed["frames_per_step"] = document["frames"] // document["env_steps"]
    return renewed
