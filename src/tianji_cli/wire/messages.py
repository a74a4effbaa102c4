"""JSON messages between processes, checked on arrival; most go over the control channel.

A *worker* carries roles. A *node* starts workers: the fork server of the root's host, a host that has joined
(any number of workers), or a rank that an MPI launcher has started (itself).

Worker to root: ``register`` when its endpoint is open, ``report`` from time to time, ``finished`` when a
role has reached its goal, ``failed`` when one raised, ``terminate`` when it was sent SIGTERM, ``stopped``
as its last word. Root to worker: ``addresses``, ``peer_lost``, ``allow``, ``attending``, ``adopt``,
``wind_down``, ``stop``.
When a run is traced the root sends ``trace``; workers of other hosts ask for the time (``ask_clock``,
``clock``), and all send their ``spans``, and ``traced`` behind them.

Root to node: ``prepare`` for a job, ``begin`` and perhaps ``kill`` for each worker, ``start_no_more``.
Node to root: ``began`` and ``exited`` for each worker.

A node on another host begins with ``arrive``, which the root answers by ``welcome`` or ``refuse``; it sends
``present`` once a second, what a worker ``wrote``, and the ``saved_state`` of user roles; the root sends that
back in a resumed run, ``ping`` from time to time, and ``dismiss``. The workers of a benchmark are nodes too:
the root may ``ask``, and they ``answer``.

A fork server talks over a socket pair to the process that started it, in lines. It also answers ``build`` by
``built``, and ``start_no_more`` by ``cleared``. The process that builds writes its ``BuildReport`` to memory
that it shares with the fork server.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tianji_cli.errors import ProcessExit
from tianji_cli.files.counters import Production, ProductionFile
from tianji_cli.files.modules import KeptModule
from tianji_cli.wire.reports import AnyReport
from tianji_transports.wiring import Wiring

MOST_SHOWN: Final = 100
"""Maximum characters of a foreign key in an error."""


class Message(BaseModel):
    """Base of all messages: frozen plain data without unknown keys; bytes are base64 in JSON."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64", defer_build=True
    )


def first_mistake(found: ValidationError) -> str:
    """Describe the first mistake without the input, which may be a stranger's: terminals show the text."""
    first = found.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))[:MOST_SHOWN]
    return f"{first['type']} at {where or 'its beginning'!r}"


MOST_TEXT: Final = 64 << 10
"""Maximum characters of a traceback."""
MOST_BYTES: Final = 1 << 20
"""Maximum bytes of a message to the root."""

MOST_SPANS: Final = 1 << 18
"""Maximum spans that a worker keeps of a trace: 5 MB, the newest seconds of a worker with 40,000 a second."""

Natural = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PageReport(Message):
    """A page, as ``Production`` has it; the first step began ``first_step_age_s`` ago, None before it."""

    number: Natural
    incarnation: Natural
    first_step_age_s: Seconds | None
    unfinished: Natural
    finished: Natural
    dropped: Natural
    lost: Natural
    pushed: Natural
    recent: Natural


class Register(Message):
    """A worker has built its endpoint and can be reached at ``address``.

    The learner of group 0 adds the job's wiring, if the root is part of it; a learner that is not alone adds
    the place where its group's learners meet.
    """

    kind: Literal["register"] = "register"
    rank: int
    incarnation: Natural
    pid: Natural
    address: str
    wiring: Wiring | None = None
    meeting: str = ""


class Report(Message):
    """Status of a worker: ``roles[i]`` is the i-th role's report, ``busy_s[i]`` its working time so far.

    Attributes:
        memory: private memory of its process, in bytes.
    """

    kind: Literal["report"] = "report"
    rank: int
    incarnation: Natural
    roles: list[AnyReport]
    busy_s: list[Seconds]
    running_s: Seconds
    memory: Natural = 0
    pages: list[PageReport] = Field(default_factory=list)


def own_memory() -> int:
    """Private memory of this process in bytes, without files and shared memory; 0 if unknown."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            _, resident, of_files, *_ = map(int, file.read().split())
    except OSError:  # The process has as many files open as it may.
        return 0
    return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")


class Finished(Message):
    """A role has reached its goal, named in ``reason``."""

    kind: Literal["finished"] = "finished"
    rank: int
    reason: str


class Failed(Message):
    """A role raised; the worker is about to end."""

    kind: Literal["failed"] = "failed"
    rank: int
    incarnation: Natural
    cause: str
    traceback: str


class Stopped(Message):
    """A worker has stopped in order; its last report."""

    kind: Literal["stopped"] = "stopped"
    report: Report


class AskClock(Message):
    """A worker asks for the time of the root's clock, and sends that of its own."""

    kind: Literal["ask_clock"] = "ask_clock"
    rank: int
    asked_s: Seconds


