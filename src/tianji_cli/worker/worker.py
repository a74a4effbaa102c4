"""A worker process: builds its roles, runs them in turn, and stops in order, whatever ends it.

The fork server's first child builds environment, model and layout once, and reports what cannot be built
before anything runs.

A worker ends with its root. Every worker inherits the reading end of a pipe whose writing end only the root
has. With ``O_ASYNC`` the kernel sends SIGIO when the writing end closes, even if a SIGKILL ends the root.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import setproctitle

from tianji_cli.conditions import explained
from tianji_cli.config.environment import start_limit
from tianji_cli.config.loader import parse_config
from tianji_cli.config.population import config_with
from tianji_cli.files.counters import ProductionFile
from tianji_cli.files.directories import directory_lock
from tianji_cli.files.modules import KeptModules, read_modules
from tianji_cli.files.regular import bound_log, write_to
from tianji_cli.limits import NOT_PINNED, pin
from tianji_cli.plan.graph import EXAMINER
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import ROOT_RANK, PlannedProcess
from tianji_cli.roles.role import Role, RoleError, run_in_turns
from tianji_cli.signals import STOP_SIGNALS
from tianji_cli.wire.address import JobKey, engine_options
from tianji_cli.wire.control import ControlClient
from tianji_cli.wire.messages import (
    Addresses,
    Adopt,
    Allow,
    Attending,
    Begin,
    BuildOutput,
    BuildReport,
    Failed,
    Finished,
    FromRoot,
    PeerLost,
    Register,
    Report,
    Stop,
    Stopped,
    Terminate,
    Trace,
    WindDown,
    own_memory,
    report_pages,
    text,
)
from tianji_cli.wire.reports import AnyReport
from tianji_transports.core import Transport
from tianji_transports.wiring import Wiring

if TYPE_CHECKING:
    from tianji_cli.worker.tracer import Tracer

REPORT_EVERY_S: Final = 0.2
REPORTS_PER_S: Final = 500
"""Most reports that all processes together send the root each second; many actors report less often."""
EXAMINER_NICE: Final = 10
"""Nice value of the examiner: on shared cores it takes a tenth of an actor's time."""
DRAIN_S: Final = 1.0
"""Seconds that a stopping worker waits until its last pushes are claimed."""


def run_worker(job: Job, own: Begin, parent_pipe: int | None = None) -> None:
    """Run the planned roles until the root stops them; the exit status is 0 then, and 1 after an error.

    Args:
        parent_pipe: descriptor of the pipe that breaks when the root ends; None if an MPI launcher ends this
            process with the root.
    """
    assert job.root is not None
    with ControlClient(job.root) as control:
        try:
            _prepare_process(job, own)
            handler = WorkerControl(job, own, control, parent_pipe)
            handler.take_signals()
            _work(job, own, handler, control, job.root.key)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a role raises ends the run with it
            cause = error.error if isinstance(error, RoleError) else error
            control.send(
                Failed(
                    rank=own.rank,
                    incarnation=own.incarnation,
                    cause=text(explained(cause)),
                    traceback=text(traceback.format_exc()),
                )
            )
            with contextlib.suppress(OSError):  # The disk may be what is full.
                traceback.print_exc()
            sys.exit(1)
        finally:
            # The interpreter restores signal defaults while it ends, and SIGTERM's default would kill.
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _prepare_process(job: Job, own: Begin) -> None:
    setproctitle.setproctitle(f"tianji: {job.title(own.rank)}")
    # A Ctrl-C reaches the whole foreground group; the root decides what it means for the job.
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    write_to(job.log(own.rank))
    sys.breakpointhook = _debug_at_terminal
    faulthandler.enable()  # The log also gets the place of a signal such as SIGSEGV.
    sys.path[:] = job.path
    sys.meta_path.insert(0, KeptModules(job.modules))
    process = job.plan.processes[own.rank]
    if process.cores and not pin(process.cores):
        sys.stderr.write(f"{NOT_PINNED}\n")


def _debug_at_terminal(*arguments: Any, **keywords: Any) -> None:
    """Debug at the job's terminal, as ``breakpoint`` would, since this process's streams lead elsewhere."""
    try:
        if "PYTHONBREAKPOINT" in os.environ:
            raise OSError("another debugger was asked for")
        shown, typed = open("/dev/tty", "w"), open("/dev/tty")  # noqa: SIM115 - open as long as the debugger
    except OSError:
        sys.__breakpointhook__(*arguments, **keywords)
    else:
        import pdb  # noqa: PLC0415 - only who debugs needs it

        pdb.Pdb(stdin=typed, stdout=shown).set_trace(sys._getframe(1))


