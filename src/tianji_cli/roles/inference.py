"""The inference role: runs the policy's network for actors that only step environments (SEED RL, Figure 1c).

A pass takes whatever requests are there, and waits up to ``max_wait_ms`` for more. The role remembers nothing
of an actor but the version that its fragment began with: a recurrent network's memory comes with each
request, and goes back with the answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Executor, Fields
from tianji_algos.fields import FieldSpec
from tianji_cli.config.edges import ANSWERS, REQUESTS
from tianji_cli.config.schema import Inference as InferenceSettings
from tianji_cli.plan.graph import INFERENCE
from tianji_cli.roles.records import Received, RecordInlet, RecordOutlet, record_layout
from tianji_cli.roles.role import Role, Trigger, rejected_by
from tianji_cli.wire.parameters import PublishedPolicy
from tianji_cli.wire.records import RecordLayout
from tianji_cli.wire.reports import Rejected, UserReport
from tianji_transports.core import Full, Transport

Array = npt.NDArray[Any]

OBSERVATION: Final = "observation"
REQUEST_ID: Final = ("actor", "life", "number")
"""Fields of a request that its answer repeats: actor, incarnation of its process, number of the request."""


@dataclass(frozen=True)
class PassLayout:
    """Layout of one pass of the network: what a request and its answer hold, for N environments of an actor.

    Attributes:
        request: whose it is, whether a fragment begins with it or it is the last of one, the observations and
            the network's memory.
        answer: whose it is, version of the policy and the env steps that it was published with, the outputs,
            the memory after the pass, and the statistics that observations were normalised with.
        num_envs: N.
        outputs: names of the network's outputs in an answer, in their order.
        memory: names of the fields of a fragment that hold the network's memory.
        statistics: names of those that hold statistics, once for all environments.
    """

    request: RecordLayout
    answer: RecordLayout
    num_envs: int
    outputs: tuple[str, ...]
    memory: tuple[str, ...]
    statistics: tuple[str, ...]

    @classmethod
    def of(
        cls,
        observation: Array,
        outputs: Sequence[Array],
        memory: Sequence[FieldSpec],
        statistics: Sequence[FieldSpec],
    ) -> PassLayout:
        """Lay out passes of such observations ``[N, ...]`` and outputs, each of N or a multiple of N rows."""
        rows, flag, whole = len(observation), np.dtype(np.bool_), np.dtype(np.int64)
        numbers = [FieldSpec(name, whole) for name in (*REQUEST_ID, "version", "env_steps")]
        remembered = [FieldSpec(field.name, field.dtype, (rows, *field.shape)) for field in memory]
        given = [FieldSpec(f"output-{n}", one.dtype, one.shape) for n, one in enumerate(outputs)]
        seen = FieldSpec(OBSERVATION, observation.dtype, observation.shape)
        ends = FieldSpec("begins", flag), FieldSpec("last", flag)
        return cls(
            record_layout([*numbers[: len(REQUEST_ID)], *ends, seen, *remembered]),
            record_layout([*numbers, *given, *remembered, *(replace(one, once=False) for one in statistics)]),
            rows,
            tuple(field.name for field in given),
            tuple(field.name for field in memory),
            tuple(field.name for field in statistics),
        )


class HeldPolicy:
    """A version of the policy, and the requests that its next pass answers.

    Args:
        most: most requests of a pass.

    Attributes:
        version: -1 before there is one.
        users: numbers of the actors whose fragment began with it.
        asked: sender of each request and whose it is, in the order of their rows.
    """

    def __init__(self, executor: Executor, layout: PassLayout, most: int) -> None:
        self.version, self._env_steps = -1, 0
        self.users: set[int] = set()
        self.asked: list[tuple[int, Fields]] = []
        self._executor = executor
        self._layout = layout
        inputs = (OBSERVATION, *layout.memory)
        self._rows = {
            name: np.zeros((most * shape[0], *shape[1:]), dtype)
            for name, dtype, shape in layout.request.arrays
            if name in inputs
        }
        self._statistics = {
            name: np.zeros((1, 1, *shape), dtype)
            for name, dtype, shape in layout.answer.arrays
            if name in layout.statistics
        }

    @property
    def is_free(self) -> bool:
        """Whether no fragment needs this version any more."""
        return not (self.users or self.asked)

    def adopt(self, policy: PublishedPolicy, version: int) -> None:
        """Become another version."""
        self._executor.adopt(policy.parameters)
        self.version, self._env_steps = version, policy.env_steps

    def add(self, request: Received) -> None:
        """Copy a request into the rows of the next pass."""
        rows = len(self.asked) * self._layout.num_envs
        for name, array in self._rows.items():
            array[rows : rows + self._layout.num_envs] = request.fields[name]
        self.asked.append((request.sender, {name: request.fields[name].copy() for name in REQUEST_ID}))

    def run(self) -> Iterator[tuple[int, Fields]]:
        """Run the network; yield the receiver and the fields of each answer."""
        layout, places = self._layout, len(self.asked)
        rows = {name: array[: places * layout.num_envs] for name, array in self._rows.items()}
        recorded = {name: rows[name][None] for name in layout.memory} | self._statistics
        self._executor.resume(recorded)
        outputs = self._executor(rows.pop(OBSERVATION))
        self._executor.record(recorded)
        given = rows | dict(zip(layout.outputs, outputs, strict=True))
        own = {name: array[0, 0] for name, array in self._statistics.items()}
        own |= {"version": np.asarray(self.version), "env_steps": np.asarray(self._env_steps)}
        for place, (sender, whose) in enumerate(self.asked):
            parts = {name: _part(array, place, places) for name, array in given.items()}
            yield sender, {**own, **whose, **parts}
        self.asked.clear()


def _part(rows: Array, place: int, places: int) -> Array:
    """Return the rows of one of so many requests of a pass."""
    each = len(rows) // places
    return rows[place * each : (place + 1) * each]


class Inference(Role):
    """Answers requests by the newest policy, or by the one that the actor's fragment began with.

    It holds two versions: a newer one takes the place of one that no fragment needs any more.

    Args:
        executors: one for each version.
        actors: numbers of the actors that it serves, by the rank of the process that carries them.
        slot: slot of the policy.
    """

    name = INFERENCE

    def __init__(
        self,
        transport: Transport,
        executors: Sequence[Executor],
        layout: PassLayout,
        job: int,
        actors: Mapping[int, Sequence[int]],
        slot: str,
        settings: InferenceSettings,
    ) -> None:
        self._transport = transport
        self._slot = slot
        self._max_wait_s = settings.max_wait_ms / 1e3
        self._rejected = Rejected()
        self._inlet = RecordInlet(transport, REQUESTS, layout.request, job, self._rejected)
        self._outlets = {
            rank: RecordOutlet(transport, ANSWERS, layout.answer, [rank], job) for rank in actors
        }
        self._actors = dict(actors)
        self._served = sum(map(len, actors.values()))
        most = settings.max_batch or self._served * layout.num_envs
        self._most = min(self._served, most // layout.num_envs)
        self._held = [HeldPolicy(executor, layout, self._most) for executor in executors]
        self._newest = self._held[0]
        self._lives: dict[int, int] = {}
        """Newest incarnation of each actor that has asked."""
        self._gone: dict[int, int] = {}
        """Newest incarnation of each actor whose seat has been empty: requests of it are late."""
        self._unsent: list[tuple[int, Fields]] = []
        """Answers to processes that are not there yet, or no more."""
        self._passes = 0

    @property
    def triggers(self) -> Sequence[Trigger]:
        """Adopt a newer policy where no fragment needs one of those that are held."""
        return (Trigger(when=self._has_room, do=self.adopt_newest_policy),)

    def _has_room(self) -> bool:
        return any(policy.is_free for policy in self._held)

    def adopt_newest_policy(self) -> bool:
        """Look for a newer policy; never wait for one."""
        claim = self._transport.latest(self._slot, newer_than=self._newest.version)
        if claim is None:
            return False
        self._newest = next(policy for policy in self._held if policy.is_free)
        self._newest.adopt(PublishedPolicy(claim.view()), claim.version)
        claim.release()
        return True

    def turn(self) -> bool:
        """Answer the requests that are there, or that come within ``max_wait_ms`` of the first."""
        unsent, self._unsent = self._unsent, []
        for sender, fields in unsent:
            self._answer(sender, fields)
        if self._newest.version < 0:
            return False
        self._gather()
        if self._max_wait_s:
            self._wait_for_more()
        asked = [policy for policy in self._held if policy.asked]
        for policy in asked:
            self._passes += 1
            for sender, fields in policy.run():
                self._answer(sender, fields)
        return bool(asked)

    def peer_lost(self, rank: int, counts_from: int) -> None:  # noqa: ARG002 - it gets no fragments
        """Serve the actors of a process no longer, such as those of a lost buffer: none comes again."""
        gone = self._actors.pop(rank, ())
        self._outlets.pop(rank, None)
        self._served -= len(gone)
        for policy in self._held:
            policy.users.difference_update(gone)

    def note_actors(self, actors: Sequence[int]) -> None:
        """Serve the actors that are there; the others keep no version, and are not waited for."""
        served = {rank: set(numbers) & set(actors) for rank, numbers in self._actors.items()}
        self._served = sum(map(len, served.values()))
        self._unsent = [unsent for unsent in self._unsent if served.get(unsent[0])]
        gone = {actor for numbers in self._actors.values() for actor in numbers}.difference(actors)
        self._gone |= {actor: self._lives[actor] for actor in gone & self._lives.keys()}
        for policy in self._held:
            policy.users -= gone

    def report(self) -> UserReport:
        """Report requests and passes, and the messages that it has rejected."""
        return UserReport(
            rejected={"requests": self._rejected.reported, "endpoint": rejected_by(self._transport)},
            values={"requests": self._inlet.received, "passes": self._passes},
        )

    @property
    def _is_full(self) -> bool:
        """Whether a pass takes no more requests, or no actor is left that could ask."""
        numbers = [len(policy.asked) for policy in self._held]
        return max(numbers) == self._most or sum(numbers) >= self._served

    def _gather(self) -> None:
        while not self._is_full and (request := self._inlet.probe()) is not None:
            if request.sender not in self._actors:
                continue  # It was under way when its process was lost.
            actor, life = int(request.fields["actor"]), int(request.fields["life"])
            if life <= self._gone.get(actor, -1):
                continue
            self._lives[actor] = life
            policy = next((policy for policy in self._held if actor in policy.users), self._newest)
            if request.fields["begins"]:  # Its predecessor may have been killed within a fragment.
                policy.users.discard(actor)
                policy = self._newest
                policy.users.add(actor)
            elif request.fields["last"]:
                policy.users.discard(actor)
            policy.add(request)

    def _wait_for_more(self) -> None:
        """Wait for requests that may still come, if there are any; no part of the work of this turn."""
        began = time.monotonic()
        while any(policy.asked for policy in self._held) and not self._is_full:
            left_s = began + self._max_wait_s - time.monotonic()
            if left_s <= 0:
                break
            self._transport.wait(left_s)
            self._gather()
        self.busy_s -= time.monotonic() - began

    def _answer(self, sender: int, fields: Fields) -> None:
        outlet = self._outlets.get(sender)
        if outlet is None:
            return
        draft = outlet.loan()
        if isinstance(draft, Full):
            self._unsent.append((sender, {name: np.array(array) for name, array in fields.items()}))
            return
        for name, array in fields.items():
            draft.fields[name][...] = array
        outlet.push(draft)
