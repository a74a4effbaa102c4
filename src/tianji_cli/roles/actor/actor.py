"""The actor: steps environments with the newest policy it has, and pushes fragments.

The policies of actors and evaluators see the newest frames, or stacks of the last few.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Discrete

from tianji_algos.fields import ACTION_MASK, leaves_choices
from tianji_cli.errors import RunFailed
from tianji_cli.files.counters import ProductionPage
from tianji_cli.plan.graph import INFERENCE
from tianji_cli.roles.role import Role, Trigger, rejected_by
from tianji_cli.wire.fragment import EPISODE_STEPS, Fragment, FragmentLayout
from tianji_cli.wire.parameters import PublishedPolicy
from tianji_cli.wire.reports import ActorReport
from tianji_envs.core import VectorEnvironment
from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.results import UnfitError, bounds_of, coarse_number, faults, missing_reset
from tianji_transports.core import Full, Loan, Transport

if TYPE_CHECKING:  # These import torch, which `tianji --help` does without.
    from pydantic import BaseModel

    from tianji_algos.core import Agent, Fields
    from tianji_cli.roles.actor.pace import PacedStep
    from tianji_cli.roles.actor.remote import RemoteExecutor

Returns = npt.NDArray[np.float64]
MASK_UNSEEN: Final = (
    f"info has an {ACTION_MASK} that policies do not see, so that they take actions it forbids: a part of "
    'the observations of this name would be right (environment.wrappers = ["ActionMask"] makes one)'
)
LARGEST: Final = float(np.finfo(np.float32).max)
"""Largest reward, since rewards are float32; returns are sums of rewards in float64."""


@dataclass(frozen=True)
class Outbox:
    """Rank (``dest``) and channel of an actor's fragments, receivers of copies, and slot of its policy."""

    transport: Transport
    dest: int
    channel: str
    slot: str
    copies: Sequence[Destination] = ()