def _work(job: Job, own: Begin, handler: WorkerControl, control: ControlClient, key: JobKey) -> None:
    # Imported here so that the process has its title and its log before the first slow or failing import.
    import torch  # noqa: PLC0415

    from tianji_cli.roles.evaluator import Evaluator  # noqa: PLC0415
    from tianji_cli.worker.build import build_roles  # noqa: PLC0415
    from tianji_cli.worker.builder import Builder, seed_process  # noqa: PLC0415
    from tianji_cli.worker.channels import open_transport  # noqa: PLC0415
    from tianji_cli.worker.evaluation import final_evaluation  # noqa: PLC0415

    process = job.plan.processes[own.rank]
    torch.set_num_threads(process.threads)
    seed_process(job, process, own.incarnation)  # Before the config: it imports the user's modules.
    config = config_with(parse_config(job.config), job.hyperparameters_of(process.group))
    builder = Builder(job, config, process, own.incarnation, own.env_steps)
    if "evaluator" in process.roles:
        _run_evaluator(Evaluator(final_evaluation(builder, job.checkpoints)), handler)
        return
    with contextlib.ExitStack() as stack:
        if "learner" in process.roles:
            stack.enter_context(directory_lock(job.checkpoints))
        options = engine_options(job.interface, key)
        production = _production_file(job, own)
        with start_limit(config.environment):  # This builds environment and model, for the sizes of messages.
            transport = stack.enter_context(open_transport(builder, options))
        # A buffer may have gigabytes to read.
        with contextlib.nullcontext() if "buffer" in process.roles else start_limit(config.environment):
            roles = build_roles(builder, transport, production)
        if EXAMINER in process.roles:  # Only now, since a nice start would take long while others train.
            os.nice(EXAMINER_NICE)
        # No role begins before all have registered: a failing build ends the run before its first step.
        control.send(
            Register(
                rank=own.rank,
                incarnation=own.incarnation,
                pid=os.getpid(),
                address=transport.address,
                meeting=next((role.meeting for role in roles if role.meeting), ""),
                wiring=_wiring_for_root(process, transport),
            )
        )
        handler.begin(roles, transport, production)
        carry_to_end(process, roles, transport, handler)


def _wiring_for_root(process: PlannedProcess, transport: Transport) -> Wiring | None:
    """Return the wiring if this is group 0's learner: the root builds no model, so it knows no sizes."""
    wiring = transport.wiring
    to_root = any(channel.receiver == ROOT_RANK for channel in wiring.channels)
    return wiring if to_root and "learner" in process.roles and process.group == 0 else None


def _production_file(job: Job, own: Begin) -> ProductionFile:
    if job.production is not None:
        return ProductionFile(job.production)
    production = ProductionFile(None, len(job.plan.pages))
    for actor in job.plan.processes[own.rank].actors:
        production.begin(actor, own.incarnation)
    return production


def carry_to_end(
    process: PlannedProcess, roles: Sequence[Role], transport: Transport, handler: WorkerControl
) -> None:
    """Run the roles of a process until the root stops them, and end in order."""
    try:
        _carry(roles, handler)
        if "learner" not in process.roles and {"actor", "buffer"} & set(process.roles):
            transport.close(DRAIN_S)  # The receivers of their pushes are still running.
        for role in roles:
            role.settle()
        handler.say_goodbye()
        for role in roles:
            role.keep()
    finally:
        with contextlib.ExitStack() as closing:  # Closes each role, whatever another's close raises.
            for role in reversed(roles):
                closing.callback(role.close)


def _carry(roles: Sequence[Role], handler: WorkerControl) -> None:
    """Run the roles until the root stops them; if one of them raises, the others still stop in order."""
    raised: list[BaseException] = []
    broken = None
    try:
        handler.wait_for_peers()
        while not handler.is_over:
            run_in_turns(roles, handler, handler.sleep)
    except RoleError as failure:
        broken = failure.role
        raised.append(failure.error)
    for role in roles:
        if role is not broken:
            try:
                role.stop()
            except Exception as error:  # noqa: BLE001 - raised below, unless something was raised before it
                raised.append(error)
    if raised:
        handler.say_goodbye()
        raise raised[0]