class SpansOf(Message):
    """Some of the spans that a worker measured for a trace: whole records of ``files.traces.SPAN``."""

    kind: Literal["spans"] = "spans"
    rank: int
    trace: Natural
    spans: bytes


class Traced(Message):
    """A worker has sent all its spans of a trace; see ``files.traces.TracedProcess``."""

    kind: Literal["traced"] = "traced"
    rank: int
    trace: Natural
    began_s: Seconds
    ended_s: Seconds
    dropped: Natural
    offset_s: Annotated[float, Field(allow_inf_nan=False)]
    uncertainty_s: Seconds


class SavedState(Message):
    """A piece of what a user role has saved, as a file; on its way to the root, or back in a resumed run."""

    kind: Literal["saved_state"] = "saved_state"
    rank: int
    role: Name
    piece: bytes
    is_last: bool


class Terminate(Message):
    """A worker was sent SIGTERM and passes it on: it means the whole job."""

    kind: Literal["terminate"] = "terminate"
    rank: int


HERE: Final = "here"
"""Name of a fork server as a node: the process that started it knows no other one."""


class Arrive(Message):
    """A node is there: its host's name and cores, and the address that other hosts reach it by."""

    kind: Literal["arrive"] = "arrive"
    node: Name
    host: Name
    cores: list[Natural]
    interface: Name
    pid: Natural
    version: str

    @classmethod
    def of_this_process(cls, node: str, host: str, cores: Iterable[int], interface: str) -> Self:
        """Introduce this process, which speaks for a node."""
        return cls(
            node=node,
            host=host,
            cores=list(cores),
            interface=interface,
            pid=os.getpid(),
            version=version("tianji"),
        )


class Present(Message):
    """The node is still there.

    A host that was welcomed reports whether it reaches the run directory, the process id of its fork server
    if that is suspended, and the numbers of its suspended workers.
    """

    kind: Literal["present"] = "present"
    node: Name
    reaches_run: bool = False
    suspended_server: Natural | None = None
    suspended: tuple[Natural, ...] = ()


class Began(Message):
    """The node's ``number``-th worker runs."""

    kind: Literal["began"] = "began"
    node: Name
    number: Natural
    pid: Natural


class Wrote(Message):
    """The node's ``number``-th worker has written more to its log."""

    kind: Literal["wrote"] = "wrote"
    node: Name
    number: Natural
    output: bytes


class Exited(Message):
    """The node's ``number``-th worker has ended; ``pages`` are those that it wrote, after its end."""

    kind: Literal["exited"] = "exited"
    node: Name
    number: Natural
    exit: ProcessExit
    pages: list[PageReport] = Field(default_factory=list)


class BuildReport(Message):
    """Result of building the parts of a job once.

    Attributes:
        error: why the build failed; empty if it succeeded.
        traceback: traceback of the exception, for ``--debug``.
        imported: modules of TianJi that the build needed and the fork server had not imported: algorithms,
            mostly.
        modules: the user's modules that the build needed, by name.
        init: data that a new run takes from another one; None if it begins by itself.
        fragment_bytes: size of a fragment.
    """

    error: str = ""
    traceback: str = ""
    imported: tuple[str, ...] = ()
    modules: dict[str, KeptModule] = {}
    init: dict[str, Any] | None = None
    fragment_bytes: int = 0


class Built(Message):
    """The build has ended, or could not begin."""

    kind: Literal["built"] = "built"
    report: BuildReport


class Cleared(Message):
    """Nothing is left of the ``number``-th job's workers, nor of the processes that they started."""

    kind: Literal["cleared"] = "cleared"
    number: Natural


class Answer(Message):
    """Result of the root's ``number``-th request; ``error`` says why it failed."""

    kind: Literal["answer"] = "answer"
    node: Name
    number: Natural
    result: dict[str, Any] = Field(default_factory=dict)
    error: str = ""


class Addresses(Message):
    """Addresses of the peers, and where the group's learners meet; sent again when a peer was restarted."""

    kind: Literal["addresses"] = "addresses"
    addresses: dict[int, str]
    meeting: str = ""


class PeerLost(Message):
    """A rank is dead; fragments of its incarnations before ``counts_from`` do not count any more."""

    kind: Literal["peer_lost"] = "peer_lost"
    rank: int
    counts_from: Natural = 0


class Allow(Message):
    """The actors here may begin so many further fragments in all, one each at most; null: any number."""

    kind: Literal["allow"] = "allow"
    fragments: Natural | None


class Trace(Message):
    """Measure what the roles do from now on, until ``until_s`` of the root's clock; keep the newest spans.

    ``trace`` counts the traces of a session; a new one ends the one before.
    """

    kind: Literal["trace"] = "trace"
    trace: Natural
    until_s: Seconds
    most_spans: Annotated[int, Field(ge=1, le=MOST_SPANS)]


