"""The state of a run at one moment, and what is left of it at the end.

The root role builds a ``Snapshot`` about once a second and one ``Summary`` when the run is over. Displays,
metrics and plots read them. This module knows neither files nor terminals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from tianji_cli.quantities import exact, finite
from tianji_cli.telemetry.bottleneck import Bottleneck
from tianji_cli.telemetry.evaluation import Evaluating, Evaluation
from tianji_cli.wire.reports import Spread

SUMMARY_SCHEMA: Final = 1
"""Schema number of ``summary.json``; it changes when a key changes its meaning or goes away."""

Status = Literal["finished", "stopped", "failed"]

_TABLES: Final = ("lag", "age", "uses", "replay", "bottleneck", "averaging", "evaluating")
"""Fields of a snapshot that are tables in a row of ``metrics.jsonl``, or null."""
_ONLY_IF_KNOWN: Final = ("win_rate", "steps_given_up")
"""Fields that are not mentioned where nothing is won, or no sequences are learnt from."""


@dataclass(frozen=True)
class RoleStatus:
    """How one role is doing.

    Attributes:
        rank: of its process; roles that share a process share the rank.
        role: "actor", "buffer", "learner", "follower", "evaluator", "root", or one of the user's own.
        group: it belongs to, or None for a role of the whole job.
        host: name of its host.
        pid: of its process, or None while it has none.
        busy: share of the last interval in which it worked, 0 to 1; None before the first report.
        restarts: how often it was restarted so far.
        state: one or two words, "running" when all is well.
    """

    rank: int
    role: str
    group: int | None
    host: str
    pid: int | None
    busy: float | None
    restarts: int = 0
    state: str = "running"

    @property
    def name(self) -> str:
        """Return its name in logs and metrics: role and rank."""
        return f"{self.role}-{self.rank}"


@dataclass(frozen=True)
class StopProgress:
    """How far a run is towards one of its stop rules.

    Attributes:
        rule: "mean_return", "win_rate", "env_steps" or "wall_s".
        value: where it is now; None while unknown (no episode has ended yet).
        target: where the run stops.
        eta_s: seconds until then at the present pace; None if unknown or not approaching.
    """

    rule: str
    value: float | None
    target: float
    eta_s: float | None = None


@dataclass(frozen=True)
class ReplayFill:
    """How full a replay is.

    Attributes:
        size: env steps in it.
        capacity: env steps that it can hold.
        nbytes: memory that it takes, in bytes.
    """

    size: int
    capacity: int
    nbytes: int


@dataclass(frozen=True)
class Averaging:
    """How the root averaged the parameters of several groups in this session.

    Attributes:
        rounds: averages that it published.
        missed: of each group: how many of them it came too late for.
        lost: groups that ended before the job did.
    """

    rounds: int
    missed: tuple[int, ...]
    lost: tuple[int, ...] = ()

    def __str__(self) -> str:
        """As it is shown: ``12 rounds; group 1 missed 3; group 2 is lost``."""
        said = [f"{self.rounds} round{'' if self.rounds == 1 else 's'}"]
        late = (f"group {group} missed {rounds}" for group, rounds in enumerate(self.missed) if rounds)
        gone = (f"group {group} is lost" for group in self.lost)
        return "; ".join([*said, *late, *gone])


@dataclass(frozen=True)
class GroupStanding:
    """How far one of several groups is; counts are over all sessions.

    Attributes:
        group: its number.
        env_steps: environment steps that its buffer received.
        updates: gradient updates.
        version: newest version of its policy.
        mean_100: mean return of its own last 100 episodes; None before any has ended.
        best_mean_100: highest of them over 100 episodes.
        consumed: sample uses in updates.
    """

    group: int
    env_steps: int
    updates: int
    version: int
    mean_100: float | None
    best_mean_100: float | None
    consumed: int


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment. In a resumed run, counts and ``train_s`` go on from where it was interrupted.

    Of several groups, counts are sums, ``version``, ``train_s`` and ``best_mean_100`` the largest, and
    ``mean_100``, ``win_rate`` and ``losses`` means over groups; means of ``lag``, ``age`` and ``uses`` are
    weighted, their percentiles and maxima those of the group where they are largest.

    Attributes:
        elapsed_s: seconds since the command was started.
        train_s: seconds since the first environment step (0 before it), without interruptions.
        env_steps: environment steps of experience that learners have received.
        produced: environment steps made by the actors.
        consumed: sample uses in updates.
        updates: gradient updates.
        version: newest policy version.
        produced_per_s: environment steps made per second over the last interval.
        received_per_s: environment steps received per second over the last interval.
        consumed_per_s: sample uses per second over the last interval.
        replay_ratio_target: sample uses for each environment step that the job holds (``rho``).
        replay_ratio_actual: what it held so far (with a replay, since the warm-up); None before the first
            update.
        lag: policy lag of the samples used; None before the first update.
        episodes: episodes ended so far.
        episodes_in_mean: how many of them are behind ``mean_100`` (at most 100).
        mean_100: mean return of the last 100 episodes; None before any has ended.
        best_mean_100: highest ``mean_100`` so far over 100 episodes; None before so many have ended.
        losses: means of the learner's losses and diagnostics, by name.
        roles: every role of the job.
        stop: progress towards each stop rule.
        age: env steps received between a sample and its use; None without a replay or before the first use.
        uses: how often samples were used, of all there were; None likewise.
        replay: how full the replay is; None without one.
        staleness_p: P = B_s / N_s, the batch size's share of the replay's capacity (Equation 2); None
            without a replay.
        stale_priorities: priorities that came after their samples had made room for others.
        bottleneck: what held the job back in the last seconds; None while too little is known.
        averaging: of the groups' parameters; None with one group.
        by_group: how far each group is; empty with one group.
        extra: what user roles report, by name and rank.
        frames_per_step: frames of the game that an environment step takes; None until an actor has said it.
        win_rate: share of the last 100 episodes that were won; None before any has ended, or where nothing
            is won.
        steps_given_up: env steps of sequences whose beginning had left the replay before they ended; None
            where no sequences are learnt from.
        evaluating: how far the evaluation is; None before it.
    """

    elapsed_s: float
    train_s: float
    env_steps: int
    produced: int
    consumed: int
    updates: int
    version: int
    produced_per_s: float
    received_per_s: float
    consumed_per_s: float
    replay_ratio_target: float
    replay_ratio_actual: float | None
    lag: Spread | None
    episodes: int
    episodes_in_mean: int
    mean_100: float | None
    best_mean_100: float | None
    losses: Mapping[str, float] = field(default_factory=dict)
    roles: tuple[RoleStatus, ...] = ()
    stop: tuple[StopProgress, ...] = ()
    age: Spread | None = None
    uses: Spread | None = None
    replay: ReplayFill | None = None
    staleness_p: float | None = None
    stale_priorities: int = 0
    bottleneck: Bottleneck | None = None
    averaging: Averaging | None = None
    by_group: tuple[GroupStanding, ...] = ()
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    frames_per_step: int | None = None
    win_rate: float | None = None
    steps_given_up: int | None = None
    evaluating: Evaluating | None = None

    @property
    def frames(self) -> int | None:
        """Return the frames of the game that the environment steps took; None until that is known."""
        return None if self.frames_per_step is None else self.env_steps * self.frames_per_step

    @property
    def frames_per_s(self) -> float | None:
        """Return the frames made per second over the last interval; None likewise."""
        return None if self.frames_per_step is None else self.produced_per_s * self.frames_per_step

    @property
    def next_stop(self) -> StopProgress | None:
        """Return the stop rule that will be met first at the present pace; None if none is in sight."""
        in_sight = [rule for rule in self.stop if rule.eta_s is not None]
        return min(in_sight, key=lambda rule: rule.eta_s or 0.0, default=None)

    @property
    def eta_s(self) -> float | None:
        """Return the seconds until the first stop rule is met at the present pace; None if unknown."""
        rule = self.next_stop
        return None if rule is None else rule.eta_s

    def metrics(self) -> dict[str, Any]:
        """Return one row of ``metrics.jsonl``: everything but what seldom changes, fit for JSON."""
        row: dict[str, Any] = {
            name: value
            for name, value in vars(self).items()
            if name not in {*_TABLES, "losses", "roles", "stop", "by_group"}
            and (value is not None or name not in _ONLY_IF_KNOWN)
        }
        for name in _TABLES:
            table = getattr(self, name)
            row[name] = None if table is None else asdict(table)
        row["frames"], row["frames_per_s"] = self.frames, self.frames_per_s
        row["by_group"] = [asdict(group) for group in self.by_group]
        row["losses"] = dict(self.losses)
        row["busy"] = {role.name: role.busy for role in self.roles}
        row["restarts"] = sum(role.restarts for role in self.roles)
        row["stop"] = {rule.rule: rule.target for rule in self.stop}
        row["reached"] = {rule.rule: rule.value for rule in self.stop}
        row["reached_in_s"] = {rule.rule: rule.eta_s for rule in self.stop}
        row["eta_s"] = self.eta_s
        return {key: finite(value) for key, value in row.items()}

    def standing(self) -> list[dict[str, Any]]:
        """Return what of the roles seldom changes: all but how busy they are, fit for JSON."""
        return [{name: value for name, value in vars(role).items() if name != "busy"} for role in self.roles]


