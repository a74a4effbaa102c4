"""Deaths of processes: whether the root restarts one, goes on without its group, or ends the job."""

from __future__ import annotations

from collections.abc import Set

from tianji_cli.errors import ProcessExit
from tianji_cli.launch.pool import WorkerProcess
from tianji_cli.root.accounting import as_learnt, recently_dropped, reconcile
from tianji_cli.root.running_job import Phase, RunningJob
from tianji_cli.telemetry.snapshot import Account
from tianji_cli.wire.messages import Begin, Failed, PeerLost, Stop
from tianji_cli.wire.reports import Source


class Deaths:
    """Decides what the end of each process means for the job, and remembers what was lost with it.

    An actor, examiner or restartable user role that a signal killed is restarted. A member of a population is
    started anew with all its processes. The job goes on without actors whose host is lost, until another
    comes; without one of several buffers of a group and the actors before it; and without any group except
    group 0, which has the job's checkpoints; not where an MPI launcher ends all processes when one dies.
    Everything else ends the job.
    """

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        buffers = (process.rank for process in job.plan.carrying("buffer"))
        self._buffers = {rank: job.plan.upstream(rank) for rank in buffers}
        """Ranks whose fragments come to each buffer."""
        self._holders = job.plan.fragment_holders()
        self._lost_receiver = False
        self._missing: set[int] = set()
        """Ranks of ``_holders`` that have died, and have not come again."""
        self._written_off: dict[Source, int] = {}
        """Samples of each actor that a holder's death may have taken: those in fragments pushed before."""
        self._raised: dict[int, str] = {}
        """Errors of actors that the root will start again, by rank."""
        self._replacing: set[int] = set()
        """Groups whose processes are ending before the root starts them anew."""
        self._replaced: set[int] = set()
        """Groups whose processes the root has started anew, and which are not complete yet."""

    def note_failure(self, message: Failed) -> None:
        """Handle an error of a role, whose process ends now."""
        job, rank = self._job, message.rank
        job.members.sent_last.add(rank)
        job.overview.workers[rank].state = "failed"
        if self._is_given_up(rank):
            return
        if self._outlives_errors(rank):
            self._raised[rank] = f": {message.cause}"
        else:
            job.fail(job.cause(rank, f": {message.cause}"))

    def handle(self, worker: WorkerProcess, exit_: ProcessExit) -> None:
        """Handle the end of a process, whose last messages have been received."""
        job, rank = self._job, worker.rank
        is_lost = job.pool.is_lost(rank)
        if is_lost:
            job.overview.unsure.add(rank)
        # A process has done all its work by its last report, however it ends afterwards.
        has_stopped = rank in job.members.stopped
        in_order = has_stopped and (exit_.status is None or exit_.status <= 0)
        view = job.overview.workers[rank]
        view.pid, view.state = None, "done" if in_order else str(exit_)
        if in_order and job.outcome is not None:
            return
        self.note(worker.begin, in_order=has_stopped)
        is_announced = worker.killed or (worker.hung and job.phase is Phase.EVALUATING)
        if is_announced or self._is_given_up(rank):
            self._start_replaced()
            return  # The root told the user why when it decided that.
        if is_lost and self._may_leave_seat(rank):
            self._leave_seat(worker)
            return
        raised = self._raised.pop(rank, "")
        cause = job.cause(rank, raised or f" {exit_.error or exit_}")
        comes_again = rank in job.producers | job.examiners | job.restartable
        left = exit_.status is not None and self._outlives_errors(rank)
        gone = is_lost or (exit_.by_signal and not comes_again)
        if gone and self._may_replace(rank):
            self._replace_group(rank, cause)
        elif gone and self._may_lose_buffer(rank):
            self._lose_buffer(rank, cause)
        elif gone and self._can_continue_without(rank) and self.lose({rank}, cause):
            self._drop_group(job.plan.processes[rank].group)
        elif not comes_again or not (exit_.by_signal or raised or left or (is_lost and job.outcome)):
            job.died |= gone and job.phase is Phase.TRAINING and job.outcome is None
            job.fail(cause)
        elif job.outcome is None:
            self._restart(worker.begin, cause)
        elif not worker.hung:
            job.event(f"{cause} while it was stopping")

    def lose(self, ranks: Set[int], cause: str) -> bool:
        """Give up the groups of some ranks, and tell the user; return False if the job needs one of them."""
        groups = {self._job.plan.processes[rank].group for rank in ranks}
        if self._job.bound or not all(groups):
            return False
        for group in groups - self._job.lost.keys():
            assert group is not None
            self._job.lost[group] = cause
            self._job.event(f"group {group} is lost: {cause}; the others go on")
        return True

    def note(self, died: Begin, *, in_order: bool) -> None:
        """Record a process that has ended early; ``in_order`` if it had sent its last report."""
        job = self._job
        process = job.plan.processes[died.rank]
        job.killed.update((actor, died.incarnation) for actor in process.actors)
        self._lost_receiver |= died.rank in self._buffers.keys() | job.learners.keys() and not in_order
        if died.rank in self._holders and not in_order:
            self._missing.add(died.rank)

    def note_return(self, rank: int) -> None:
        """Note that a process has registered: what the one before it had, and did not pass on, is lost."""
        if rank in self._missing:
            self._missing.discard(rank)
            actors, passed = self._actors_before({rank}), self._job.overview.passed()
            for source, production in self._job.overview.productions().items():
                if source[0] in actors:
                    self._written_off[source] = production.finished - recently_dropped(source, passed)

    @property
    def orphaned(self) -> set[int]:
        """Numbers of the actors whose buffer has died and is not there again, or a role before it."""
        return self._actors_before(self._missing)

    def _actors_before(self, ranks: Set[int]) -> set[int]:
        """Find the numbers of the actors whose fragments come to some ranks."""
        plan = self._job.plan
        upstream = {before for rank in ranks for before in (rank, *plan.upstream(rank))}
        return {actor for rank in upstream for actor in plan.processes[rank].actors}

    def account(self) -> Account:
        """Return the sample account, after everything stopped."""
        overview = self._job.overview
        overview.settle_unsure()
        productions, receptions = overview.productions(), overview.receptions()
        orphaned = self.orphaned
        written_off = self._written_off | {
            source: production.finished for source, production in productions.items() if source[0] in orphaned
        }
        account = reconcile(productions, receptions, self._job.killed, written_off, overview.passed())
        if not self._lost_receiver:
            return account
        return as_learnt(account, overview.received, all_known=not overview.unsure)

    def described(self, reason: str) -> str:
        """Add the lost groups and buffers to the reason of the job's end."""
        lost = list(map(self._job.title, sorted(self._job.lost_ranks & self._buffers.keys())))
        if self._job.lost:
            names = " and ".join(map(str, sorted(self._job.lost)))
            lost.append(f"group{'s' if len(self._job.lost) > 1 else ''} {names}")
        return f"{reason}; without {', '.join(lost)}, lost on the way" if lost else reason

    def note_introduced(self) -> None:
        """Note that the groups that were started anew are complete, and others may die without them."""
        self._replaced.clear()

    def _outlives_errors(self, rank: int) -> bool:
        """Whether the job survives an error, or an exit, of a rank's environment: actors restart."""
        restarts = self._job.config.environment.on_error == "restart" and not self._job.bound
        return restarts and rank in self._job.producers

    def _is_given_up(self, rank: int) -> bool:
        """Whether a rank belongs to a group that is lost, or that is ending to be started anew."""
        group = self._job.plan.processes[rank].group
        return (
            rank in self._job.lost_ranks
            or group in self._job.lost
            or (group in self._replacing and rank not in self._job.examiners)
        )

    def _restart(self, died: Begin, cause: str) -> None:
        job, rank = self._job, died.rank
        if not job.pool.may_restart(job.worked_s):
            most = job.config.distribution.max_restarts_per_minute
            job.fail(f"{cause}; restarts are limited to {most} a minute")
            return
        evaluation = job.config.experiment.evaluation
        filmed = rank in job.examiners and evaluation is not None and evaluation.video > 0
        job.event(f"{cause}; restarting it" + (" without films" if filmed else ""))
        job.overview.keep(rank)
        self._announce(rank, job.plan.to_notify(rank))
        job.start(rank, died.incarnation + 1)

    def _may_lose_buffer(self, rank: int) -> bool:
        """Whether a rank is one of several buffers, the learner has learnt, and another one is left."""
        job = self._job
        group = job.plan.processes[rank].group
        learner = job.overview.learners().get(group or 0)
        others = {process.rank for process in job.plan.carrying("buffer", group)} - job.lost_ranks - {rank}
        trains = job.phase is Phase.TRAINING and job.outcome is None and not job.bound
        # Before its first update the learner waits for all buffers.
        return (
            trains
            and rank in self._buffers
            and bool(others)
            and learner is not None
            and learner.session_consumed > 0
        )

    def _lose_buffer(self, rank: int, cause: str) -> None:
        """Go on without a buffer, and without the processes whose fragments it received."""
        job = self._job
        upstream = self._buffers[rank]
        held = job.overview.lose_replay(rank)
        replay = f"{held:,} env steps of the replay and " if held else ""
        job.event(f"{cause}; it is lost, with {replay}{job.plan.titles(upstream)}; the others go on")
        gone = {rank} | upstream
        job.lost_ranks |= gone
        job.vacant -= gone
        job.pool.kill(upstream)
        job.members.leave(gone)
        self._announce_loss(gone)

    def _may_leave_seat(self, rank: int) -> bool:
        """Whether the job goes on without an actor whose host is lost: its buffer has others elsewhere."""
        job, plan = self._job, self._job.plan
        if job.bound or job.outcome is not None or job.config.distribution.mode == "sync":
            return False
        others = job.producers - job.lost_ranks - plan.producers_on(plan.processes[rank].host)
        fed = [upstream for upstream in self._buffers.values() if rank in upstream]
        return rank in job.producers and all(upstream & others for upstream in fed)

    def _leave_seat(self, worker: WorkerProcess) -> None:
        """Go on without an actor until a host comes for its seat; what its process still sends is refused."""
        job, rank = self._job, worker.rank
        host = job.plan.processes[rank].host
        lost = f"{host} is lost, with {job.plan.titles(job.plan.producers_on(host))}"
        job.show_once(worker.node, f"{lost}; the others go on, and a host that joins takes its place")
        job.leave_seats({rank})
        job.control.send(rank, Stop())  # It may have been cut off for a while.
        self._announce(rank, job.plan.to_notify(rank), counts_from=worker.begin.incarnation + 1)

    def _drop_group(self, group: int | None) -> None:
        """Go on without a group that is lost."""
        ranks = self._job.ranks_of(group)
        self._job.vacant -= ranks
        self._job.pool.kill(ranks)
        self._job.members.leave(ranks)
        self._announce_loss(ranks)

    def _announce_loss(self, gone: Set[int]) -> None:
        """Tell the living neighbours of processes that do not come again."""
        neighbours = self._job.plan.neighbours()
        for rank in sorted(gone):
            self._announce(rank, neighbours[rank] - gone)

    def _announce(self, rank: int, ranks: Set[int], counts_from: int = 0) -> None:
        """Tell those of some ranks that live of the death of one; older fragments of it do not count."""
        for other in sorted(ranks & self._job.living):
            self._job.control.send(other, PeerLost(rank=rank, counts_from=counts_from))

    def _can_continue_without(self, rank: int) -> bool:
        """Whether the job has begun and can go on without a rank's group; a population needs one at least."""
        is_last = self._job.config.population is not None and not self._others_live(rank)
        return self._job.phase is not Phase.STARTING and not is_last

    def _others_live(self, rank: int) -> bool:
        """Whether a group other than that of a rank is alive: neither lost nor being started anew."""
        plan = self._job.plan
        gone = self._replacing | self._replaced | self._job.lost.keys()
        return bool(set(plan.groups) - gone - {plan.processes[rank].group})

    def _may_replace(self, rank: int) -> bool:
        """Whether the root can start the population member of a rank anew, as a copy of another."""
        job = self._job
        trains = job.phase is Phase.TRAINING and job.outcome is None
        if job.config.population is None or job.bound or not trains:
            return False
        if not self._others_live(rank) or job.pool.is_lost(rank):
            return False
        may_restart = job.pool.may_restart(job.worked_s)
        if not may_restart:
            most, group = job.config.distribution.max_restarts_per_minute, job.plan.processes[rank].group
            job.event(f"member {group} is not started anew: restarts are limited to {most} a minute")
        return may_restart

    def _replace_group(self, rank: int, cause: str) -> None:
        """Kill the remaining processes of a dead member; the root starts it anew when they are all gone."""
        job = self._job
        group = job.plan.processes[rank].group
        assert group is not None
        job.event(f"{cause}; member {group} is started anew")
        ranks = job.ranks_of(group) - job.examiners
        self._replacing.add(group)
        job.pool.kill(ranks)
        job.members.leave(ranks)
        for examiner in job.examiners:
            for learner in ranks & job.learners.keys():
                job.control.send(examiner, PeerLost(rank=learner))
        self._start_replaced()

    def _start_replaced(self) -> None:
        """Start the processes of dead members, as soon as all their old processes are gone."""
        job = self._job
        if job.phase is not Phase.TRAINING or job.outcome is not None:
            return
        for group in sorted(self._replacing):
            ranks = job.ranks_of(group) - job.examiners
            if not ranks & job.pool.ranks:
                self._replacing.discard(group)
                self._replaced.add(group)
                self._missing -= ranks  # Its old actors count as killed already.
                learner_report = job.overview.learners().get(group)
                reached = 0 if learner_report is None else learner_report.env_steps
                for old in sorted(ranks - job.lost_ranks):
                    job.overview.keep(old)
                    job.start(old, job.members.incarnation(old) + 1, reached)
