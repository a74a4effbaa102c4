"""Models of a valid config: frozen, one for each section.

This module defines each key's type, default and meaning, and the other keys that it needs to have an effect,
once; the roles get a section as it is. Settings whose keys depend on a ``type`` (agent, model, training) are
``Component``s; ``tianji_algos`` defines their models, which import no torch. ``checks`` refuses settings that
do not fit one another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Protocol, Self, runtime_checkable

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from tianji_algos.models.settings import ImageLayout
from tianji_algos.registry import Kind
from tianji_cli.config.edges import BATCHES, FRAGMENTS
from tianji_cli.errors import UsageError
from tianji_cli.limits import core_list
from tianji_cli.quantities import count, duration, number, several, share
from tianji_plugins import Plugins


def at_most(most: int, because: str) -> AfterValidator:
    """Make a validator that refuses numbers above ``most``; ``because`` ends its message."""

    def check(number: int) -> int:
        if number > most:
            raise ValueError(f"{number} is more than {most:,}: {because}")
        return number

    return AfterValidator(check)


_64_BITS: Final = at_most(2**63 - 1, "whole numbers have 64 bits here, as TOML's have")
Count = Annotated[int, Field(ge=1), _64_BITS]
Natural = Annotated[int, Field(ge=0), _64_BITS]

GREATEST_SEED: Final = 2**32 - 1
"""Greatest seed of a run."""

MAX_PROCESSES: Final = 32_768
"""Maximum processes of a job: the root keeps a connection to each."""

MAX_ROLES: Final = 64
"""Maximum user roles: each is a process in every group, and may get a copy of every fragment."""

Processes = Annotated[Count, at_most(MAX_PROCESSES, "each is a process that the root is connected to")]
Groups = Annotated[Count, at_most(1024, "the root averages the parameters of all of them, one by one")]
Learners = Annotated[Count, at_most(1024, "each keeps a connection to every other one of its group")]
MOST_HOSTS: Final = 4096
HostCount = Annotated[Count, at_most(MOST_HOSTS, "the root is connected to each")]
Environments = Annotated[Count, at_most(1_000_000, "each actor builds all of them, and steps them in turn")]
MOST_CORES: Final = 4096
Cores = Annotated[Natural, at_most(MOST_CORES, "each is a thread, and no host has so many cores")]


def _check_is_a_device(device: str) -> str:
    if re.fullmatch(r"cpu|mps|cuda(:\d+)?", device) is None:
        raise ValueError(f'{device!r} is no device of torch; "cpu", "cuda", "cuda:1" or "mps" is')
    return device


Device = Annotated[str, AfterValidator(_check_is_a_device)]
"""Device of a network, as torch writes it; the plan assigns GPUs in turn to ``cuda`` without a number."""


@dataclass(frozen=True)
class OfReplay:
    """Marks a key of the buffer that has an effect only with a replay.

    Attributes:
        remedy: what to do where the learner trains on rollouts.
        prioritised: it has an effect only with a sampler that has priorities.
    """

    remedy: str
    prioritised: bool = False


_OF_PRIORITIES: Final = OfReplay("rollouts have no priorities; leave it out", prioritised=True)


class Section(BaseModel):
    """A table of the config: frozen; refuses unknown keys, and converts no value to another type."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
        defer_build=True,
    )


@dataclass(frozen=True)
class StopRule:
    """Marks a key of ``Stop``, and describes a run's progress towards its target.

    Attributes:
        written: the target, or a value on the way to it, on the screen.
        reached: what ended a run; a format of its ``target``, ``value`` and the value as ``written``.
        saved: likewise, where a saved run is; empty for what begins anew with each session.
        is_budget: it ends a run however good it is; other rules are goals.
        in_chart: its target is a return, and is drawn in the chart of returns.
    """

    written: Callable[[float], str]
    reached: str
    saved: str = ""
    is_budget: bool = False
    in_chart: bool = False


class Stop(Section):
    """Rules that end a run: the first that holds ends it. Reports show each value under its rule's name.

    Attributes:
        mean_return: mean return of the last 100 training episodes.
        env_steps: steps of experience that the learners have received.
        wall_s: seconds since the first environment step.
        win_rate: share of the last 100 training episodes that were won.
        evaluation: mean return of one evaluation while training, all of whose episodes have ended.
    """

    mean_return: Annotated[
        float | None,
        StopRule(
            number,
            "mean return of the last 100 episodes is {value:.6g}",
            "the best mean return of 100 episodes was {written}",
            in_chart=True,
        ),
    ] = None
    env_steps: Annotated[
        Count | None,
        StopRule(count, "{target} environment steps", "{value} environment steps", is_budget=True),
    ] = None
    wall_s: Annotated[
        Annotated[float, Field(gt=0)] | None,
        StopRule(duration, "{target:g} s of training", is_budget=True),
    ] = None
    win_rate: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        StopRule(share, "{written} of the last 100 episodes were won", "{written} of 100 episodes were won"),
    ] = None
    evaluation: Annotated[
        float | None,
        StopRule(
            number,
            "mean return of an evaluation is {value:.6g}",
            "the best evaluation's mean was {written}",
            in_chart=True,
        ),
    ] = None

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError(
                "the run would never end; set env_steps, wall_s, mean_return, win_rate or evaluation"
            )
        return self

    @property
    def targets(self) -> dict[str, float]:
        """Targets of the rules that are set, by rule name."""
        return {rule: float(target) for rule, target in self if target is not None}

    def reached(self, values: Mapping[str, float | None], *, saved: bool = False) -> dict[str, str]:
        """Describe the rules that hold, by rule name.

        Args:
            values: of the run, by rule name; None if a value is unknown.
            saved: the values are the best that the run has saved.
        """
        held = {}
        for rule, value in values.items():
            target: float | None = getattr(self, rule)
            if target is not None and value is not None and value >= target:
                stop_rule = STOP_RULES[rule]
                text = stop_rule.saved if saved else stop_rule.reached
                held[rule] = text.format(target=target, value=value, written=stop_rule.written(value))
        return held


