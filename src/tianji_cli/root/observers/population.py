"""Population-based training at the root: compares members in rounds; the worst take over the best.

A round begins when the first member sends its state, and ends when all living members have. Its result
follows from the seed, the number of the round and the scores. No member waits for a round, unless actors
and learners are in step: members train on, and take over the state that the root sends once it arrives.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tianji_cli.config.edges import MEMBERS, TAKEOVERS
from tianji_cli.config.population import Explorer, Hyperparameters
from tianji_cli.config.schema import JobConfig, Population
from tianji_cli.files.lineage import REPLACED, ROUND, START, Lineage
from tianji_cli.files.saved import saved_members
from tianji_cli.launch.pool import WorkerProcess
from tianji_cli.plan.plan import ROOT_RANK
from tianji_cli.quantities import finite, number, written
from tianji_cli.root.observers.observer import Observer
from tianji_cli.root.running_job import RunningJob
from tianji_cli.telemetry.snapshot import MemberStanding, PopulationStanding
from tianji_cli.wire.members import Member, member_layout
from tianji_cli.wire.messages import Adopt, Register, Report, ToRoot
from tianji_cli.wire.reports import ExaminerReport
from tianji_transports.core import FULL, Claim, Full, Loan, Transport
from tianji_transports.errors import PeerLostError


def first_members(config: JobConfig) -> tuple[Hyperparameters, ...]:
    """Return the hyperparameters of all members at the start, which follow from the seed."""
    rng = np.random.default_rng([config.experiment.seed, *b"members"])
    return Explorer(config).first(config.distribution.groups, rng)


def members_of(config: JobConfig, checkpoints: Path | None) -> tuple[Hyperparameters, ...]:
    """Find the hyperparameters of all members: from their checkpoints, or the first ones.

    Args:
        checkpoints: checkpoints of a resumed run.

    Raises:
        CheckpointError: a checkpoint is damaged.
    """
    if config.population is None:
        return ()
    first = first_members(config)
    if checkpoints is None:
        return first
    saved = saved_members(checkpoints, len(first))
    return tuple(fresh if found is None else found for found, fresh in zip(saved, first, strict=True))


def choose(scores: Mapping[int, float], population: Population, rng: np.random.Generator) -> dict[int, int]:
    """Choose which members take over which others (Jaderberg et al., 2017, section 4.1.1).

    Args:
        scores: scores of the members that can be compared, by group.

    Returns:
        The member that each one takes over, by the group of the one that does.
    """
    if len(scores) < 2:
        return {}
    groups = sorted(scores)
    if population.selection == "tournament":
        rivals = {group: [other for other in groups if other != group] for group in groups}
        drawn = {group: others[int(rng.integers(len(others)))] for group, others in rivals.items()}
        return {group: other for group, other in drawn.items() if scores[other] > scores[group]}
    luck = dict(zip(groups, rng.random(len(groups)).tolist(), strict=True))  # Breaks ties.
    ranked = sorted(groups, key=lambda group: (scores[group], luck[group]))
    count = min(max(1, round(population.fraction * len(ranked))), len(ranked) // 2)
    best = ranked[-count:]
    return {group: best[int(rng.integers(count))] for group in ranked[:count]}


class Standings(Observer):
    """Keeps each member's hyperparameters and last score, and sends changes to its processes.

    Attributes:
        hyperparameters: the present hyperparameters of each member.
    """

    def __init__(self, job: RunningJob, lineage: Lineage) -> None:
        config, first = job.config, job.spec.members
        assert config.population is not None
        self.population = config.population
        evaluates = config.experiment.evaluation is not None
        self.metric = self.population.metric or ("evaluation" if evaluates else "mean_100")
        self.seed = config.experiment.seed
        self.explorer = Explorer(config)
        self.hyperparameters = list(first)
        self._job = job
        self._lineage = lineage
        self._scores: list[float | None] = [None] * len(first)
        self._takeovers = dict.fromkeys(range(len(first)), 0)
        self._parents: dict[int, int | None] = dict.fromkeys(range(len(first)))
        for kind, group, other in lineage.origins():
            if group < len(first):  # The session before may have had more groups.
                self._note_origin(kind, group, other)
        self._evaluated: dict[int, tuple[int, float]] = {}
        self._examined = (0, 0)
        members = [{"group": group, "hyperparameters": own} for group, own in enumerate(first)]
        self._write(START, metric=self.metric, members=members)

    @property
    def rounds(self) -> int:
        """Number of comparisons, over all sessions."""
        return self._lineage.rounds

    def on_message(self, message: ToRoot) -> None:
        """Send a new process the present hyperparameters, and record evaluations of the members' policies."""
        match message:
            case Register():
                group = self._job.plan.processes[message.rank].group
                if group is not None and self.hyperparameters[group] != self._job.spec.members[group]:
                    self._job.control.send(message.rank, Adopt(hyperparameters=self.hyperparameters[group]))
            case Report():
                for role_report in message.roles:
                    if isinstance(role_report, ExaminerReport):
                        self._note_evaluations(message.incarnation, role_report)

    def _note_evaluations(self, incarnation: int, report: ExaminerReport) -> None:
        """Record the evaluations that no earlier report had."""
        for one in report.newest:
            if (incarnation, one.number) > self._examined:
                self._examined = (incarnation, one.number)
                if (mean := finite(one.evaluation.mean)) is not None:
                    self._evaluated[one.group] = (one.version, mean)

    def on_exit(self, worker: WorkerProcess) -> None:
        """Forget the evaluations of a member whose learner has died: its policy is gone."""
        rank = worker.rank
        if rank in self._job.learners:
            self._evaluated.pop(self._job.learners[rank], None)

    def note_return(self, group: int, other: Member | None, rng: np.random.Generator) -> Hyperparameters:
        """Record that a member has been started anew as a copy of another.

        Args:
            other: the member that it copies; None if no member has sent its state yet.

        Returns:
            The new hyperparameters of the member.
        """
        if other is not None:
            self.change(group, self.explorer.near(other.hyperparameters, rng))
            self._note_origin(REPLACED, group, other.group)
        own, source = self.hyperparameters[group], None if other is None else other.group
        self._write(REPLACED, **{"group": group, "from": source, "hyperparameters": own})
        whose = "begins with its last checkpoint" if source is None else f"goes on from member {source}"
        self._job.event(f"member {group} is there again: it {whose}, with {written(own)}")
        return own

    def change(self, group: int, hyperparameters: Hyperparameters) -> None:
        """Give a member other hyperparameters, and send them to its processes."""
        self.hyperparameters[group] = hyperparameters
        for process in self._job.plan.trainers:
            if process.group == group:
                self._job.control.send(process.rank, Adopt(hyperparameters=hyperparameters))

    def score(self, shown: Member) -> float | None:
        """Return the score of a member; None if its present policy has no score yet."""
        if self.metric == "mean_100":
            return shown.score
        version, mean = self._evaluated.get(shown.group, (-1, 0.0))
        return mean if version >= shown.since else None

    def note_round(
        self,
        shown: Mapping[int, Member],
        scores: Mapping[int, float | None],
        chosen: Mapping[int, int],
        found: Mapping[int, Hyperparameters],
    ) -> None:
        """Record the result of a round, and send it to the processes and the user.

        Args:
            shown: the members that were compared.
            scores: scores of these members.
            chosen: the member that each one takes over.
            found: hyperparameters that members with a takeover go on with.
        """
        members = []
        for group, score in scores.items():
            other = chosen.get(group)
            self._scores[group] = score
            if other is not None:
                self.change(group, found[group])
                self._note_origin(ROUND, group, other)
            members.append(
                {
                    "group": group,
                    "env_steps": shown[group].env_steps,
                    "score": score,
                    "from": other,
                    "hyperparameters": self.hyperparameters[group],
                }
            )
        self._write(ROUND, round=self.rounds + 1, members=members)
        for group, other in chosen.items():
            own, better = scores[group], scores[other]
            assert own is not None
            assert better is not None
            self._job.event(
                f"round {self.rounds}: member {group} ({number(own)}) takes over member {other} "
                f"({number(better)}), and goes on with {written(found[group])}"
            )

    def standing(self) -> PopulationStanding:
        """Describe the present members."""
        members = zip(self.hyperparameters, self._scores, strict=True)
        return PopulationStanding(
            self.rounds,
            self.metric,
            tuple(
                MemberStanding(group, score, self._takeovers[group], self._parents[group], own)
                for group, (own, score) in enumerate(members)
            ),
        )

    def _note_origin(self, kind: str, group: int, other: int) -> None:
        self._takeovers[group] += kind == ROUND
        self._parents[group] = other

    def _write(self, kind: str, **facts: Any) -> None:
        try:
            self._lineage.add(kind, **facts)
        except OSError as cause:
            self._job.event(f"the lineage cannot be written: {cause}")