class Actor(Role):
    """Steps environments into loaned memory; pushes each fragment as soon as it is full.

    Args:
        per_version: fragments to make with one policy before waiting for the next (``mode = "sync"``);
            None goes on with whatever policy is newest.
        pace: step of the environment that lasts as long as the config says; None for its own.
        network: the agent's network where it is apart; None where the actor has policies of its own.
        settings_with: makes the agent's settings from a member's hyperparameters.
    """

    name = "actor"

    def __init__(  # noqa: PLR0913 - an actor is where everything meets
        self,
        number: int,
        incarnation: int,
        job: int,
        *,
        agent: Agent,
        environment: VectorEnvironment,
        layout: FragmentLayout,
        outbox: Outbox,
        page: ProductionPage,
        seed: int,
        per_version: int | None,
        pace: PacedStep | None = None,
        network: RemoteExecutor | None = None,
        settings_with: Callable[[Mapping[str, Any]], BaseModel] | None = None,
        subtracts: bool = False,
    ) -> None:
        from tianji_algos import core  # noqa: PLC0415 - `tianji check` uses this module, and does without torch

        self._number = number
        self._incarnation = incarnation
        self._job = job
        self._agent = agent
        self._observe = None if type(agent).observe is core.Agent.observe else agent.observe
        self._environment = environment
        self._step_all = environment.step if pace is None else pace
        self._layout = layout
        self._outbox = outbox
        self._copies = Copies(outbox.transport, outbox.copies, layout.nbytes)
        self._page = page
        self._per_version = per_version
        self._network = network
        self._settings_with = settings_with
        self._version = -1
        self._made_with_version = 0
        self._sequence = 0
        self._sent = 0
        self._allowed: int | None = None
        self._step = 0
        self._loan: Loan | None = None
        self._fragment: Fragment | None = None
        self._fragment_began_ns = 0
        self._rows: Iterator[Fields] = iter(())
        self._stack = frame_stack(environment)
        self._returns = np.zeros(layout.num_envs, np.float64)
        self._ended = np.zeros(layout.num_envs, np.bool_)
        self._num_ended = 0
        self._began = np.zeros(layout.num_envs, np.int32)
        """Row of this fragment in which each episode began, negative in an earlier one; dtype as lengths."""
        self._lengths_before = -self._began  # Lengths of the episodes when this fragment began.
        self._bounds = bounds_of(environment.observation_space, layout.num_envs)
        self._subtracts = subtracts
        self._remarks = dict(environment.remarks)
        frames = environment.new_observations()
        environment.reset(seed, frames)
        info_keys = {*environment.info_keys} - {*(frames.dtype.names or ())}
        if ACTION_MASK in info_keys and isinstance(environment.action_space, Discrete):
            self._remarks["mask"] = MASK_UNSEEN
        self._stack.push(frames)
        self._stack.keep()

    @property
    def triggers(self) -> Sequence[Trigger]:
        """Send a full fragment; adopt a newer policy between two fragments."""
        push = Trigger(when=self.fragment_is_full, do=self.push_fragment)
        if self._network is not None:
            return (push,)
        return (push, Trigger(when=self.is_between_fragments, do=self.adopt_newest_policy))

    @property
    def unfinished(self) -> Fragment | None:
        """The fragment that is being filled; None between two of them."""
        return self._fragment

    def turn(self) -> bool:
        """Step every environment once, straight into the fragment."""
        if self._fragment is None and not self._begin_fragment():
            return False
        network = self._network
        if network is not None and (self.fragment_is_full() or not network.has_answer()):
            return False
        assert self._fragment is not None
        row = next(self._rows)
        shown = self._fragment.fields["observation"][self._environment.stack + self._step]
        # The step after an episode's end only shows the next one's first observation and is no experience.
        np.logical_not(self._ended, out=row["mask"])
        try:
            actions = self._agent.act(self._stack.seen, row)
            self._step_all(actions, shown, row["reward"], row["terminated"], row["truncated"])
        except UnfitError as unfit:  # A vector environment does not count the steps of its copies.
            where = f"environment {unfit.copy} of actor {self._number} {self._when(self._step, unfit.copy)}"
            raise BrokenEnvironmentError(f"{unfit} ({where})") from unfit
        except Exception as cause:
            self._check_numbers(cause)  # NaN in an observation may make an agent fail anywhere.
            raise
        self._page.count(self._layout.num_envs - self._num_ended)
        if self._num_ended:
            self._agent.begin_episodes(self._ended)
            self._stack.forget(self._ended)
        self._stack.push(shown)
        self._note_ends(row)
        if self._observe is not None:
            self._observe(row)
        self._step += 1
        if network is not None:
            network.ask(self._stack.seen, last=self.fragment_is_full())
        return True

    def _note_ends(self, row: Fields) -> None:
        """Write returns (or game scores), lengths, wins and metrics of the episodes that end in this row."""
        np.logical_or(row["terminated"], row["truncated"], out=self._ended)
        ends = self._ended.nonzero()[0]  # Few of many episodes end in a step: indices are faster than flags.
        self._num_ended = len(ends)
        games, won, metrics = self._environment.games, self._environment.won, self._environment.metrics
        if won is not None and self._num_ended:
            np.copyto(row["won"], won)
        if metrics is not None and self._num_ended:
            np.copyto(row["metrics"], metrics)
        if games is not None:
            if self._num_ended:
                self._write_ends(row, games.score, games.over.nonzero()[0])
                self._began[self._ended & ~games.over] += 1  # A reset row is no step of a game.
            return
        self._returns += row["reward"]
        if self._num_ended:
            self._write_ends(row, self._returns, ends)
            self._returns[ends] = 0.0

    def _write_ends(self, row: Fields, returns: Returns, ends: npt.NDArray[np.intp]) -> None:
        """Write returns and lengths of ended episodes.

        Raises:
            BrokenEnvironmentError: a return is not finite; NaN marks rows in which no episode ended.
        """
        ended = returns[ends]
        if not math.isfinite(ended.dot(ended)) and (broken := np.flatnonzero(~np.isfinite(ended))).size:
            number, found = int(ends[broken[0]]), ended[broken[0]]
            raise BrokenEnvironmentError(
                f"the return of an episode in environment {number} of actor {self._number} is {found}: "
                f"a reward was not finite, or beyond {LARGEST:.2g}; smaller ones would be right"
            )
        row["episode_return"][ends] = ended
        row[EPISODE_STEPS][ends] = self._step + 1 - self._began[ends]
        self._began[ends] = self._step + 2  # The next step only shows a first observation.

    def _check_numbers(self, cause: Exception | None = None) -> None:
        """Reject numbers that are not finite or outside their space, before a learner learns from them.

        This checks a whole fragment at once: checking each step would take an actor 5 % of its time.

        Raises:
            BrokenEnvironmentError: names the first such number.
            RunFailed: the agent's ``observe`` has made a reward such a number.
        """
        assert self._fragment is not None
        fields, stack, made = self._fragment.fields, self._environment.stack, self._step
        new = stack - (self._sequence == 0)  # The very first observation was in no fragment before.
        shown = fields["observation"][new : stack + made], "observation", new - stack
        for values, called, after in (shown, (fields["reward"][:made], "reward", 0)):
            for row, number, gave, wanted, outside in faults(values, self._bounds, called):
                who, when = f"environment {number} of actor {self._number}", self._when(row + after, number)
                words = f"{who} {gave} {when}: {wanted}"
                if called == "reward" and self._is_made_by_agent(number):
                    agent = type(self._agent).__name__
                    raise RunFailed(f"{agent}.observe() {gave} of {who} {when}: {wanted}") from cause
                if not outside:
                    raise BrokenEnvironmentError(words) from cause
                self._remarks.setdefault(  # Mostly the environment declares its bounds too narrow.
                    "bounds",
                    f"{words} ({outside:,} such numbers in {made} steps): they are learnt from as they are; "
                    "bounds as wide as what is shown would be right",
                )
                # Locating each such number would take far longer than seeing that there is none.
                self._bounds = {name: one for name, one in self._bounds.items() if one.are_whole}

    def _is_made_by_agent(self, number: int) -> bool:
        """Whether a reward that is not finite is one by the agent's ``observe``: it is in no return."""
        has_returns = self._observe is not None and self._environment.games is None
        return has_returns and math.isfinite(self._returns[number])

    def _when(self, row: int, number: int) -> str:
        """Name the step of its episode that an environment was in at a row, as its author counts."""
        assert self._fragment is not None
        ends = np.flatnonzero(~np.isnan(self._fragment.fields["episode_return"][: max(row, 0), number]))
        began, before = (ends[-1] + 1, 0) if len(ends) else (0, self._lengths_before[number])
        steps = before + np.count_nonzero(self._fragment.fields["mask"][began : row + 1, number])
        return f"in step {steps} of its episode" if steps else "when it was reset"

    def _check_choices(self, fields: Fields) -> None:
        """Reject observations that leave no action to choose, except those that end an episode.

        Raises:
            BrokenEnvironmentError: names the first such observation.
        """
        shown = fields["observation"]
        if ACTION_MASK not in (shown.dtype.names or ()):
            return
        leaves = leaves_choices(shown[ACTION_MASK][: self._step], self._environment.action_space)
        without = fields["mask"] & ~leaves
        if without.any():
            row, number = np.argwhere(without)[0].tolist()
            raise BrokenEnvironmentError(
                f"environment {number} of actor {self._number} gave an {ACTION_MASK} that forbids all "
                f"actions {self._when(row - 1, number)}; one at least would be right"
            )

    def fragment_is_full(self) -> bool:
        """Whether ``send_size`` steps of every environment are written."""
        return self._step == self._layout.steps

    def push_fragment(self) -> bool:
        """Send the fragment; the next turn asks for memory again, and so learns whether it was claimed.

        Returns False while the network, where it is apart, owes the outputs for the last observation.
        """
        if self._network is not None and not self._network.has_answer():
            return False
        assert self._fragment is not None
        assert self._loan is not None
        self._check_numbers()
        fields = self._fragment.fields
        if found := missing_reset(
            ~fields["mask"], fields["reward"], fields["terminated"], fields["truncated"]
        ):
            raise BrokenEnvironmentError(f"environment {found[0]} of actor {self._number} {found[1]}")
        self._check_choices(fields)
        if self._sequence == 0:
            shown = fields["observation"][self._environment.stack - 1 :]
            if coarse := coarse_number(shown, subtracts=self._subtracts):
                self._remarks["coarse"] = coarse
        self._agent.finish(fields, self._stack.seen)
        samples = int(np.count_nonzero(fields["mask"]))
        self._fragment.header["samples"] = samples
        self._fragment.header["age_ns"] = time.monotonic_ns() - self._fragment_began_ns
        self._page.push()
        self._let_go()
        # Copies go first, so that the buffer has no fragment that their receivers will not get.
        self._copies.push(self._loan.memory)
        self._outbox.transport.push(self._loan)
        self._loan = self._fragment = None
        self._began -= self._step
        self._step = 0
        self._sequence += 1
        self._sent += samples
        self._made_with_version += 1
        return True

    def is_between_fragments(self) -> bool:
        """Whether the policy may change: a fragment holds the steps of one policy."""
        return self._fragment is None

    def adopt_newest_policy(self) -> bool:
        """Look for a newer policy; never wait for one."""
        claim = self._outbox.transport.latest(self._outbox.slot, newer_than=self._version)
        if claim is None:
            return False
        policy = PublishedPolicy(claim.view())
        self._agent.adopt(policy.parameters)
        self._agent.schedule(int(policy.env_steps))
        self._version = claim.version
        self._made_with_version = 0
        claim.release()
        return True

    def adopt_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Give the agent other settings; its new policy arrives through the slot as usual."""
        if self._settings_with is not None:
            self._agent.adopt_settings(self._settings_with(hyperparameters))

    def note_actors(self, actors: Sequence[int]) -> None:
        """Take this actor's place in the range of exploration among the group's actors that are there."""
        num_envs = self._environment.num_envs
        self._agent.explore_as(actors.index(self._number) * num_envs, len(actors) * num_envs)

    def allow(self, fragments: int | None) -> None:
        """Limit the number of further fragments; the actor still finishes and sends the present one."""
        self._allowed = fragments

    def report(self) -> ActorReport:
        """Report frames that the endpoint (which actors may share) rejected, waiting times, and remarks."""
        rejected, waited_s = {"endpoint": rejected_by(self._outbox.transport)}, self._copies.waited_s
        if self._network is not None:
            rejected["answers"] = self._network.rejected.reported
            waited_s = waited_s | {INFERENCE: self._network.waited_s}
        return ActorReport(
            rejected=rejected,
            waited_s=waited_s,
            frames_per_step=self._environment.frames_per_step,
            remarks=self._remarks,
        )

    def stop(self) -> None:
        """Give up the unfinished fragment: its samples count as dropped."""
        if self._fragment is not None:
            self._page.drop()
            self._let_go()
        if self._loan is not None:
            self._loan.abandon()
        self._copies.abandon()
        self._loan = self._fragment = None

    def close(self) -> None:
        """Close the environments."""
        self._environment.close()

    def _begin_fragment(self) -> bool:
        waiting = self._per_version is not None and self._made_with_version >= self._per_version
        unable = self._version < 0 and self._network is None
        if unable or waiting or self._allowed == 0:
            return False
        if not self._take_memory():
            return False
        if self._network is not None:
            # Only now, so that the version is no older than a policy of its own would be.
            if not self._network.begins(self._stack.seen):
                return False
            self._version = self._network.version
            self._agent.schedule(self._network.env_steps)
        if self._allowed is not None:
            self._allowed -= 1
        assert self._loan is not None
        self._fragment = Fragment(self._layout, self._loan.memory)
        self._fragment.begin(
            job=self._job,
            actor=self._number,
            incarnation=self._incarnation,
            sequence=self._sequence,
            before=self._sent,
            version=self._version,
        )
        now_ns = time.monotonic_ns()
        self._fragment_began_ns = now_ns
        self._page.begin(now_ns)
        fields = self._fragment.fields
        self._stack.write(fields["observation"][: self._environment.stack])
        fields["episode_return"].fill(np.nan)
        fields[EPISODE_STEPS].fill(0)
        np.subtract(self._ended, self._began, out=self._lengths_before)  # A reset row is no step.
        if self._environment.won is not None:
            fields["won"].fill(False)
        if self._environment.metrics is not None:
            fields["metrics"].fill(0.0)
        self._agent.begin(fields)
        self._rows = _rows(self._layout, fields)
        return True

    def _let_go(self) -> None:
        """Drop all references into the memory of a fragment."""
        self._stack.keep()
        self._rows = iter(())

    def _take_memory(self) -> bool:
        """Get memory for the fragment and its copies; return False, and keep it, until all of it is there."""
        if self._loan is None:
            loan = self._outbox.transport.loan(self._outbox.dest, self._outbox.channel, self._layout.nbytes)
            if isinstance(loan, Full):
                return False
            self._loan = loan
        return self._copies.ask()


def _rows(layout: FragmentLayout, fields: Fields) -> Iterator[Fields]:
    """Iterate over a fragment's steps, each as the fields that ``Agent.act`` takes."""
    each = [
        repeat(fields[spec.name][0]) if spec.once else iter(fields[spec.name][spec.history :])
        for spec in layout.fields
    ]
    names = [spec.name for spec in layout.fields]
    return (dict(zip(names, row, strict=True)) for row in zip(*each, strict=False))