STOP_RULES: Final = {
    rule: mark
    for rule, field in Stop.model_fields.items()
    for mark in field.metadata
    if isinstance(mark, StopRule)
}


def _none_if_off(value: object) -> object:
    return None if value is False else value


class PeriodicEvaluation(Section):
    """Evaluations during training, in a process of their own; table ``[experiment.evaluation]``.

    Attributes:
        every_env_steps: env steps of the job from the beginning of one to that of the next, at least.
        every_s: seconds likewise. Where both are given, the first that is over counts.
        episodes: of each.
        max_s: seconds that one may take; episodes that have not ended by then are left out.
        deterministic: whether policies act greedily; otherwise as in training.
        video: episodes that are filmed after each; 0 for none.
        keep_videos: how many films stay, the newest ones.
        overlay: whether step, reward, return and episode stand below the pictures of a film.
    """

    every_env_steps: Count | None = None
    every_s: Annotated[float | None, Field(gt=0)] = None
    episodes: Count = 20
    max_s: Annotated[float, Field(gt=0)] = 120.0
    deterministic: bool = True
    video: Natural = 0
    keep_videos: Count = 20
    overlay: bool = True

    @model_validator(mode="after")
    def _comes_again(self) -> Self:
        if self.every_env_steps is None and self.every_s is None:
            raise ValueError("nothing says how often; set every_env_steps or every_s")
        return self


class Init(Section):
    """Settings of a run that begins with ``init_from``; table ``[experiment.init]``.

    Attributes:
        statistics: whether running statistics are taken, those of ``normalize_observations`` and its like.
        optimizer: whether what the optimizer remembers is taken, which fits the same network alone.
        freeze: patterns of names of parameters that are not trained, such as ``"encoder.*"``.
    """

    statistics: bool = True
    optimizer: bool = False
    freeze: Annotated[tuple[str, ...], Field(strict=False)] = ()


class Experiment(Section):
    """Name, seed, stop rules and outputs of a run.

    Attributes:
        name: of the run's directory; the config file's stem by default.
        seed: every random stream of the run is derived from it.
        stop: when the run is over.
        init_from: what a new run begins with: another run, ``RUN:CHECKPOINT``, or a file of safetensors; of a
            run its best policy by default.
        init: what is taken of it.
        thresholds: mean returns whose first time is written to the summary's ``time_to``.
        checkpoint_every_s: seconds between checkpoints.
        keep_checkpoints: how many stay under their step number.
        track: experiment trackers that the run is logged to, "tensorboard" among them.
        evaluation: evaluations while training; None, or false in TOML: there are none.
        eval_episodes: episodes of the greedy evaluation at the end; 0 for none. By default as many of 100
            as begin in a tenth of the training time, or in a second; all with ``mode = "sync"``.
        eval_checkpoint: which policy is evaluated: the "best" by mean training return, or the "last", where
            such returns say little: opponents whose returns are added up, or actions that are all random.
        eval_max_s: seconds that the evaluation may take; episodes that have not ended by then are left out.
        eval_max_steps: env steps that it may take, of all its episodes together.
        plots: whether curves are drawn into ``plots/`` at the end, which takes a second or two.
        extensions: directories that ``module:attribute`` types are imported from, beside those of
            Python's own path.
        files: data files of the user's, or directories of them, below ``extensions``: hosts that join get
            them at the same places beside the modules.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    seed: Annotated[Natural, Field(le=GREATEST_SEED)] = 1
    stop: Stop
    init_from: Annotated[str | None, Field(min_length=1)] = None
    init: Init | None = None
    thresholds: Annotated[tuple[float, ...], Field(strict=False)] = ()
    checkpoint_every_s: Annotated[float, Field(gt=0)] = 60.0
    keep_checkpoints: Natural = 3
    track: Annotated[tuple[str, ...], Field(strict=False)] = ("tensorboard",)
    evaluation: Annotated[PeriodicEvaluation | None, BeforeValidator(_none_if_off)] = None
    eval_episodes: Natural | None = None
    eval_checkpoint: Literal["best", "last"] = "best"
    eval_max_s: Annotated[float, Field(gt=0)] = 120.0
    eval_max_steps: Count = 10_000_000
    plots: bool = True
    extensions: Annotated[tuple[str, ...], Field(strict=False)] = ()
    files: Annotated[tuple[str, ...], Field(strict=False)] = ()

    @property
    def last_episodes(self) -> int:
        """Most episodes of the evaluation at the end."""
        return 100 if self.eval_episodes is None else self.eval_episodes

    @model_validator(mode="after")
    def _evaluates_what_it_stops_by(self) -> Self:
        if self.stop.evaluation is not None and self.evaluation is None:
            raise ValueError(
                "stop.evaluation: nothing is evaluated while training; set [experiment.evaluation]"
            )
        return self

    @model_validator(mode="after")
    def _takes_from_something(self) -> Self:
        if self.init is not None and self.init_from is None:
            raise ValueError("init: there is nothing to begin with; set init_from, or train with --init-from")
        return self

    @field_validator("name")
    @classmethod
    def _is_one_directory(cls, name: str) -> str:
        if name in {".", ".."} or "/" in name or not name.isprintable() or name != name.strip():
            raise ValueError(
                f"{name!r} cannot name the run's directory; leave out '/' and blanks at the ends"
            )
        return name


MAX_METRICS: Final = 32
"""Maximum metrics of an environment: every fragment and report has room for all of them."""


class Wrapper(Section):
    """One entry of ``environment.wrappers``; a single name in TOML stands for one without keywords.

    Attributes:
        type: of ``gymnasium.wrappers``, an entry point's name or ``"my_module:MyWrapper"``.
    """

    model_config = ConfigDict(extra="allow")

    type: str

    @model_validator(mode="before")
    @classmethod
    def _accept_one_name(cls, value: object) -> object:
        if isinstance(value, str):
            return {"type": value}
        if not isinstance(value, dict):
            raise ValueError(f'{value!r} is no wrapper; a name is, or {{ type = "ClipReward", ... }}')
        return value

    @property
    def keywords(self) -> Mapping[str, Any]:
        """Keyword arguments of the wrapper: all keys of the entry except ``type``."""
        return self.model_extra or {}


class Environment(Section):
    """The environment of a job, and how actors run its copies.

    Attributes:
        type: ``"gym"``, an entry point's name or ``"my_module:MyEnv"``.
        id: which of the type's environments; None where the type is one environment.
        num_envs: vectorised copies in each actor.
        max_episode_steps: truncates episodes; None for what the environment says.
        options: keyword arguments of the environment's constructor.
        wrappers: put around each gymnasium environment, the first innermost.
        trust_wrappers: train with wrappers that keep running statistics, which evaluations do not have.
        metrics: keys of gymnasium's info, whose values at the ends of episodes are reported.
        image_layout: where images have their channels, if "auto" cannot tell; "none" takes images for numbers
            in a row, and "legacy" is the rule of runs that are older than this key.
        step_limit_s: seconds after which an actor that says nothing has hung, or ten times as long as its
            longest step took, if that is more: it is ended and started again.
        on_error: "restart" starts an actor again that an exception of its environment has ended, or an exit;
            by "fail" it ends the run. One that a signal has killed is started again in any case.
        start_limit_s: seconds that a process may take to build environments and model. What hangs then is
            named, and ends the run.
        step_ms: least milliseconds that each copy takes for a step of an actor; copies take turns. It makes
            any environment a slow one, to measure with. Evaluations do without.
        step_jitter: share by which ``step_ms`` varies, evenly to both sides.
        step_work: "sleep" waits for the rest of the time, as for a robot, and leaves the core to others;
            "busy" computes, as a simulator does.
    """

    type: str
    id: str | None = None
    num_envs: Environments = 32
    max_episode_steps: Count | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    wrappers: tuple[Wrapper, ...] = ()
    trust_wrappers: bool = False
    metrics: tuple[str, ...] = ()
    image_layout: ImageLayout = "auto"
    step_limit_s: Annotated[float, Field(gt=0)] = 60.0
    on_error: Literal["fail", "restart"] = "fail"
    start_limit_s: Annotated[float, Field(gt=0)] = 300.0
    step_ms: Annotated[float, Field(ge=0)] = 0.0
    step_jitter: Annotated[float, Field(ge=0, le=1)] = 0.0
    step_work: Literal["sleep", "busy"] = "sleep"

    @model_validator(mode="after")
    def _turns_end_in_time(self) -> Self:
        if not self.step_ms and self.step_jitter:
            raise ValueError("step_jitter: there is nothing that could vary; set step_ms")
        turn_s = self.num_envs * self.step_ms * (1 + self.step_jitter) / 1e3
        if turn_s > self.step_limit_s:
            raise ValueError(
                f"step_ms: {several(self.num_envs, 'environment')} in turn take up to {duration(turn_s)}, "
                f"and an actor that is silent for {duration(self.step_limit_s)} (step_limit_s) hangs"
            )
        return self

    @field_validator("metrics")
    @classmethod
    def _check_metrics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice!r} is there twice; once is enough")
        if not all(name.strip() for name in names):
            raise ValueError("a name is empty; a key of gymnasium's info is wanted")
        if len(names) > MAX_METRICS:
            raise ValueError(f"{len(names)} are more than {MAX_METRICS}: each is in every report")
        return names


KINDS: Final[Mapping[str, Kind]] = {"agent": "agent", "model": "model", "training": "embryo"}
"""Sections whose keys depend on their ``type``, each with the registry's name for its kind."""