class Clock(Message):
    """Time of the root's clock, for a worker whose own clock showed ``asked_s`` when it asked."""

    kind: Literal["clock"] = "clock"
    asked_s: Seconds
    root_s: Seconds


class Attending(Message):
    """Numbers of the group's actors that are there; those of empty seats are not."""

    kind: Literal["attending"] = "attending"
    actors: list[int]


class Adopt(Message):
    """The member of a population that this process belongs to goes on with other hyperparameters."""

    kind: Literal["adopt"] = "adopt"
    hyperparameters: dict[str, Any]


class WindDown(Message):
    """Training is over and actors are stopping: make no more updates, receive the last fragments."""

    kind: Literal["wind_down"] = "wind_down"


class Stop(Message):
    """Stop in order, and say so."""

    kind: Literal["stop"] = "stop"


class Welcome(Message):
    """All that a host needs to take part: its name in the job, the user's own files by path.

    ``run`` is the run directory, which it may reach under the same path. A host that ``may_leave`` takes a
    signal for its own: the job goes on without it.
    """

    kind: Literal["welcome"] = "welcome"
    host: Name
    experiment: str
    run: str
    files: dict[str, bytes]
    may_leave: bool = False


class Refuse(Message):
    """The node cannot take part; one that was welcomed before may arrive once more."""

    kind: Literal["refuse"] = "refuse"
    reason: str


class Build(Message):
    """Build environment, model and layout of a job once, in a process that ends with it."""

    kind: Literal["build"] = "build"
    job: str


class Prepare(Message):
    """Job of all workers that this node starts from now on, in JSON (``Job.to_json``).

    Attributes:
        number: counts the jobs of a node; only a fork server may have several.
    """

    kind: Literal["prepare"] = "prepare"
    job: str
    number: Natural = 0


class Begin(Message):
    """Start the ``number``-th worker of a node: the ``incarnation``-th process that has this rank.

    Attributes:
        env_steps: env steps of the learner before this one when it was killed; 0 if there was none.
    """

    kind: Literal["begin"] = "begin"
    number: Natural
    rank: Natural
    incarnation: Natural
    env_steps: Natural = 0


class Ask(Message):
    """Do a step of a benchmark (``tianji_lab.bench.experiment``): the root's ``number``-th request."""

    kind: Literal["ask"] = "ask"
    number: Natural
    step: dict[str, Any]


class Kill(Message):
    """End the ``number``-th worker at once, or have it write into its log where it ``hung``, and die."""

    kind: Literal["kill"] = "kill"
    number: Natural
    hung: str = ""


class StartNoMore(Message):
    """Cancel the requests for workers of this job that have not begun, and start no further ones."""

    kind: Literal["start_no_more"] = "start_no_more"


class Ping(Message):
    """The root is still there."""

    kind: Literal["ping"] = "ping"


class Dismiss(Message):
    """The job is over: end all workers, and leave."""

    kind: Literal["dismiss"] = "dismiss"


T = TypeVar("T")

FromWorker = (
    Register | Report | Finished | Failed | Stopped | Terminate | AskClock | SpansOf | Traced | SavedState
)
FromNode = Arrive | Present | Began | Wrote | Exited | Answer
ToRoot = FromWorker | FromNode
ToWorker = Addresses | PeerLost | Allow | Attending | Adopt | Trace | Clock | WindDown | Stop
NodeRequest = Prepare | Begin | Kill | StartNoMore
ToNode = NodeRequest | Welcome | Refuse | Ping | Dismiss | Ask | SavedState
FromRoot = ToWorker | ToNode
ToForkServer = Build | Prepare | Begin | StartNoMore
FromForkServer = Built | Began | Exited | Cleared

_BY_KIND: Final = Field(discriminator="kind")
# No process reads all messages: each builds validators of those that it does read.
_DEFERRED: Final = ConfigDict(defer_build=True)
_TO_ROOT: TypeAdapter[ToRoot] = TypeAdapter(Annotated[ToRoot, _BY_KIND], config=_DEFERRED)
_FROM_ROOT: TypeAdapter[FromRoot] = TypeAdapter(Annotated[FromRoot, _BY_KIND], config=_DEFERRED)
_TO_FORK_SERVER: TypeAdapter[ToForkServer] = TypeAdapter(Annotated[ToForkServer, _BY_KIND], config=_DEFERRED)
_FROM_FORK_SERVER: TypeAdapter[FromForkServer] = TypeAdapter(
    Annotated[FromForkServer, _BY_KIND], config=_DEFERRED
)


def build_worker_validators() -> None:
    """Build what every worker reads and writes messages with, so that forked workers share it."""
    _FROM_ROOT.rebuild(force=True)
    for model in (Register, Report, Stopped):
        model.model_rebuild(force=True)


class MalformedMessageError(Exception):
    """Bytes on the control channel are no message of its protocol."""