@dataclass(frozen=True)
class Destination:
    """One receiver of copies: its name, its rank, and the channel that it probes."""

    role: str
    dest: int
    channel: str


class Copies:
    """Memory for the copies of one fragment, asked for before the fragment is begun.

    A slow receiver puts back-pressure on its actors as the buffer does: before the first step of a fragment,
    when nothing exists yet that could be lost or counted twice.

    Attributes:
        waited_s: seconds of waiting for slow receivers, by role.
    """

    def __init__(self, transport: Transport, destinations: Sequence[Destination], nbytes: int) -> None:
        self._transport = transport
        self._destinations = destinations
        self._nbytes = nbytes
        self._loans: list[Loan] = []
        self._behind = ""
        self._since = 0.0
        self.waited_s: dict[str, float] = {}

    def ask(self) -> bool:
        """Get memory for all copies; return False, and keep the memory so far, while a receiver is behind."""
        self._count_waiting()
        for to in self._destinations[len(self._loans) :]:
            loan = self._transport.loan(to.dest, to.channel, self._nbytes)
            if isinstance(loan, Full):
                self._behind, self._since = to.role, time.monotonic()
                return False
            self._loans.append(loan)
        return True

    def push(self, memory: memoryview) -> None:
        """Send a copy of a full fragment to every destination; ``ask`` has returned True."""
        for loan in self._loans:
            loan.memory[:] = memory
            self._transport.push(loan)
        self._loans.clear()

    def _count_waiting(self) -> None:
        if self._behind:
            waited_s = time.monotonic() - self._since
            self.waited_s[self._behind] = self.waited_s.get(self._behind, 0.0) + waited_s
            self._behind = ""

    def abandon(self) -> None:
        """Give the memory back: there will be no fragment."""
        for loan in self._loans:
            loan.abandon()
        self._loans.clear()


