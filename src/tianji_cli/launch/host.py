"""A host that has joined a job by hand: it passes the root's requests to the fork server here, and news back.

The logs of workers go to the root in pieces, as this host keeps none.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tianji_cli.errors import RunFailed, UsageError, describe, one_line
from tianji_cli.files.counters import ProductionFile
from tianji_cli.files.regular import LOG_BYTES, bound_log, open_regular
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.launch.extensions import DIRECTORY, lay_down
from tianji_cli.launch.node import LocalNode, Silence
from tianji_cli.launch.server_process import ServerProcess
from tianji_cli.launch.state_transfer import PIECE_BYTES, StateTransfer
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import Host
from tianji_cli.signals import Interruption, StopSignals
from tianji_cli.wire.address import JobKey, RootAddress
from tianji_cli.wire.control import ControlClient
from tianji_cli.wire.messages import (
    Arrive,
    Began,
    Begin,
    Dismiss,
    Exited,
    FromRoot,
    Kill,
    Prepare,
    Present,
    Refuse,
    SavedState,
    StartNoMore,
    Terminate,
    Welcome,
    Wrote,
    report_pages,
)

PRESENT_EVERY_S: Final = 1.0
ARRIVE_EVERY_S: Final = 5.0
ARRIVE_LIMIT_S: Final = 300.0
"""Maximum seconds to wait for an answer: the root may still be in Slurm's queue."""
END_LIMIT_S: Final = 15.0
"""Maximum seconds that workers have to end when the job is over."""