def text(raw: str) -> str:
    """Make foreign text, such as an exception's, fit for a message: of bounded length, and Unicode."""
    return raw.encode("utf-8", "backslashreplace").decode()[-MOST_TEXT:]


def encode(message: ToRoot | FromRoot | ToForkServer | FromForkServer) -> bytes:
    """Write a message as JSON. Infinities and NaN in a role's report become null, which JSON can hold."""
    return message.model_dump_json().encode()


def decode_to_root(data: bytes, ranks: int) -> ToRoot:
    """Decode a message of a worker, or of a node, in a job with so many processes.

    Raises:
        MalformedMessageError: the bytes are none of the messages, or from no rank of the job.
    """
    if len(data) > MOST_BYTES:
        raise MalformedMessageError(f"{len(data)} bytes are more than anybody has to say")
    message = _decode(_TO_ROOT, data)
    if isinstance(message, FromNode):
        return message
    rank = message.report.rank if isinstance(message, Stopped) else message.rank
    if not 0 <= rank < ranks:
        raise MalformedMessageError(f"there is no rank {rank}")
    return message


def decode_from_root(data: bytes) -> FromRoot:
    """Decode a message of the root.

    Raises:
        MalformedMessageError: the bytes are none of the messages.
    """
    return _decode(_FROM_ROOT, data)


def decode_to_fork_server(data: bytes) -> ToForkServer:
    """Decode a message of the process that started this fork server; raises as ``decode_from_root``."""
    return _decode(_TO_FORK_SERVER, data)


def decode_from_fork_server(data: bytes) -> FromForkServer:
    """Decode a message of a fork server; raises as ``decode_from_root``."""
    return _decode(_FROM_FORK_SERVER, data)


def _decode(adapter: TypeAdapter[T], data: bytes) -> T:
    try:
        return adapter.validate_json(data)
    except ValidationError as cause:
        raise MalformedMessageError(first_mistake(cause)) from cause


def report_pages(file: ProductionFile, numbers: Iterable[int]) -> list[PageReport]:
    """Read some pages for the root."""
    now_ns, reports = time.monotonic_ns(), []
    for page in map(file.read, numbers):
        counts = asdict(page)
        began_ns = counts.pop("first_step_ns")
        reports.append(PageReport(first_step_age_s=(now_ns - began_ns) / 1e9 if began_ns else None, **counts))
    return reports


def read_report(report: PageReport) -> Production:
    """Convert a reported page to a page of this host, with times of its clock."""
    counts, age_s = report.model_dump(exclude={"first_step_age_s"}), report.first_step_age_s
    return Production(first_step_ns=0 if age_s is None else time.monotonic_ns() - int(age_s * 1e9), **counts)


LAST_BYTES: Final = 500
"""Bytes at the end of a process's output that are searched for its last line."""
MOST_PRINTED_BYTES: Final = 1 << 20
"""Maximum bytes of memory for the output of a building process, between two looks at it."""


@dataclass(frozen=True)
class BuildOutput:
    """Descriptors of memory that a building process writes report and output into, and that outlives it.

    Attributes:
        done: an eventfd, readable once the report is there; the end of the process takes 0.2 s more.
    """

    report: int
    printed: int
    done: int

    @classmethod
    def new(cls) -> Self:
        """Make the memory."""
        return cls(os.memfd_create("build-report"), os.memfd_create("build-output"), os.eventfd(0))

    def take_prints(self) -> None:
        """Redirect this process's output to the memory from now on, also once it is another program."""
        for descriptor in (1, 2):
            os.dup2(self.printed, descriptor)

    def finish(self, report: BuildReport) -> None:
        """Write the report of this process."""
        os.write(self.report, report.model_dump_json().encode())
        os.eventfd_write(self.done, 1)

    def bound(self) -> None:
        """Free all output but its end: an environment may print without end, and this is memory."""
        size = os.fstat(self.printed).st_size
        if 512 * os.fstat(self.printed).st_blocks > MOST_PRINTED_BYTES:
            end = os.pread(self.printed, LAST_BYTES, size - LAST_BYTES)
            os.ftruncate(self.printed, 0)
            # The process goes on printing behind this; the hole before it takes no memory.
            os.pwrite(self.printed, end, size - LAST_BYTES)

    def read(self, exit_: ProcessExit) -> BuildReport:
        """Read the report, or describe the failure of a process that ended without one; frees the memory."""
        os.close(self.done)
        with open(self.report, "rb") as report, open(self.printed, "rb") as printed:
            report.seek(0)
            content = report.read()
            if content:
                return BuildReport.model_validate_json(content)
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - LAST_BYTES))
            *_, last = printed.read().decode(errors="replace").strip().splitlines() or [""]
        how = f"the process that built environment and model {exit_}"
        return BuildReport(error=f"{how}; it wrote last: {last}" if last else how)