class Component(Section):
    """An agent, a model, an update rule or a user role, with its settings.

    Attributes:
        type: its name in the registry.
        settings: what the section says beside ``type``, as the type's own settings model.
    """

    type: str
    settings: SerializeAsAny[BaseModel]

    @model_serializer
    def _as_one_table(self) -> dict[str, Any]:
        own = {key: value for key, value in self if key != "settings"}
        return own | self.settings.model_dump(mode="json", by_alias=True)


class Transport(Section):
    """Engines of the edges inside a host and between hosts; a single name in TOML stands for both.

    Attributes:
        local: between processes of one host.
        remote: between hosts.
    """

    local: str
    remote: str

    @model_validator(mode="before")
    @classmethod
    def _from_one_name(cls, value: object) -> object:
        if isinstance(value, str):
            return {"local": value, "remote": value}
        if isinstance(value, dict):
            return value
        raise ValueError('neither a name nor a table; write "shm", or { local = "shm", remote = "zmq" }')

    @model_serializer
    def _as_written(self) -> str | dict[str, str]:
        return self.local if self.local == self.remote else {"local": self.local, "remote": self.remote}


class Span(Section):
    """A number, or the least and the greatest that it may be; a single number in TOML stands for both."""

    min: Count
    max: Count

    @model_validator(mode="before")
    @classmethod
    def _from_one_number(cls, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            is_whole = math.isfinite(value) and value == int(value)
            least = min(max(int(value), 1), MAX_PROCESSES) if is_whole else 1  # One error for one number.
            return {"min": least, "max": int(value) if is_whole else value}
        if isinstance(value, dict):
            return {"min": 1} | value
        raise ValueError("neither a number nor a table; write 2, or { min = 1, max = 8 }")

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is more than max ({self.max})")
        return self

    @property
    def varies(self) -> bool:
        """Whether there is more than one number that it may be."""
        return self.min < self.max

    @model_serializer
    def _as_written(self) -> int | dict[str, int]:
        return dict(self) if self.varies else self.max


class Hosts(Span):
    """Numbers of hosts that take part; a single number in TOML stands for both.

    Attributes:
        min: training begins when so many are there.
        max: so many may be there: those that come later, or again, get actors while it trains.
    """

    max: HostCount


class Actors(Span):
    """Numbers of actors that may work; a single number in TOML is the only one.

    Attributes:
        min: least number of actors that work.
        max: number of actors that there are; the others wait, and hold no core.
        first: number of actors that work when training begins. Where a config does not say it: the usual
            number, or what is nearest between the two.
    """

    max: Processes
    first: Count | None = None

    @model_validator(mode="after")
    def _begins_within(self) -> Self:
        if self.first is not None and not self.min <= self.first <= self.max:
            raise ValueError(f"first ({self.first}) is not between {self.min} and {self.max}: set it, too")
        return self


class Placed(Section):
    """A role whose processes may be placed by hand.

    Attributes:
        hosts: names of the hosts that they run on, in which ``*`` and ``?`` stand for others. The first host
            is host-0 as well, the next to join host-1.
        cores: cores, and threads, of each; or those that they share out on each host, such as "2-9,12".
    """

    hosts: Annotated[tuple[str, ...], Field(strict=False)] = ()
    cores: Cores = 1

    _core_list: tuple[int, ...] = PrivateAttr(())

    @property
    def core_list(self) -> tuple[int, ...]:
        """The cores that are named; empty if ``cores`` is a number."""
        return self._core_list

    @model_validator(mode="wrap")
    @classmethod
    def _from_core_list(cls, value: object, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Read a list of cores; ``cores`` is then what each process has of it on a host that has all.

        That of an actor is known with their number, which the loader chooses where a config does not say it.
        """
        if not isinstance(value, dict) or not isinstance(value.get("cores"), str):
            return read(value)
        try:
            named = core_list(value["cores"])
        except ValueError as refused:
            type_ = PydanticCustomError("value_error", "{error}", {"error": refused})
            wrong = InitErrorDetails(type=type_, loc=("cores",), input=value["cores"])
            raise ValidationError.from_exception_data(cls.__name__, [wrong]) from refused
        made = read(value | {"cores": 1})
        made._core_list = named
        num = getattr(made, "num", 1)
        return made.with_cores_each(num if isinstance(num, int) else 1)

    def with_cores_each(self, processes: int) -> Self:
        """Return the section with ``cores`` of each of so many processes, if it names a list."""
        if not self._core_list:
            return self
        return self.model_copy(update={"cores": max(1, len(self._core_list) // processes)})

    @model_serializer(mode="wrap")
    def _as_written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return self._placed_as_written(write(self))

    def _placed_as_written(self, values: dict[str, Any]) -> dict[str, Any]:
        if self._core_list:
            values["cores"] = ",".join(map(str, self._core_list))
        return {key: value for key, value in values.items() if key != "hosts" or value}


class Learner(Placed):
    """The processes that update the parameters.

    Attributes:
        num: L, learners of a group: they divide each batch, average their gradients (all-reduce) and update
            alike. They are on one host, unless ``hosts`` names several, which then share them out.
    """

    num: Learners = 1
    cores: Annotated[Cores, Field(ge=1)] = 1


ROLES: Final = Plugins("role", "tianji.roles", UsageError, UsageError)


class UserRoleSection(Component, Placed):
    """A role that the user has written.

    Attributes:
        num: processes of a group that carry it, or, with ``per = "job"``, of the job.
        per: "job": one role for all groups, beside the first; its channels and slots are those of all.
        receives: built-in channels of which each gets a copy of every message.
        reads: built-in slots that it may look at.
        cores: cores, and threads, of each; 0: it has none of its own and shares the actors'.
    """

    num: Processes = 1
    per: Literal["group", "job"] = "group"
    receives: Annotated[tuple[Literal["fragments"], ...], Field(strict=False)] = ()
    reads: Annotated[tuple[Literal["policy"], ...], Field(strict=False)] = ()
    cores: Cores = 0

    @property
    def cores_of_all(self) -> int:
        """Cores that the processes of a group ask for."""
        return self.num * self.cores

    @property
    def holds(self) -> int:
        """Fragments that a process may hold on their path, beside the newest, as its class says."""
        return int(getattr(ROLES.load(self.type), "holds", 0))

    @model_serializer
    def _as_one_table(self) -> dict[str, Any]:
        return self._placed_as_written(super()._as_one_table())


OWN_KEYS: Final = tuple(key for key in UserRoleSection.model_fields if key != "settings")
"""Keys of every ``[roles.NAME]``."""

Route = Literal["all", "share", "credit"]
Step = Annotated[tuple[str, ...], Field(min_length=1)]


class ChannelSection(Section):
    """A stream of records between roles of a group; table ``[graph.channels.NAME]``.

    ``fragments`` may go from actor to buffer by way of roles of one's own, and ``batches`` from buffer to
    learner; other channels connect these roles.

    Attributes:
        path: the roles that a record passes, in order; a step may name several.
        record: class of the records, ``module:Class``, whose ``fields`` says what is in one; fragments and
            batches have none.
        window: records that each sender may have unclaimed at a receiver.
        route: "all": each receiver gets a copy of every record; "share": each sender has one receiver;
            "credit": each record goes to the receiver that has fewest unclaimed.
    """

    path: Annotated[tuple[str | Step, ...], Field(strict=False, min_length=2)]
    record: str = ""
    window: Count = 2
    route: Route = "all"

    @property
    def steps(self) -> tuple[tuple[str, ...], ...]:
        """The roles of each step."""
        return tuple((step,) if isinstance(step, str) else step for step in self.path)


class SlotSection(Section):
    """A record of which only the newest counts; table ``[graph.slots.NAME]``.

    Attributes:
        writer: the role that publishes it; a group has one of it.
        readers: the roles that may look at it.
        record: class of the record, ``module:Class``, whose ``fields`` says what is in it.
    """

    writer: str
    readers: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    record: str


class Graph(Section):
    """Channels and slots between roles of one's own, beside the built-in ones; table ``[graph]``.

    Attributes:
        channels: channels by name.
        slots: slots by name.
    """

    channels: dict[str, ChannelSection] = Field(default_factory=dict)
    slots: dict[str, SlotSection] = Field(default_factory=dict)

    @property
    def path_of_fragments(self) -> tuple[str, ...]:
        """The roles that a fragment of an actor passes, from there to the buffer."""
        own = self.channels.get(FRAGMENTS)
        return ("actor", "buffer") if own is None else ("actor", *sum(own.steps[1:], ()))

    @property
    def path_of_batches(self) -> tuple[str, ...]:
        """The roles that a batch passes, from a buffer in a process of its own to the learner."""
        own = self.channels.get(BATCHES)
        return ("buffer", "learner") if own is None else sum(own.steps, ())

    @property
    def sources(self) -> tuple[str, ...]:
        """The roles that make fragments beside the actors."""
        own = self.channels.get(FRAGMENTS)
        return () if own is None else tuple(role for role in own.steps[0] if role != "actor")

    @property
    def records(self) -> Iterator[str]:
        """Classes of the records."""
        yield from (channel.record for channel in self.channels.values() if channel.record)
        yield from (slot.record for slot in self.slots.values())


class Actor(Placed):
    """The processes that step environments.

    Attributes:
        num: actors of a group. Where a config does not say it: as many as a rollout has fragments, but no
            more than there are cores, or, on more than four, than learners leave. One with a replay, in step,
            and where roles share a process. Two of them share a process where inference is apart. With a
            range, as many work as train fastest, which is measured and may change while the job trains.
        send_size: T, steps of each environment in a fragment.
        window: fragments that each actor may have sent before one is claimed.
        device: where policies act, the evaluator's too; several actors may share a GPU.
    """

    num: Actors = Actors(min=1, max=1)
    cores: Annotated[Cores, Field(ge=1)] = 1
    send_size: Count = 32
    window: Count = 2
    device: Device = "cpu"


HALVES: Final = 2
"""Actors of a process where inference is apart: one steps while the other's observations are away."""


class Inference(Placed):
    """The processes that run the policy's network for actors, which then only step environments (SEED RL).

    Attributes:
        num: of a group; each serves its share of the actors' processes.
        device: where the network acts; several may share a GPU. ``actor.device`` is the evaluator's alone.
        max_batch: most observations of one pass of the network; None for all that can come at once.
        max_wait_ms: longest that observations wait for others to fill a batch; 0 takes those that are there.
    """

    num: Processes = 1
    cores: Annotated[Cores, Field(ge=1)] = 1
    device: Device = "cpu"
    max_batch: Count | None = None
    max_wait_ms: Annotated[float, Field(ge=0, le=1000)] = 0.0


SAMPLERS: Final = Plugins(
    "sampler",
    "tianji.samplers",
    ValueError,
    ValueError,
    dict.fromkeys(("uniform", "prioritised", "fresh"), ""),
)
"""Samplers of a replay; a config does not import those that are built in, and knows their names alone."""

BATCHES_AHEAD: Final = 2
"""Batches that a buffer in a process of its own assembles before the learner asks for them."""

MOST_STEPS: Final = 127
"""Maximum steps of a transition: the replay keeps its length in seven bits."""
MOST_IN_SEQUENCE: Final = 65_535
"""Maximum steps of a sequence: the replay keeps its length in two bytes."""


class Table(Section):
    """Samples of one source of fragments; table ``[distribution.buffer.tables.ROLE]``.

    Attributes:
        capacity: env steps that it holds, rounded up to whole fragments; the oldest make room.
        share: share of each batch that is drawn from it.
    """

    capacity: Count = 100_000
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5


class Buffer(Placed):
    """Fragments that wait for the learner: a few rollouts on-policy, a replay memory off-policy.

    Attributes:
        num: K, buffers of a group, which share out its actors; more than one only with ``colocate = false``.
            Each keeps its part of a replay: capacities and warm-up are divided by K.
        colocate: takes turns with the learner in one process; else it has a process of its own, where a
            replay assembles batches ahead of the learner, and fragments of rollouts are sent on to it.
        rollouts: k, rollouts from whose fragments an on-policy learner draws each of its own: 1 for the
            newest experience alone; one in k samples is new otherwise (the paper's Lagk, section D.1).
        capacity: N_s, env steps that a group's replay holds, rounded up to whole fragments; the oldest make
            room.
        sampler: what a replay draws: "uniform"; "prioritised" in proportion to the last TD errors
            (Schaul et al., 2016); "fresh" what was never used first, then uniform; an entry point's name or
            ``"my_module:MySampler"``.
        priority_exponent: alpha of prioritised sampling; 0 is uniform.
        importance_exponent: beta of its importance weights; 1 corrects the bias in full. Each of several
            buffers weighs by its own priorities alone.
        importance_steps: env steps over which beta rises to 1; None keeps it.
        priority_updates: with "sync" a buffer in a process of its own draws the next batch only when the
            last one's priorities are there; with "async" it does not wait for them.
        memory: where a replay is: "ram", "mmap" (a file in the run directory), or "auto": in the file
            once memory does not hold it.
        save_with_checkpoint: write the replay with each checkpoint, so that a resumed run has it.
        tables: tables of a replay beside that of the actors, by the role whose fragments they hold.
    """

    num: Count = 1
    colocate: bool = True
    cores: Annotated[Cores, Field(ge=1)] = 1
    rollouts: Count = 1
    capacity: Annotated[Count, OfReplay("did you mean rollouts, the number that the buffer holds?")] = 100_000
    sampler: Annotated[
        str,
        OfReplay('rollouts are used whole; "uniform" would be right'),
    ] = "uniform"
    priority_exponent: Annotated[float, Field(ge=0, le=1), _OF_PRIORITIES] = 0.6
    importance_exponent: Annotated[float, Field(ge=0, le=1), _OF_PRIORITIES] = 0.4
    importance_steps: Annotated[Count | None, _OF_PRIORITIES] = None
    priority_updates: Annotated[Literal["async", "sync"], _OF_PRIORITIES] = "async"
    memory: Annotated[Literal["auto", "ram", "mmap"], OfReplay("rollouts stay in memory; leave it out")] = (
        "auto"
    )
    save_with_checkpoint: Annotated[bool, OfReplay("a rollout is used up at once; leave it out")] = False
    tables: Annotated[dict[str, Table], OfReplay("a rollout has actors' samples alone; leave it out")] = (
        Field(default={})
    )

    @property
    def has_priorities(self) -> bool:
        """Whether samples have priorities, which the learner's updates change."""
        if self.sampler in SAMPLERS.built_in:
            return self.sampler == "prioritised"
        return getattr(SAMPLERS.load(self.sampler), "has_priorities", False) is True

    @field_validator("sampler")
    @classmethod
    def _check_sampler(cls, name: str) -> str:
        if name not in SAMPLERS.built_in:
            SAMPLERS.load(name)
        return name


def rows_of(batch_size: int, tables: Mapping[str, Table]) -> tuple[int, ...]:
    """Return how many samples of a batch are actors', and then those of each table."""
    of_tables = tuple(round(table.share * batch_size) for table in tables.values())
    return batch_size - sum(of_tables), *of_tables


def section_key(role: str, roles: Mapping[str, UserRoleSection]) -> str:
    """Return the key of a role's section, built in or of the user's own."""
    return f"roles.{role}" if role in roles else f"distribution.{role}"


class Distribution(Section):
    """Processes of a job, and how data moves between them.

    Attributes:
        transport: engines of the edges.
        mode: in "sync" actors wait for each new version; in "async" no role waits for another.
        balance: "held" paces whichever side is ahead, so that consumption stays at the replay ratio times
            production (replay only); with "free" either side runs as fast as it can.
        balance_tolerance: env steps that one side may be ahead, at each buffer; None for what a fragment and
            a batch are worth together, twice the least with which one side may always go on.
        hosts: how many take part: the one where `tianji train` runs, and those that `tianji join` it; a
            number, or a range in which they may come and go.
        groups: learner sets with their own buffers and actors, whose parameters the root averages; with
            ``[population]`` its members.
        group_hosts: names of the hosts of each group, with ``*`` and ``?``; groups take turns over the names,
            or where a config does not say it, over the hosts.
        sync_interval: updates of a group between two averages, counted at the ends of its rounds.
        sync_wait_s: longest that the root keeps an average waiting for a group that is late.
        sync_optimizer: average the optimiser's moments, too.
        device: where learners compute; actors have their own.
        max_restarts_per_minute: actors that are killed or hang are restarted this often, then the run ends;
            of the minute counts only when steps are made.
        restart: a run whose learner, or anything else that it needs, was killed or lost with its host begins
            again by itself, from its last checkpoint; one in which something raised does not.
        pin_cores: tie each process to cores of its own, and actors beyond that to those that learners leave.
            Where a config does not say it: if there are enough for all processes to have their own. Else the
            scheduler deals all cores out.
        inference: processes that run the network for the actors; None, or false in TOML: each runs its own.
    """

    transport: Transport = Transport(local="shm", remote="shm")
    mode: Literal["async", "sync"] = "async"
    balance: Literal["held", "free"] = "held"
    balance_tolerance: Count | None = None
    hosts: Hosts = Hosts(min=1, max=1)
    groups: Groups = 1
    group_hosts: Annotated[tuple[str, ...], Field(strict=False)] = ()
    sync_interval: Count = 100
    sync_wait_s: Annotated[float, Field(gt=0)] = 1.0
    sync_optimizer: bool = False
    device: Device = "cpu"
    max_restarts_per_minute: Natural = 10
    restart: bool = False
    pin_cores: bool = True
    learner: Learner = Learner()
    actor: Actor = Actor()
    buffer: Buffer = Buffer()
    inference: Annotated[Inference | None, BeforeValidator(_none_if_off)] = None

    @property
    def one_process(self) -> bool:
        """Whether all roles of a group take turns in one process: they do with transport ``inproc``."""
        return self.transport.local == "inproc"

    @property
    def actors_per_process(self) -> int:
        """Actors that take turns in one process."""
        return 1 if self.inference is None else HALVES

    @property
    def actor_processes(self) -> int:
        """Processes of a group's actors."""
        return math.ceil(self.actor.num.max / self.actors_per_process)

    @property
    def actors_of_a_buffer(self) -> int:
        """Most actors that one of a group's buffers has: their processes are shared out."""
        processes = math.ceil(self.actor_processes / self.buffer.num)
        return min(self.actor.num.max, processes * self.actors_per_process)

    def keys_of_hosts(self, roles: Mapping[str, UserRoleSection]) -> list[str]:
        """Return the keys that name hosts."""
        placed = self.placed(roles).items()
        of_roles = [f"{section_key(role, roles)}.hosts" for role, section in placed if section.hosts]
        return [*(["distribution.group_hosts"] if self.group_hosts else []), *of_roles]

    def names_cores(self, roles: Mapping[str, UserRoleSection]) -> bool:
        """Whether any role's cores are named."""
        return any(section.core_list for section in self.placed(roles).values())

    def placed(self, roles: Mapping[str, UserRoleSection]) -> dict[str, Placed]:
        """Return the sections of all roles, by the names of the roles."""
        built_in: dict[str, Placed] = {"learner": self.learner, "buffer": self.buffer, "actor": self.actor}
        return built_in | ({} if self.inference is None else {"inference": self.inference}) | dict(roles)

    @property
    def cores_of_learners(self) -> int:
        """Cores of a group's learners, and of buffer and inference with processes of their own."""
        buffer_cores = 0 if self.buffer.colocate else self.buffer.num * self.buffer.cores
        inference_cores = 0 if self.inference is None else self.inference.num * self.inference.cores
        return self.learner.num * self.learner.cores + buffer_cores + inference_cores


class Range(Section):
    """Values that a key may have: from one number to another, or a list of choices.

    Attributes:
        low: least value.
        high: greatest value. With whole numbers at both ends, 3.0 among them, and a key that takes no others,
            values are whole.
        log: whether all orders of magnitude are as likely.
        choices: values in place of a range, of any kind.
    """

    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: Annotated[tuple[Any, ...] | None, Field(strict=False)] = None

    @model_validator(mode="after")
    def _is_a_range_or_choices(self) -> Self:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log:
                raise ValueError("choices: they have no range; leave out low, high and log")
            if not self.choices:
                raise ValueError("choices: there are none")
            if any(choice in self.choices[:place] for place, choice in enumerate(self.choices)):
                raise ValueError("choices: one is there twice")
            return self
        if self.low is None or self.high is None:
            raise ValueError(
                "a range has low and high; write { low = 1e-5, high = 1e-2 } or { choices = [...] }"
            )
        if self.low >= self.high:
            raise ValueError(f"low: {self.low:g} is not less than high, {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"low: {self.low:g} has no logarithm; with log = true it is above 0")
        return self

    @property
    def ends(self) -> tuple[Any, ...]:
        """The choices, or the least and the greatest value; the key has to accept each of them."""
        if self.choices is not None:
            return self.choices
        low, high = self._bounds
        return (int(low), int(high)) if self.is_whole else (low, high)

    @property
    def _bounds(self) -> tuple[float, float]:
        """The least and the greatest value of a range."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    @property
    def is_whole(self) -> bool:
        """Whether both ends are whole numbers."""
        return all(float(number or 0).is_integer() for number in (self.low, self.high))

    @property
    def inside(self) -> float:
        """A value inside the range that is no whole number; a key for whole numbers alone refuses it."""
        middle = sum(self._bounds) / 2
        return middle if not math.isclose(middle, round(middle)) else middle - 0.25


def by_dotted_key(leaf: type[Range]) -> BeforeValidator:
    """Make a validator that flattens the nested tables of TOML's dotted keys into ranges by dotted key.

    It passes on a value that is no table, which pydantic then refuses. A table called ``low`` may lie on the
    way to a range.
    """

    def is_leaf(table: Mapping[str, Any]) -> bool:
        return any(key in leaf.model_fields and not isinstance(table[key], dict) for key in table)

    def leaves(tree: Mapping[str, Any], at: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        for key, value in tree.items():
            if isinstance(value, dict) and value and not is_leaf(value):
                yield from leaves(value, (*at, key))
            else:
                yield ".".join((*at, key)), value

    return BeforeValidator(lambda tree: dict(leaves(tree, ())) if isinstance(tree, dict) else tree)


class Perturbed(Range):
    """A hyperparameter that has a value of its own in each member of a population.

    Attributes:
        factors: a member that takes up another's value multiplies it with one of these, within the range; of
            choices it takes one beside it.
        initial: values at the start, one for each member, in place of draws from the range.
    """

    factors: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(strict=False, min_length=1)] = (
        0.8,
        1.25,
    )
    initial: Annotated[tuple[Any, ...] | None, Field(strict=False)] = None

    @model_validator(mode="after")
    def _begins_within(self) -> Self:
        if self.choices is not None and self.factors != type(self).model_fields["factors"].default:
            raise ValueError("factors: choices are not multiplied; leave them out")
        wrong = next((value for value in self.initial or () if not self.includes(value)), None)
        if wrong is not None:
            raise ValueError(f"initial: {wrong!r} is not among the values that it may have")
        return self

    def includes(self, value: Any) -> bool:
        """Whether a value is one of the choices, or in the range."""
        if self.choices is not None:
            return value in self.choices
        low, high = self._bounds
        return isinstance(value, int | float) and low <= value <= high


class Population(Section):
    """Groups as members of a population (Jaderberg et al., 2017); table ``[population]``.

    Members train with hyperparameters of their own. At intervals the worst members take over the policies of
    the best, and go on from there with hyperparameters near those of the best.

    Attributes:
        interval: env steps of a member from one comparison to the next, at least.
        metric: what members are judged by: "mean_100", the mean return of the last 100 training episodes,
            at most those since it took over another; or "evaluation", the mean return of its last evaluation;
            None for "evaluation" where ``[experiment.evaluation]`` is on, and "mean_100" elsewhere.
        selection: with "truncation" the worst ``fraction`` of the members take over one of the best
            ``fraction`` each; with "tournament" each member is held against another, and takes it over if
            that is better.
        fraction: of the members, at least one; 0.25 is a quarter.
        resample: probability with which a hyperparameter is drawn anew from its range, instead of being near
            that of the other.
        perturb: hyperparameters that members differ in, by their keys, such as ``training.learning_rate``.
    """

    interval: Count
    metric: Literal["mean_100", "evaluation"] | None = None
    selection: Literal["truncation", "tournament"] = "truncation"
    fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    resample: Annotated[float, Field(ge=0, le=1)] = 0.25
    perturb: Annotated[dict[str, Perturbed], by_dotted_key(Perturbed), Field(min_length=1, max_length=64)]


@runtime_checkable
class OnPolicySettings(Protocol):
    """Settings of an update rule that learns from rollouts: all settings that have this key, a user's too."""

    rollout_steps: int
    """Env steps of a rollout, over all actors of a learner; each round of updates gathers a rollout."""


class ReplayLearnerSettings(Protocol):
    """Settings of an update rule that learns from batches of a replay."""

    batch_size: int
    """B_s, samples of one update: transitions, sequences or unrolls."""

    replay_ratio: float
    """``rho``: uses of each env step in updates, on average."""

    warmup_steps: int
    """Env steps that the learner receives before its first update."""

    publish_every: int
    """Updates between two published policies."""


@runtime_checkable
class TransitionSettings(ReplayLearnerSettings, Protocol):
    """Settings of an update rule whose samples are transitions."""

    n_step: int
    """Steps whose rewards a sample sums up."""

    gamma: float
    """Discount of one step."""


@runtime_checkable
class SequenceSettings(ReplayLearnerSettings, Protocol):
    """Settings of an update rule whose samples are episodes, or parts of long ones."""

    sequence_steps: int
    """L, most steps of a sample."""


@runtime_checkable
class UnrollSettings(ReplayLearnerSettings, Protocol):
    """Settings of an update rule whose samples are steps in a row, across the ends of episodes."""

    burn_in: int
    """First steps of a sample; the learner learns nothing from them."""

    unroll_steps: int
    """L, steps of a sample after the burn-in, from which the learner learns."""


@dataclass(frozen=True)
class Unroll:
    """Lengths of a sample of steps in a row: of the burn-in, and of the steps that are learnt from."""

    burn_in: int
    learnt: int

    @property
    def steps(self) -> int:
        """R, steps of the whole sample."""
        return self.burn_in + self.learnt


def sequence_steps_of(settings: object) -> int | None:
    """L, most env steps of a sample, if a replay's samples are sequences; None otherwise."""
    return settings.sequence_steps if isinstance(settings, SequenceSettings) else None


def unroll_of(settings: object) -> Unroll | None:
    """Lengths of a sample if a replay's samples are unrolls; None otherwise."""
    return Unroll(settings.burn_in, settings.unroll_steps) if isinstance(settings, UnrollSettings) else None


def batch_steps_of(settings: ReplayLearnerSettings) -> int:
    """Most env steps that the learner learns from in one batch of a replay."""
    unroll = unroll_of(settings)
    return settings.batch_size * (unroll.learnt if unroll is not None else sequence_steps_of(settings) or 1)


def replay_settings_of(settings: object) -> ReplayLearnerSettings | None:
    """Settings of an update rule that learns from a replay; None if they are of another kind."""
    return settings if isinstance(settings, SequenceSettings | UnrollSettings | TransitionSettings) else None


def least_tolerance(fragment_steps: int, batch_steps: int, rho: float) -> float:
    """The smallest tolerance of the rate limiter, in env steps, with which one side may always go on.

    Both sides wait if ``error + fragment > tolerance`` and ``error - batch / rho < -tolerance``. There is no
    such error if ``2 x tolerance >= fragment + batch / rho``.

    Args:
        fragment_steps: T x N, which the buffer receives at once.
        batch_steps: most env steps that an update uses: B transitions, or the steps of B sequences or
            unrolls.
        rho: uses of each env step.
    """
    return (fragment_steps + batch_steps / rho) / 2


def usual_tolerance(fragment_steps: int, batch_steps: int, rho: float) -> float:
    """Default tolerance, twice the least: neither side waits for the very moment the other is done."""
    return 2 * least_tolerance(fragment_steps, batch_steps, rho)


class JobConfig(Section):
    """A config that can be run: every name in it exists and its settings fit one another."""

    experiment: Experiment
    environment: Environment
    agent: Component
    model: Component
    training: Component
    distribution: Distribution = Distribution()
    roles: dict[str, UserRoleSection] = Field(default_factory=dict)
    graph: Graph = Graph()
    population: Population | None = None
    _notes: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the user on a config that can be run."""
        return self._notes

    def noted(self, notes: Iterable[str]) -> Self:
        """Set the notes, which ``dump_config`` does not write, and return this config."""
        self._notes = tuple(notes)
        return self

    @property
    def cores(self) -> int:
        """Cores that learners, buffers, user roles and actors of all groups ask for."""
        distribution = self.distribution
        if distribution.one_process:
            return distribution.groups * distribution.learner.cores
        roles = sum(role.cores_of_all for role in self.roles.values() if role.per == "group")
        of_job = sum(role.cores_of_all for role in self.roles.values() if role.per == "job")
        actors = distribution.actor_processes * distribution.actor.cores
        return distribution.groups * (distribution.cores_of_learners + roles + actors) + of_job

    @property
    def fragment_steps(self) -> int:
        """Env steps in one fragment: T x N."""
        return self.distribution.actor.send_size * self.environment.num_envs

    @property
    def learns_from_replay(self) -> bool:
        """Whether the learner draws batches from a replay; otherwise it trains on rollouts."""
        return replay_settings_of(self.training.settings) is not None

    @property
    def fragments_per_rollout(self) -> int:
        """Fragments of a rollout, over all actors of a learner; each round of updates gathers a rollout."""
        settings = self.training.settings
        assert isinstance(settings, OnPolicySettings), "checks refuses any other"
        return settings.rollout_steps // self.fragment_steps

    @property
    def cores_beside_others(self) -> int:
        """Cores of a training beside others like it; where cores are named, more than any host has."""
        return MOST_CORES + 1 if self.distribution.names_cores(self.roles) else self.cores

    @property
    def window(self) -> int:
        """Most unclaimed fragments of an actor: more than its share of a rollout would only grow stale."""
        actor = self.distribution.actor
        if self.learns_from_replay:
            return actor.window
        return min(actor.window, math.ceil(self.fragments_per_rollout / actor.num.max))

    @property
    def tolerance(self) -> float | None:
        """Most env steps between production and consumption with a replay; None without a limit."""
        distribution, settings = self.distribution, self.replay_settings
        if distribution.balance == "free":
            return None
        if distribution.balance_tolerance is not None:
            return distribution.balance_tolerance
        return usual_tolerance(self.fragment_steps, self.batch_steps, settings.replay_ratio)

    @property
    def replay_settings(self) -> ReplayLearnerSettings:
        """Settings of the update rule, which learns from a replay."""
        settings = replay_settings_of(self.training.settings)
        assert settings is not None, "ask learns_from_replay before"
        return settings

    @property
    def transition_settings(self) -> TransitionSettings | None:
        """Settings of an update rule that learns from transitions; None if it learns from anything else."""
        settings = self.training.settings
        if isinstance(settings, SequenceSettings | UnrollSettings):
            return None
        return settings if isinstance(settings, TransitionSettings) else None

    @property
    def sequence_steps(self) -> int | None:
        """L, most env steps of a sample, if a replay's samples are sequences; None otherwise."""
        return sequence_steps_of(self.training.settings)

    @property
    def unroll(self) -> Unroll | None:
        """Lengths of a sample, if a replay's samples are unrolls; None otherwise."""
        return unroll_of(self.training.settings)

    @property
    def batch_steps(self) -> int:
        """Most env steps that the learner learns from in one batch of the replay."""
        return batch_steps_of(self.replay_settings)