class JoinedHost:
    """This host's part in a job whose root is on another host.

    Args:
        interface: address that other hosts reach it by.
        directory: folder for the files that workers need and write, until the job is over.
    """

    def __init__(
        self,
        root: RootAddress,
        host: Host,
        interface: str,
        directory: Path,
        signals: StopSignals,
        say: Callable[[str], None],
    ) -> None:
        self._root = root
        self._host = host
        self._interface = interface
        self._directory = directory
        self._signals = signals
        self._say = say
        self._node = f"host-{os.urandom(8).hex()}"
        self._silence = Silence()
        self._last_present_s = time.monotonic()
        self._interruptions = 0
        self._job: Job | None = None
        self._production: ProductionFile | None = None
        self._states = StateTransfer()
        self._workers: dict[int, Begin] = {}
        """Workers that have not ended, by number."""
        self._logs: dict[Path, HostLog] = {}
        self._unhandled: list[FromRoot] = []
        self._reaches_run = False
        self._over = False
        self._given_up = False
        self._may_leave = False

    def run(self) -> bool:
        """Take part until the root says that the job is over, or has given this host up.

        Returns:
            Whether it has been given up, after a long silence: it may ask for a seat again.

        Raises:
            UsageError: the root does not want this host.
            RunFailed: there is no answer, or the root is gone; all workers here have been ended.
            Interruption: the user has asked twice, or before anything ran here.
        """
        with ControlClient(self._root, watched=True) as control:
            welcome = self._arrive(control)
            self._may_leave = welcome.may_leave
            job, host = one_line(welcome.experiment), one_line(welcome.host)
            self._say(f"joined {job} at {self._root.address} as {host}")
            with self._naming_root("a welcome"):
                (self._directory / "logs").mkdir()
                lay_down(welcome.files, self._directory)
                self._reaches_run = reaches_run(Path(welcome.run), self._root.key, self._say)
            with LocalNode(ServerProcess(preload=True)) as here:  # Other hosts may take their time.
                control.send(self._present(here))
                self._serve(control, here)
        if not self._given_up:
            self._say("the job is over")
        return self._given_up

    @contextlib.contextmanager
    def _naming_root(self, what: str) -> Iterator[None]:
        """Name the root if this host cannot use a message of it.

        Raises:
            RunFailed: in place of the error that the message caused.
        """
        try:
            yield
        except (OSError, ValueError, LookupError) as cause:
            raise RunFailed(
                f"the root at {self._root.address} sent {what} that cannot be used here: {describe(cause)}"
            ) from cause

    def _arrive(self, control: ControlClient) -> Welcome:
        here = Arrive.of_this_process(self._node, self._host.name, self._host.cores, self._interface)
        deadline, arrives = time.monotonic() + ARRIVE_LIMIT_S, 0.0
        while (now := time.monotonic()) < deadline:
            if now >= arrives:  # Again and again: the root of the session before may have taken the first.
                control.send(here)
                arrives = now + ARRIVE_EVERY_S
            self._listen(control, (self._signals.descriptor,))
            if control.turned_away:
                raise UsageError(f"the process that listens at {self._root.address} does not know this key")
            if self._signals.count:
                raise Interruption
            messages = self._receive(control)
            for i, message in enumerate(messages):
                if isinstance(message, Welcome):
                    self._unhandled = messages[i + 1 :]
                    return message
                if isinstance(message, Refuse):
                    raise UsageError(f"{self._root.address} refuses this host: {one_line(message.reason)}")
        raise RunFailed(f"nothing answered at {self._root.address} for {ARRIVE_LIMIT_S:g} s")

    def _serve(self, control: ControlClient, here: LocalNode) -> None:
        self._silence.end()
        deadline = float("inf")
        while True:
            if not self._unhandled:
                self._listen(control, (self._signals.descriptor, *here.descriptors))
            severed = control.severed  # Asked before the root's last messages are read.
            for message in (*self._unhandled, *self._receive(control)):
                self._handle(message, here)
            self._unhandled = []
            if self._given_up:
                return
            for news in here.check():
                self._pass_on(control, news)
            self._pass_on_signals(control)
            now = time.monotonic()
            if now - self._last_present_s > PRESENT_EVERY_S:
                self._last_present_s = now
                control.send(self._present(here))
                for number, own in self._workers.items():
                    self._pass_on_output(control, number, self._log_of(own).piece())
                    self._pass_on_states(control, own)
            if self._silence.is_too_long() or (severed and not self._over):
                raise RunFailed(f"the root at {self._root.address} is gone; its workers here have been ended")
            if here.failure and not self._over:
                raise RunFailed(here.failure)
            if self._over:
                deadline = min(deadline, now + END_LIMIT_S)
                if now > deadline or not self._workers:
                    return

    def _listen(self, control: ControlClient, also: tuple[int, ...]) -> None:
        control.wait(PRESENT_EVERY_S, also)
        self._signals.clear()

    def _receive(self, control: ControlClient) -> list[FromRoot]:
        messages = control.receive()
        if control.malformed:
            makes_no_sense = f"what {self._root.address} says makes no sense to this version of tianji"
            raise RunFailed(f"{makes_no_sense}: {control.malformed}")
        return messages

    def _handle(self, message: FromRoot, here: LocalNode) -> None:
        self._silence.end()
        match message:
            case Prepare():
                with self._naming_root("a job"):
                    self._job = job = self._adapted(Job.from_json(message.job))
                    self._production = ProductionFile(job.production, len(job.plan.pages))
                    here.send(message.model_copy(update={"job": self._job.to_json()}))
            case Begin():
                with self._naming_root("an order"):
                    title = self._known_job().title(message.rank)
                    for actor in self._known_job().plan.processes[message.rank].actors:
                        self._pages.begin(actor, message.incarnation)
                self._workers[message.number] = message
                here.send(message)
                self._say(f"starting {title}")
            case SavedState():
                with self._naming_root("a state"):
                    self._states.keep(self._known_job(), message)
            case Kill() | StartNoMore():
                here.send(message)
            case Refuse() if not self._given_up:
                self._say(
                    f"{one_line(message.reason)}; its workers here are ended, and it asks for a seat again"
                )
                self._given_up = True
            case Dismiss():
                self._over = True
                here.send(StartNoMore())
                for number in self._workers:
                    here.send(Kill(number=number))
            case _:
                pass  # A ping, or a message to workers.

    def _present(self, here: LocalNode) -> Present:
        return Present(
            node=self._node,
            reaches_run=self._reaches_run,
            suspended_server=here.suspended_server,
            suspended=tuple(filter(here.is_suspended, self._workers)),
        )

    def _known_job(self) -> Job:
        if self._job is None:
            raise LookupError("a worker is to start, and it was not said of which job")
        return self._job

    @property
    def _pages(self) -> ProductionFile:
        assert self._production is not None, "it is made when the job comes"
        return self._production

    def _adapted(self, job: Job) -> Job:
        """Replace the root's paths and addresses by those of this host."""
        return replace(
            job,
            directory=self._directory,
            run=job.run if self._reaches_run else self._directory,
            root=self._root,
            path=(*sys.path, str(self._directory / DIRECTORY)),
            production=self._directory / "production.bin",
            interface=self._interface,
        )

    def _pass_on(self, control: ControlClient, news: Began | Exited) -> None:
        """Pass news of a worker to the root; its end goes behind all of its output, with its counters."""
        update: dict[str, Any] = {"node": self._node}
        if isinstance(news, Exited):
            own = self._workers.pop(news.number)
            with contextlib.suppress(OSError):  # It may have begun no log.
                bound_log(self._known_job().log(own.rank))
            for piece in self._log_of(own).rest():
                self._pass_on_output(control, news.number, piece)
            self._pass_on_states(control, own)
            update["pages"] = report_pages(self._pages, self._known_job().plan.pages_of(own.rank))
        control.send(news.model_copy(update=update))

    def _log_of(self, own: Begin) -> HostLog:
        """Find the log of a worker: a later life of its rank goes on in the same file."""
        path = self._known_job().log(own.rank)
        return self._logs.setdefault(path, HostLog(path))

    def _pass_on_output(self, control: ControlClient, number: int, output: bytes) -> None:
        """Send a worker's output to the root: this host will forget it."""
        if output:
            control.send(Wrote(node=self._node, number=number, output=output))

    def _pass_on_states(self, control: ControlClient, own: Begin) -> None:
        """Send the root what a worker's roles have saved, unless they have saved it in the run directory."""
        if not self._reaches_run:
            for message in self._states.unsent(self._known_job(), own.rank):
                control.send(message)

    def _pass_on_signals(self, control: ControlClient) -> None:
        """Leave the job where hosts come and go; else pass a signal on to the root: it means the whole job.

        A second one ends this host at once.
        """
        if self._signals.count == self._interruptions:
            return
        self._interruptions = self._signals.count
        if self._may_leave:
            self._say(f"{self._signals.last}: leaving the job, which goes on")
            raise Interruption
        if self._interruptions > 1 or not self._workers:
            raise Interruption
        self._say(f"{self._signals.last}: asking the root to end the job")
        control.send(Terminate(rank=next(iter(self._workers.values())).rank))