@dataclass(frozen=True)
class ReplayRatio:
    """Sample uses for each environment step: as the job was to hold it, and as it did.

    With a replay, the actual ratio is of the environment steps after the warm-up.
    """

    target: float
    actual: float | None


@dataclass(frozen=True)
class Returns:
    """Undiscounted returns of the training episodes; None while there are not enough of them.

    Attributes:
        episodes: how many ended.
        mean_100: mean return of the last 100.
        best_mean_100: highest of these means.
        win_rate: share of the last 100 that were won; None where nothing is won.
        episodes_in_mean: how many are behind ``mean_100`` and ``win_rate``: of each group at most 100.
    """

    episodes: int
    mean_100: float | None
    best_mean_100: float | None
    win_rate: float | None = None
    episodes_in_mean: int = 0


@dataclass(frozen=True)
class RoleSummary:
    """One role over the whole run: where it ran, how often it was restarted, how busy it was (0 to 1)."""

    rank: int
    role: str
    group: int | None
    host: str
    cores: tuple[int, ...]
    restarts: int
    busy: float | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What ``summary.json`` holds. Rates are means over ``train_s``, in samples per second.

    Attributes:
        status: "finished" by a stop rule, "stopped" by the user, "failed".
        reason: what ended the run, in words.
        env_steps: environment steps of experience that learners have received, over all sessions.
        overshoot: how many of them came beyond ``experiment.stop.env_steps``; None without that rule.
        produced: environment steps made by the actors; each of them is one of the next four.
        received: by the buffers.
        in_flight: pushed and not received when the run stopped, or not pushed yet.
        lost: with a process that died.
        dropped: on purpose, by a rule that says so.
        staleness: policy lag of the samples used, in versions.
        time_to: return threshold -> seconds from the first environment step until ``mean_100`` reached it.
        rejected_frames: messages refused because they were no valid frame of this job.
        last_report_only: ranks on hosts that were lost: of what they made only the last report is counted.
        sample_age: env steps received between a sample and its use; None without a replay.
        uses: how often samples were used, of all there were; None without a replay.
        replay: how full the replay was; None without one.
        staleness_p: P = B_s / N_s (Equation 2); None without a replay.
        stale_priorities: priorities that came after their samples had made room for others.
        bottleneck: what held the job back over the whole session; None if it was too short to tell.
        averaging: of the groups' parameters; None with one group.
        by_group: how far each group came; empty with one group.
        extra: what user roles reported last, by name and rank.
        frames: frames of the game that ``env_steps`` took; None if no actor has said how many a step takes.
        frames_per_s: frames made per second; None likewise.
        steps_given_up: env steps of sequences whose beginning had left the replay before they ended; None
            where no sequences were learnt from.
    """

    experiment: str
    status: Status
    reason: str
    wall_s: float
    train_s: float
    env_steps: int
    updates: int
    transport: str
    mode: str
    groups: int
    produced: int
    received: int
    consumed: int
    in_flight: int
    lost: int
    dropped: int
    produced_per_s: float
    received_per_s: float
    consumed_per_s: float
    replay_ratio: ReplayRatio
    staleness: Spread | None
    returns: Returns
    time_to: Mapping[float, float | None]
    evaluation: Evaluation | None
    rejected_frames: int
    roles: tuple[RoleSummary, ...]
    last_report_only: tuple[int, ...] = ()
    sample_age: Spread | None = None
    uses: Spread | None = None
    replay: ReplayFill | None = None
    staleness_p: float | None = None
    stale_priorities: int = 0
    bottleneck: Bottleneck | None = None
    averaging: Averaging | None = None
    by_group: tuple[GroupStanding, ...] = ()
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    overshoot: int | None = None
    frames: int | None = None
    frames_per_s: float | None = None
    steps_given_up: int | None = None

    @property
    def unaccounted(self) -> int:
        """Return the samples that are in none of the accounts; anything but 0 is a defect of the run."""
        return self.produced - (self.received + self.in_flight + self.lost + self.dropped)

    def document(self) -> dict[str, Any]:
        """Return the keys and values of ``summary.json``; what is not finite becomes None."""
        document = {"schema": SUMMARY_SCHEMA, **asdict(self)}
        document["time_to"] = {exact(threshold): seconds for threshold, seconds in self.time_to.items()}
        for key in ("staleness", "sample_age", "uses"):
            if document[key] is None:
                document[key] = dict.fromkeys(("mean", "p50", "p95", "max"))
        for table, key in (("returns", "win_rate"), ("evaluation", "win_rate"), ("evaluation", "agents")):
            if document[table] is not None and document[table][key] is None:
                del document[table][key]  # What an environment does not know of is not mentioned.
        if self.steps_given_up is None:
            del document["steps_given_up"]
        return {key: finite(value) for key, value in document.items()}


WINDOW_S: Final = 30.0
"""How far back the pace is looked at: past the noise of single seconds, but not the whole run."""


class StopForecast:
    """Owns the recent history of what the stop rules look at and extends it in a straight line.

    Args:
        targets: stop rule -> value at which the run stops.
    """

    def __init__(self, targets: Mapping[str, float]) -> None:
        self._targets = dict(targets)
        self._history: deque[tuple[float, dict[str, float | None]]] = deque()

    def update(self, train_s: float, values: Mapping[str, float | None]) -> tuple[StopProgress, ...]:
        """Learn where the run is now.

        Args:
            train_s: seconds since the first environment step of this session, 0 before it: what came before
                says nothing of the pace.
            values: stop rule -> its present value, None while there is none.

        Returns:
            The progress towards each rule, in the order of the targets.
        """
        if not train_s:
            self._history.clear()
        self._history.append((train_s, dict(values)))
        while len(self._history) > 2 and self._history[1][0] <= train_s - WINDOW_S:
            self._history.popleft()
        return tuple(
            StopProgress(rule, values[rule], target, self._eta_s(rule, target))
            for rule, target in self._targets.items()
        )

    def _eta_s(self, rule: str, target: float) -> float | None:
        known = [(at_s, past[rule]) for at_s, past in self._history]
        points = [(at_s, value) for at_s, value in known if value is not None]
        if not points:
            return None
        (first_s, first), (last_s, last) = points[0], points[-1]
        if last >= target:
            return 0.0
        if last <= first or last_s <= first_s:
            return None
        return (target - last) * (last_s - first_s) / (last - first)