class Comparison(Observer):
    """Receives the members' states, compares them once all have come, and sends each member its answer.

    Args:
        transport: the root's endpoint, which is open.
        number: number of the job in its messages.
    """

    def __init__(self, job: RunningJob, standings: Standings, transport: Transport, number: int) -> None:
        self._job = job
        self._standings = standings
        self._transport = transport
        self._number = number
        self._ranks = {group: rank for rank, group in job.learners.items()}
        self._nbytes = transport.wiring.channel(MEMBERS, ROOT_RANK).max_bytes
        self._shown: dict[int, Member] = {}
        self._memory: dict[int, Member] = {}
        self._living = set(self._ranks)
        self._dead: set[int] = set()
        self._to_send: deque[tuple[int, Member]] = deque()
        job.overview.population = standings.standing()

    def on_turn(self) -> None:
        """Receive states, compare the members once all have come, and send answers."""
        for group in sorted(self._dead - self._job.lost.keys()):
            if self._is_complete(group):
                self._revive(group)
        while (claim := self._transport.probe(MEMBERS)) is not None:
            self._take(claim)
        if self._shown and self._living <= self._shown.keys() and not self._to_send:
            self._compare()
        self._send()

    def on_exit(self, worker: WorkerProcess) -> None:
        """Leave a member whose learner has died out of comparisons, until it was started anew."""
        rank = worker.rank
        if rank not in self._job.learners or self._job.outcome is not None:
            return
        group = self._job.learners[rank]
        self._transport.peer_lost(rank)
        self._living.discard(group)
        self._dead.add(group)
        self._shown.pop(group, None)
        self._to_send = deque(one for one in self._to_send if one[0] != group)

    def _is_complete(self, group: int) -> bool:
        """Whether all processes of a member have registered."""
        return self._job.ranks_of(group) - self._job.examiners <= self._job.members.registered

    def _revive(self, group: int) -> None:
        """Make a member that was started anew a copy of the best member whose state is known."""
        standings = self._standings
        scores = {
            other: standings.score(self._memory[other])
            for other in sorted(self._living & self._memory.keys())
        }
        # A member without a score is still better than a checkpoint: its hyperparameters fit its state.
        known = {other: -math.inf if score is None else score for other, score in scores.items()}
        best = self._memory[max(known, key=lambda other: known[other])] if known else None
        rng = np.random.default_rng([standings.seed, standings.rounds + 1, group, *b"replaced"])
        hyperparameters = standings.note_return(group, best, rng)
        self._dead.discard(group)
        self._living.add(group)
        self._job.overview.population = standings.standing()
        if best is not None:
            self._to_send.append((group, self._answer(best, 0, hyperparameters)))

    def _take(self, claim: Claim) -> None:
        group = self._job.learners[claim.source]
        if group not in self._living:
            claim.release()  # The member died after it had sent this; its successor sends its state anew.
            return
        again = group in self._shown
        if claim.nbytes != self._nbytes or again:
            why = "again in one round" if again else f"{claim.nbytes} bytes, not {self._nbytes}"
            self._job.rejected.add(claim, why)
            claim.release()
            return
        if group not in self._memory:
            self._memory[group] = Member(memoryview(bytearray(self._nbytes)))
        member = self._memory[group]
        claim.take(member.memory)
        rejection = member.rejection(self._number)
        if rejection is None and member.group != group:
            rejection = f"it is in the name of group {member.group}, not of group {group}"
        if rejection is not None:
            self._job.rejected.add(claim, rejection)
            return
        self._shown[group] = member

    def _compare(self) -> None:
        """End a round: choose takeovers, explore hyperparameters, and queue an answer for each member."""
        standings = self._standings
        shown = {group: self._shown[group] for group in sorted(self._living)}
        scores = {group: standings.score(member) for group, member in shown.items()}
        rng = np.random.default_rng([standings.seed, standings.rounds + 1, *b"round"])
        known = {group: score for group, score in scores.items() if score is not None}
        chosen = choose(known, standings.population, rng)
        before = list(standings.hyperparameters)
        found = {group: standings.explorer.near(before[other], rng) for group, other in chosen.items()}
        standings.note_round(shown, scores, chosen, found)
        self._job.overview.population = standings.standing()
        for group, own in shown.items():
            other, found_own = chosen.get(group), found.get(group)
            source = own if other is None else shown[other]
            self._to_send.append((group, self._answer(source, own.number, found_own)))
        self._shown.clear()

    def _answer(self, source: Member, to: int, hyperparameters: Hyperparameters | None) -> Member:
        """Build the answer to a member: another member's state, or that it goes on unchanged.

        Args:
            source: the member whose state is sent.
            to: number of the message that this answers; 0 if it answers none.
            hyperparameters: the receiver's new hyperparameters; None if it keeps them and its own state.
        """
        # A copy: the other member may send its next state before this one has room for the answer.
        nbytes = member_layout(0).nbytes if hyperparameters is None else self._nbytes
        answer = Member(memoryview(bytearray(nbytes)))
        if hyperparameters is not None:
            answer.state[:] = source.state
        answer.fill_header(
            self._number,
            group=source.group,
            number=to,
            env_steps=source.env_steps,
            since=source.since,
            score=source.score,
            returns=source.returns,
            hyperparameters=hyperparameters or {},
        )
        return answer

    def _send(self) -> None:
        """Send the queued answers that there is room for."""
        for _ in range(len(self._to_send)):
            group, answer = self._to_send.popleft()
            loan: Loan | Full = FULL
            # The endpoint takes a new process for dead until it has answered, so this tries each time.
            with contextlib.suppress(PeerLostError):
                loan = self._transport.loan(self._ranks[group], TAKEOVERS, answer.memory.nbytes)
            if isinstance(loan, Full):
                self._to_send.append((group, answer))
                continue
            loan.memory[:] = answer.memory
            self._transport.push(loan)