class NewestFrames:
    """No stack: a policy sees the newest frames of N environments, where they were written.

    Attributes:
        seen: ``[N, *frame]``.
    """

    def __init__(self, environment: VectorEnvironment) -> None:
        self._own = np.zeros(*_frames(environment))
        self.seen = self._own

    def push(self, frames: npt.NDArray[Any]) -> None:
        """See the newest frames ``[N, *frame]``."""
        self.seen = frames

    def forget(self, where: npt.NDArray[np.bool_]) -> None:
        """Do nothing, since the policy sees no earlier frames."""

    def keep(self) -> None:
        """Copy the frames into memory of this object, since the fragment's memory goes away."""
        np.copyto(self._own, self.seen)
        self.seen = self._own

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Write the seen frames as rows ``[1, N, *frame]``."""
        np.copyto(rows[0], self.seen)


class StackedFrames:
    """Stacks of the last frames of N environments.

    Attributes:
        seen: ``[N, S, *frame]``, oldest first; frames from before an environment's episode are zeros.
            Overwritten from step to step.
    """

    def __init__(self, environment: VectorEnvironment) -> None:
        (num_envs, *shape), dtype = _frames(environment)
        self.seen = np.zeros((num_envs, environment.stack, *shape), dtype)

    def push(self, frames: npt.NDArray[Any]) -> None:
        """Replace the oldest frame of each stack by the newest, ``[N, *frame]``."""
        self.seen[:, :-1] = self.seen[:, 1:]
        self.seen[:, -1] = frames

    def forget(self, where: npt.NDArray[np.bool_]) -> None:
        """Zero the stacks whose next frame is the first of an episode, ``where [N]``."""
        self.seen[where] = 0

    def keep(self) -> None:
        """Do nothing, since the stacks have memory of their own."""

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Write the seen stacks as rows ``[S, N, *frame]``."""
        np.copyto(rows, self.seen.swapaxes(0, 1))


def frame_stack(environment: VectorEnvironment) -> NewestFrames | StackedFrames:
    """Build the frames that a policy sees: stacks if the environment asks for them, else the newest."""
    return StackedFrames(environment) if environment.stack > 1 else NewestFrames(environment)


def _frames(environment: VectorEnvironment) -> tuple[tuple[int, ...], Any]:
    space = environment.observation_space
    assert space.shape is not None
    return (environment.num_envs, *space.shape), space.dtype