def _run_evaluator(evaluator: Role, handler: WorkerControl) -> None:
    handler.begin([evaluator])
    try:
        while evaluator.finished is None and handler.handle():
            began = time.perf_counter()
            evaluator.turn()
            evaluator.busy_s += time.perf_counter() - began
        handler.say_goodbye()
    finally:
        evaluator.close()


class WorkerControl:
    """Reports to the root between two rounds of turns, handles its messages, and notices when it is gone.

    Attributes:
        peers_known: the root has sent the addresses of the peers, and the roles may begin.
    """

    def __init__(self, job: Job, own: Begin, control: ControlClient, parent_pipe: int | None) -> None:
        process = job.plan.processes[own.rank]
        self._rank, self._incarnation, self._log = own.rank, own.incarnation, job.log(own.rank)
        # The root reads pages on its own host itself, even after a worker's end.
        self._reported_pages = () if job.plan.is_local(own.rank) else job.plan.pages_of(own.rank)
        self._control = control
        self._shares_clock = job.plan.is_local(own.rank)
        self._tracer: Tracer | None = None
        saves = "learner" in process.roles
        self._parent_watch = None if parent_pipe is None else ParentDeathWatch(parent_pipe, saves=saves)
        self._terminated = False
        self._terminate_passed_on = False
        self._stopping = False
        self.peers_known = False
        self._finish_announced = False
        self._roles: Sequence[Role] = ()
        self._failed_role: Role | None = None
        self._transport: Transport | None = None
        self._production: ProductionFile | None = None
        alone = process.only_acts
        self._report_every_s = max(REPORT_EVERY_S, len(job.plan.processes) / REPORTS_PER_S if alone else 0.0)
        self._reported = 0.0
        self._began = time.perf_counter()

    def take_signals(self) -> None:
        """Pass a SIGTERM to this process on to the root from now on."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # The fork server keeps them blocked.

    def begin(
        self,
        roles: Sequence[Role],
        transport: Transport | None = None,
        production: ProductionFile | None = None,
    ) -> None:
        """Set the roles, the endpoint and the counters of this process."""
        self._roles, self._transport, self._production = roles, transport, production
        self._began = time.perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether the root has stopped this process, or is gone."""
        return self._stopping or (self._parent_watch is not None and self._parent_watch.cut)

    def wait_for_peers(self) -> None:
        """Sleep until the root sends the peers' addresses, stops this process, or is gone.

        There is no time limit: the root notices each process that ends before it has registered, and then
        stops all.
        """
        while not (self.peers_known or self.is_over):
            self.handle()
            if not (self.peers_known or self.is_over):
                self._control.wait(self._report_every_s)

    def handle(self) -> bool:
        """Report, then handle the root's messages; the other order could leave one unseen during a sleep.

        Returns:
            Whether the loop goes on. It also ends, to begin anew, when a trace begins or ends, because the
            trace replaces methods that the loop holds.
        """
        if self.is_over:
            return False
        self._pass_on_termination()
        now = time.monotonic()
        if now - self._reported >= self._report_every_s:
            self._reported = now
            self._control.send(self._report())
            with contextlib.suppress(OSError):  # The user may have removed the log.
                bound_log(self._log)
        self._announce_finish()
        goes_on = not (self._tracer is not None and now >= self._tracer.until_s and self._end_trace())
        messages = self._control.receive()
        for message in messages:  # The beginning of a trace may add messages.
            if isinstance(message, Trace):
                self._begin_trace(message, messages)
                goes_on = False
            else:
                self._handle(message)
        return goes_on and not self._stopping

    def _handle(self, message: FromRoot) -> None:
        match message:
            case Addresses() if self._transport is not None:
                self._transport.connect(message.addresses)
                self.peers_known = True
            case PeerLost() if self._transport is not None:
                self._transport.peer_lost(message.rank)
            case Allow():
                actors = [role for role in self._roles if role.name == "actor"]
                for place, actor in enumerate(actors):
                    actor.allow(None if message.fragments is None else int(place < message.fragments))
            case Stop():
                self._stopping = True
        for role in self._roles:
            _tell(role, message)

    def sleep(self, timeout_s: float) -> None:
        """Sleep until a message, a credit or the root wakes this process, or the next report is due."""
        assert self._transport is not None
        self._transport.wait(max(timeout_s, self._report_every_s), (self._control.descriptor,))

    def say_goodbye(self) -> None:
        """Send the last spans and the last report."""
        self._end_trace()
        self._announce_finish()
        self._control.send(Stopped(report=self._report()))

    def _begin_trace(self, asked: Trace, unhandled: list[FromRoot]) -> None:
        # Imported here, after the roles, because it imports torch.
        from tianji_cli.worker.tracer import Tracer  # noqa: PLC0415

        if self._tracer is None:
            self._tracer = Tracer(self._control, self._rank, shares_clock=self._shares_clock)
        self._tracer.begin(asked, self._roles, self, unhandled)

    def _end_trace(self) -> bool:
        """End a trace and send its spans; return False without a trace."""
        return self._tracer is not None and self._tracer.end()

    def _announce_finish(self) -> None:
        if self._finish_announced:
            return
        for role in self._roles:
            if role.finished is not None:
                self._finish_announced = True
                self._control.send(self._report())
                self._control.send(Finished(rank=self._rank, reason=role.finished))

    def _report(self) -> Report:
        return Report(
            rank=self._rank,
            incarnation=self._incarnation,
            roles=[self._report_of(role) for role in self._roles],
            busy_s=[role.busy_s for role in self._roles],
            running_s=time.perf_counter() - self._began,
            memory=own_memory(),
            pages=report_pages(self._production, self._reported_pages) if self._production else [],
        )

    def _report_of(self, role: Role) -> AnyReport:
        if role is self._failed_role:
            return cast("AnyReport", role.own_report())
        try:
            return cast("AnyReport", role.checked_report())
        except Exception as error:
            self._failed_role = role
            raise RoleError(role, error) from error

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        self._terminated = True

    def _pass_on_termination(self) -> None:
        """Pass a SIGTERM on to the root, which stops the whole job."""
        if self._terminated and not self._terminate_passed_on:
            self._terminate_passed_on = True
            self._control.send(Terminate(rank=self._rank))