def reaches_run(run: Path, key: JobKey, say: Callable[[str], None]) -> bool:
    """Whether this host has a job's run directory under the root's path, and may write there.

    Args:
        run: path of the run directory at the root.
        key: key of the job, which the run directory contains.
    """
    try:
        if JobKey.read(run / "job.key") != key or not os.access(run, os.W_OK):
            return False
    except UsageError:
        return False
    try:
        for warning in RunDirectory(run).check():
            say(warning)
    except UsageError as untrusted:
        say(str(untrusted))
        return False
    return True


class HostLog:
    """Reads a log that grows, from its beginning, each byte once.

    Args:
        most: maximum bytes to read as they come; the middle of a longer log is left out.
    """

    def __init__(self, path: Path, most: int = LOG_BYTES) -> None:
        self._path = path
        self._most = most
        self._read = 0

    def piece(self) -> bytes:
        """Read the next new bytes, ``PIECE_BYTES`` at most; none once ``most`` were read."""
        return self._take(min(PIECE_BYTES, self._most - self._read))

    def rest(self) -> Iterator[bytes]:
        """Read all new bytes in pieces after the worker's end; a line marks bytes that are left out."""
        while piece := self.piece():
            yield piece
        with contextlib.suppress(OSError):
            left_out = self._path.stat().st_size - self._read - PIECE_BYTES
            if left_out > 0:
                self._read += left_out
                yield b"\n[tianji: what comes here is left out]\n"
        if piece := self._take(PIECE_BYTES):
            yield piece

    def _take(self, most: int) -> bytes:
        if most <= 0:
            return b""
        try:
            with open(open_regular(self._path), "rb") as file:
                file.seek(self._read)
                taken = file.read(most)
        except OSError:  # The worker has written nothing yet.
            return b""
        self._read += len(taken)
        return taken