SAVE_LIMIT_S: Final = 20
"""Seconds that an orphan may take to save its state before the kernel ends it."""


def _tell(role: Role, message: FromRoot) -> None:
    match message:
        case Addresses() if message.meeting:
            role.meet(message.meeting)
        case PeerLost():
            role.peer_lost(message.rank, message.counts_from)
        case Attending():
            role.note_actors(message.actors)
        case Adopt():
            role.adopt_hyperparameters(message.hyperparameters)
        case WindDown():
            role.wind_down()


class ParentDeathWatch:
    """Ends a worker when its root dies.

    Args:
        inherited: descriptor of the pipe; closed here.
        saves: the worker has state to save, and gets ``SAVE_LIMIT_S`` for it. Otherwise the kernel ends the
            worker at once (SIGIO's default), even inside a call that never returns.
    """

    def __init__(self, inherited: int, *, saves: bool) -> None:
        self.cut = False
        if saves:
            signal.signal(signal.SIGIO, self._on_cut)
        # The owner of SIGIO belongs to the open file, which all workers share; a new open file is our own.
        descriptor = os.open(f"/proc/self/fd/{inherited}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.close(inherited)
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
        poller = select.poll()
        poller.register(descriptor, 0)
        if poller.poll(0):  # The pipe broke before the kernel was asked for SIGIO.
            os.kill(os.getpid(), signal.SIGIO)

    def _on_cut(self, _number: int, _frame: object) -> None:
        self.cut = True
        signal.alarm(SAVE_LIMIT_S)  # SIGALRM's default ends the process.


FORKABLE: Final = ("tianji_algos.", "tianji_cli.")
"""Packages that a fork server may import completely: they start no threads and hold no files."""


def check_build(job: Job, output: BuildOutput, parent_pipe: int) -> None:
    """Build the parts of every process of a job, and report errors; exits with status 1 after an error.

    There is no log, since there is no run yet: ``output`` takes the report and the printed text.
    """
    setproctitle.setproctitle("tianji: first build")
    ParentDeathWatch(parent_pipe, saves=False)
    output.take_prints()
    sys.breakpointhook = _debug_at_terminal
    sys.path[:] = job.path
    before = set(sys.modules)
    try:
        # Imported here so that a process has its title and its output before the first slow import.
        from tianji_cli.worker.first_build import first_build  # noqa: PLC0415

        init, fragment_bytes = first_build(job)
        new = sorted(sys.modules.keys() - before)
        imported = () if job.fresh else tuple(name for name in new if name.startswith(FORKABLE))
        report = BuildReport(
            imported=imported, modules=read_modules(new), init=init, fragment_bytes=fragment_bytes
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's modules raise
        report = BuildReport(error=text(explained(error)), traceback=text(traceback.format_exc()))
    output.finish(report)
    sys.exit(1 if report.error else 0)
